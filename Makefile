# make demo | test | lint | types | bench; each sets up .venv by itself and needs Python 3.11 or 3.12, nothing else.
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

demo: .venv/ready
	$(BIN)/entrobench run demo

test: .venv/ready-dev
	$(BIN)/python -m pytest

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-dev
	$(BIN)/mypy

bench: .venv/ready-bench
	$(BIN)/python -m benchmarks

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

.PHONY: demo test lint types bench
