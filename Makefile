# Every target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check format clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || \
	  { echo "pyspark-kafka needs Python 3.11 to 3.13, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing): install one and run 'make PYTHON=python3.11 ...'." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt pip hatchling editables
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev --editable . || \
	  { echo "Setting up $(VENV) failed: the packages of pyproject.toml could not be installed. Check the network or your package index, then run make again." >&2; exit 1; }
	@touch $@
