# Every target sets up what it needs; `make demo` and `make test` are all a newcomer has to know.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BENCH  := .cache/bench
DOCS   := .cache/docs
QUIETLY := --disable-pip-version-check --quiet
PIP    := $(BIN)/pip $(QUIETLY)
# Tests of Spark run once on each of these beside the one in constraints.txt, and by the way once with
# the implementation in plain Python and once with the other engine: a user gets the kernel and `native`.
OTHER_PYSPARKS := 4.0.5 4.1.4 4.2.1
IMPLEMENTATION_WITH_4.1.4 := PYSPARK_KAFKA_RECORDS=pure
ENGINE_WITH_4.2.1 := --engine=librdkafka

# Tests spend much of their time waiting: several at once, those of a file in one process.
AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder

# Halves the start of Spark's drivers, of which tests kill many.
ARCHIVE_CLASSES := $(BIN)/python -m integration.spark_jvm

# Not ours: PySpark before 4.3 leaves sockets of its workers open.
LEAKS := -W "ignore:unclosed:ResourceWarning"

export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help setup python java demo test test-all test-kafka test-pysparks bench bench-quick sim \
        failpoints chaos docs check lint format lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## make .venv with the project (editable) and its development tools

KERNEL := hatch_build.py $(wildcard connector/pyspark_kafka/records/_kernel*.p?? connector/pyspark_kafka/records/*.h)

# A virtual environment in the target's folder; $(1) says what it gets beside the project, editable.
define venv
	@echo "Setting up $(@D) (a minute or two) ..." >&2
	@$(PYTHON) -m venv $(@D)
	@{ $(@D)/bin/pip $(QUIETLY) install --constraint constraints.txt pip && \
	   $(@D)/bin/pip $(QUIETLY) install --constraint constraints.txt --build-constraint constraints.txt $(1); } \
	  >$(@D)/setup.log 2>&1 || \
	  { echo "The packages of constraints.txt could not be installed into $(@D) (see $(@D)/setup.log): check the network, or point pip at a package index you can reach, and run make again" >&2; exit 1; }
	@touch $@
endef

$(VENV)/.ready: pyproject.toml constraints.txt $(KERNEL) | python
	$(call venv,--group dev --editable .)

# Without the development tools: hypothesis, where it is there, gets imported into every worker.
$(BENCH)/.ready: pyproject.toml constraints.txt $(KERNEL) | python
	$(call venv,--group bench --editable '.[spark]')

# The site's tools read our code without importing it.
$(DOCS)/.ready: pyproject.toml constraints.txt | python
	$(call venv,--group docs)

python:
	@command -v $(PYTHON) >/dev/null || { echo "pyspark-kafka needs Python 3.11 to 3.13 and there is no '$(PYTHON)': install one of them and run 'make PYTHON=python3.11 ...'" >&2; exit 1; }
	@$(PYTHON) integration/preflight.py python

java: python
	@$(PYTHON) integration/preflight.py java

demo: java $(VENV)/.ready ## real logs through Spark and the reference broker, with a kill half-way
	@$(BIN)/python examples/demo.py

test: java $(VENV)/.ready ## every test on the reference broker (15 minutes at most)
	@$(ARCHIVE_CLASSES)
	$(BIN)/pytest $(AT_ONCE) -m "not full"

test-all: java lint docs ## all of `test` and `check`, both engines, Apache Kafka, every PySpark (more than an hour)
	@$(ARCHIVE_CLASSES)
	$(BIN)/pytest $(AT_ONCE) -m "not by_hand"
	$(MAKE) --no-print-directory test-kafka test-pysparks

test-kafka: java $(VENV)/.ready ## what tests state about Kafka, on Apache Kafka itself
	@$(ARCHIVE_CLASSES)
	$(BIN)/pytest $(AT_ONCE) -m "not full" --cluster=kafka tests/conformance tests/integration tests/pyspark_kafka tests/spark
	$(BIN)/pytest -m full --cluster=kafka tests/failpoints -k "not old_transactions"

test-pysparks: $(OTHER_PYSPARKS:%=test-pyspark-%) ## the Spark tests on the other PySpark versions

.PRECIOUS: .cache/pyspark-%
test-pyspark-%: java .cache/pyspark-%
	@echo "== PySpark $* $(IMPLEMENTATION_WITH_$*) $(ENGINE_WITH_$*) =="
	@PYTHONPATH=$(CURDIR)/.cache/pyspark-$* $(ARCHIVE_CLASSES)
	@$(IMPLEMENTATION_WITH_$*) PYTHONPATH=$(CURDIR)/.cache/pyspark-$* $(BIN)/pytest $(AT_ONCE) -m "not full" \
	  $(LEAKS) $(ENGINE_WITH_$*) tests/spark

bench: java $(BENCH)/.ready ## ratios to Spark's connector and others, on a quiet machine (20 minutes); build/reports
	@$(BENCH)/bin/python -m integration.benchmarks

bench-quick: java $(BENCH)/.ready ## the main cases of `bench` with fewer records (5 minutes)
	@$(BENCH)/bin/python -m integration.benchmarks --quick

SEEDS := 0:2000

sim: $(VENV)/.ready ## a simulated cluster under faults: SEED=n replays one, SEEDS=0:2000 runs many
	@$(BIN)/python -m integration.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

BACKEND := reference-processes

failpoints: $(VENV)/.ready ## kill the sink at every failpoint (10 minutes); BACKEND=kafka; build/reports
	@$(BIN)/python -m integration.failpoints --all --backend $(BACKEND)
	@$(BIN)/python -m integration.failpoints --backend $(BACKEND) --old-transactions

chaos: java $(VENV)/.ready ## a query while everything around it fails: SEED=n, BACKEND=kafka, SECONDS=60
	@$(ARCHIVE_CLASSES)
	@$(BIN)/python -m integration.chaos --seed $(or $(SEED),1) --backend $(BACKEND) --seconds $(or $(SECONDS),60)

.cache/pyspark-%: | $(VENV)/.ready
	@rm -rf $@.part && mkdir -p .cache
	@$(PIP) install --no-compile --target $@.part pyspark==$* || \
	  { echo "pyspark $* could not be installed: check the network, or point pip at a package index you can reach" >&2; exit 1; }
	@mv $@.part $@

docs: $(VENV)/.ready $(DOCS)/.ready ## the documentation as a site, in build/site
	@$(BIN)/python -m integration.docs_site
	@$(DOCS)/bin/zensical build --strict --config-file build/zensical.toml

check: lint ## format, lint, types, import contracts, fast tests: run before each commit
	$(BIN)/pytest $(AT_ONCE) -m "not spark and not slow and not full"

lint: $(VENV)/.ready ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(VENV)/.ready ## write constraints.txt anew from pyproject.toml
	@$(PIP) install uv
	@printf 'pip\nhatchling\neditables\n' | $(BIN)/uv pip compile --quiet pyproject.toml - --group dev --group bench --group docs \
	  --extra spark --universal --python-version 3.11 --no-header --no-annotate --upgrade -o constraints.txt

clean: ## remove what make made
	rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
