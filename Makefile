# Every target installs its own requirements. Start with `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BENCH  := .cache/bench
DOCS   := .cache/docs
QUIETLY := --disable-pip-version-check --quiet
PIP    := $(BIN)/pip $(QUIETLY)
# The Spark tests also run on these PySpark versions, in addition to the version in constraints.txt.
# One of these runs uses the pure Python implementation, and one uses the librdkafka engine. All other
# runs use the defaults: the compiled kernel and the `native` engine.
OTHER_PYSPARKS := 4.0.5 4.1.4 4.2.1
IMPLEMENTATION_WITH_4.1.4 := PYSPARK_KAFKA_RECORDS=pure
ENGINE_WITH_4.2.1 := --engine=librdkafka
# Transactions have version 1 in 3.9. `KAFKA_VERSION` selects the version for any test.
OTHER_KAFKAS := 3.9.1 4.0.0
# Brokers fail, or a driver is killed and starts again: `make test-all` runs these on Apache Kafka.
ONLY_ON_KAFKA := spark/test_cluster_faults.py spark/test_driver_kill.py
# Options and checkpoints do not depend on the cluster. Kafka's own tools work on Kafka: run these
# with `--cluster=kafka` after a change of their expectations.
NOT_ON_KAFKA := conformance/tools spark/test_checkpoint_interchange.py spark/test_options_errors.py

# Tests mostly wait, so several run in parallel. The tests of a file run in the same process.
AT_ONCE := -n 4 --dist loadfile --no-loadscope-reorder --durations=20

# These take a third of the time: kills at random, other programs, and packages.
ONLY_IN_TEST_ALL := broker_ref/scenarios/test_kill_9.py broker_ref/test_kill.py chaos conformance/tools \
  failpoints/test_spark.py packaging spark/test_checkpoint_interchange.py

# Make Spark's drivers and Python processes start in half the time; tests start many of them.
# $(1) is an assignment that selects another PySpark.
define fast_spark
	@$(1) $(BIN)/python -m integration.pyspark_bytecode
	@$(1) $(BIN)/python -m integration.spark_jvm
endef

# PySpark before 4.3 does not close the sockets of its workers.
LEAKS := -W "ignore:unclosed:ResourceWarning"

# Without the bytecode of an earlier run, each process of a test compiles our modules, and pytest its tests.
unexport PYTHONDONTWRITEBYTECODE

export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help setup python java demo test test-all test-kafka test-kafkas test-pysparks bench bench-quick \
  sim sim-sink \
        failpoints chaos docs check lint format lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## make .venv with the project (editable) and its development tools

KERNEL := hatch_build.py $(wildcard connector/pyspark_kafka/records/_kernel*.p?? connector/pyspark_kafka/records/*.h)

# Create a virtual environment in the directory of the target. $(1) are pip's arguments: the packages
# to install.
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

# This environment has no development tools: if hypothesis is installed, every worker imports it.
$(BENCH)/.ready: pyproject.toml constraints.txt $(KERNEL) | python
	$(call venv,--group bench --editable '.[spark]')

# The tools that build the site read our code without importing it, so it is not installed.
$(DOCS)/.ready: pyproject.toml constraints.txt | python
	$(call venv,--group docs)

python:
	@command -v $(PYTHON) >/dev/null || { echo "pyspark-kafka needs Python 3.11 to 3.13 and there is no '$(PYTHON)': install one of them and run 'make PYTHON=python3.11 ...'" >&2; exit 1; }
	@$(PYTHON) integration/preflight.py python

java: python
	@$(PYTHON) integration/preflight.py java

demo: java $(VENV)/.ready ## real logs through Spark and the reference broker, with a kill half-way
	@$(BIN)/python examples/demo.py

test: java $(VENV)/.ready ## the tests on the reference broker (about 9 minutes on two cores)
	$(call fast_spark)
	$(BIN)/pytest $(AT_ONCE) -m "not full" $(ONLY_IN_TEST_ALL:%=--ignore=tests/%) $(ONLY_ON_KAFKA:%=--ignore=tests/%)

# Three at a time: it also kills the processes of whole clusters, which need the cores to recover.
test-all: java lint docs ## every test: also kills at random, Apache Kafka, every PySpark (less than an hour)
	$(call fast_spark)
	$(BIN)/pytest $(AT_ONCE) -n 3 -m "not by_hand" $(ONLY_ON_KAFKA:%=--ignore=tests/%)
	$(MAKE) --no-print-directory test-kafka test-kafkas test-pysparks

test-kafka: java $(VENV)/.ready ## what tests state about Kafka, on Apache Kafka itself
	$(call fast_spark)
	$(BIN)/pytest $(AT_ONCE) -m "not full or kafka_only" --cluster=kafka $(NOT_ON_KAFKA:%=--ignore=tests/%) \
	  tests/conformance tests/failpoints/test_matrix.py tests/integration tests/pyspark_kafka tests/spark

test-kafkas: $(OTHER_KAFKAS:%=test-kafka-%) ## the exactly-once sink on other versions of Apache Kafka

test-kafka-%: java $(VENV)/.ready
	@echo "== Apache Kafka $* =="
	@KAFKA_VERSION=$* $(BIN)/pytest $(AT_ONCE) -n 2 -m "not full" --cluster=kafka \
	  tests/pyspark_kafka/sink/exactly_once \
	  tests/failpoints/test_matrix.py::test_a_sample_of_kills_and_stalls_passes

test-pysparks: $(OTHER_PYSPARKS:%=test-pyspark-%) ## the Spark tests on the other PySpark versions

.PRECIOUS: .cache/pyspark-%
test-pyspark-%: java .cache/pyspark-%
	@echo "== PySpark $* $(IMPLEMENTATION_WITH_$*) $(ENGINE_WITH_$*) =="
	$(call fast_spark,PYTHONPATH=$(CURDIR)/.cache/pyspark-$*)
	@$(IMPLEMENTATION_WITH_$*) PYTHONPATH=$(CURDIR)/.cache/pyspark-$* $(BIN)/pytest $(AT_ONCE) \
	  -m "not full and not slow" $(LEAKS) $(ENGINE_WITH_$*) tests/spark

bench: java $(BENCH)/.ready ## ratios to Spark's connector and others, on a quiet machine (20 minutes); build/reports
	@$(BENCH)/bin/python -m integration.benchmarks

bench-quick: java $(BENCH)/.ready ## the main cases of `bench` with fewer records (5 minutes)
	@$(BENCH)/bin/python -m integration.benchmarks --quick

SEEDS := 0:2000

sim: $(VENV)/.ready ## a simulated cluster under faults: SEED=n replays one, SEEDS=0:2000 runs many
	@$(BIN)/python -m integration.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

sim-sink: $(VENV)/.ready ## the exactly-once sink on a simulated cluster under faults: SEED=n, SEEDS=0:2000
	@$(BIN)/python -m integration.simulation --sink $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

BACKEND := reference-processes

failpoints: $(VENV)/.ready ## kill the sink at every failpoint (10 minutes); BACKEND=kafka; build/reports
	@$(BIN)/python -m integration.failpoints --all --backend $(BACKEND)
	@$(BIN)/python -m integration.failpoints --backend $(BACKEND) --old-transactions

chaos: java $(VENV)/.ready ## a query while everything around it fails: SEED=n, BACKEND=kafka, SECONDS=60
	$(call fast_spark)
	@$(BIN)/python -m integration.chaos --seed $(or $(SEED),1) --backend $(BACKEND) --seconds $(or $(SECONDS),60)

.cache/pyspark-%: | $(VENV)/.ready
	@rm -rf $@.part && mkdir -p .cache
	@$(PIP) install --no-compile --target $@.part pyspark==$* || \
	  { echo "pyspark $* could not be installed: check the network, or point pip at a package index you can reach" >&2; exit 1; }
	@mv $@.part $@

docs: $(VENV)/.ready $(DOCS)/.ready ## the documentation as a site, in build/site
	@$(BIN)/python -m integration.docs_site
	@$(DOCS)/bin/zensical build --strict --config-file build/zensical.toml

check: lint ## format, lint, types, import contracts, fast tests (2 minutes): run before each commit
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
