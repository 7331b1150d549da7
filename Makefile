# Every target installs its own requirements. Start with `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BENCH  := .cache/bench
DOCS   := .cache/docs
QUIETLY := --disable-pip-version-check --quiet
PIP    := $(BIN)/pip $(QUIETLY)
# The Spark tests also run on these PySpark versions, in addition to the version in locks/dev.txt.
# One of these runs uses the librdkafka engine, one uses the pure Python implementation, and one uses
# Apache Kafka. All other runs use the reference cluster, the `native` engine and the compiled kernel.
# `make test-all` runs the tests that are marked `spark_version` and a third of the others with each
# version.
OTHER_PYSPARKS := 4.0.5 4.1.4 4.2.1
OPTIONS_WITH_4.0.5 := --engine=librdkafka
IMPLEMENTATION_WITH_4.1.4 := PYSPARK_KAFKA_RECORDS=pure
OPTIONS_WITH_4.2.1 := --cluster=kafka
# Kafka 3.9 uses transaction version 1. `KAFKA_VERSION` selects the Kafka version for any test.
OTHER_KAFKAS := 3.9.1 4.0.0
PARTS_OF_FILES = --parts=$(or $(PARTS),1) --parts-of=files
OPTIONS_WITH_KAFKA_4.0.0 = $(PARTS_OF_FILES)
# Tests in which brokers fail, or a driver is killed and restarted. They run only on Apache Kafka.
ONLY_ON_KAFKA := spark/test_cluster_faults.py spark/test_driver_kill.py
# Options and checkpoints do not depend on the cluster. Kafka's own tools are known to work on Kafka:
# run their tests with `--cluster=kafka` only after you change the output that they expect.
NOT_ON_KAFKA := conformance/tools spark/test_checkpoint_interchange.py spark/test_options_errors.py

# Tests mostly wait, so several run in parallel. The tests of a file run in the same process.
AT_ONCE = -n 4 --dist loadfile --no-loadscope-reorder --durations=20 --junitxml=$(TIMES)/$@.xml
TIMES := build/reports/tests
# `check` and `test` skip the tests for which Java is missing or a download fails.
COMPLETE := --require-clusters

# These tests take a third of the time: they kill processes at random, run other programs, or build
# packages.
ONLY_IN_TEST_ALL := broker_ref/scenarios/test_kill_9.py broker_ref/test_kill.py chaos conformance/tools \
  examples failpoints/test_spark.py packaging spark/test_checkpoint_interchange.py

# Make Spark's drivers and Python processes start in half the time; tests start many of them.
# `test-pysparks` starts too few of them with one version for this to be worth its 40 s.
define fast_spark
	@$(BIN)/python -m pyspark_kafka compile-pyspark
	@$(BIN)/python -m integration.spark_jvm
endef

# PySpark before 4.3 does not close the sockets of its workers.
LEAKS := -W "ignore:unclosed:ResourceWarning"

# Without bytecode from an earlier run, every test process would compile our modules, and pytest
# would compile the tests.
unexport PYTHONDONTWRITEBYTECODE

export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help setup python java demo test test-all test-kafka test-kafkas test-pysparks bench bench-quick \
  sim sim-sink \
        failpoints chaos parity docs check lint format lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## create .venv with both projects (editable) and the development tools

KERNEL := hatch_build.py $(wildcard connector/pyspark_kafka/records/_kernel*.p?? connector/pyspark_kafka/records/*.h)

# Create a virtual environment in the directory of the target, with the packages in locks/$(1).txt.
# $(2) contains the arguments of pip that install our projects, which have no hashes. Pip builds our
# projects and PySpark with the packages in locks/build.txt.
define venv
	@echo "Setting up $(@D) (a minute or two) ..." >&2
	@$(PYTHON) -m venv $(@D)
	@{ $(@D)/bin/pip $(QUIETLY) install --require-hashes --requirement locks/build.txt && \
	   $(@D)/bin/pip $(QUIETLY) install --no-build-isolation --require-hashes --requirement locks/$(1).txt \
	   $(if $(2),&& $(@D)/bin/pip $(QUIETLY) install --no-build-isolation --no-deps $(2)); } \
	  >$(@D)/setup.log 2>&1 || \
	  { echo "The packages in locks/$(1).txt could not be installed into $(@D) (see $(@D)/setup.log). Check the network, or configure pip to use a package index that you can reach. Then run make again." >&2; exit 1; }
	@touch $@
endef

PROJECTS := --editable . --editable cluster

$(VENV)/.ready: pyproject.toml cluster/pyproject.toml locks/build.txt locks/dev.txt $(KERNEL) | python
	$(call venv,dev,$(PROJECTS))

# This environment has no development tools: if hypothesis is installed, every worker imports it.
$(BENCH)/.ready: pyproject.toml cluster/pyproject.toml locks/build.txt locks/bench.txt $(KERNEL) | python
	$(call venv,bench,$(PROJECTS))

# The tools that build the site read our code without importing it, so it is not installed.
$(DOCS)/.ready: locks/build.txt locks/docs.txt | python
	$(call venv,docs)

python:
	@command -v $(PYTHON) >/dev/null || { echo "pyspark-kafka requires Python 3.11 to 3.14, but '$(PYTHON)' was not found. Install a supported version and run 'make PYTHON=python3.11 ...'." >&2; exit 1; }
	@$(PYTHON) integration/preflight.py python

java: python
	@$(PYTHON) integration/preflight.py java

demo: java $(VENV)/.ready ## process real logs with Spark and the reference broker, and kill the query halfway
	@$(BIN)/python examples/demo.py

test: java $(VENV)/.ready ## run the tests on the reference broker (about 9 minutes on two cores)
	$(call fast_spark)
	$(BIN)/pytest $(AT_ONCE) -m "not full" $(ONLY_IN_TEST_ALL:%=--ignore=tests/%) $(ONLY_ON_KAFKA:%=--ignore=tests/%)

# The other versions of PySpark and Kafka take minutes to download, so this happens while the code is
# checked. Three tests at a time: some kill the processes of whole clusters, which need the cores to
# recover. Only a third of the `sampled` tests runs, and of the files whose tests run both on the
# reference cluster and on Kafka 4.0 and 4.3. The seed of each run selects them.
test-all: PARTS := 3
test-all: java ## run the tests on all versions of Kafka and PySpark (50 minutes): PARTS=1 runs every test
	$(MAKE) --no-print-directory --jobs=7 lint docs $(OTHER_PYSPARKS:%=.cache/pyspark-%) \
	  $(OTHER_KAFKAS:%=.cache/kafka-%)
	$(call fast_spark)
	$(BIN)/pytest $(AT_ONCE) -n 3 $(COMPLETE) --parts=$(PARTS) -m "not by_hand" $(ONLY_ON_KAFKA:%=--ignore=tests/%)
	$(MAKE) --no-print-directory PARTS=$(PARTS) test-kafka test-kafkas test-pysparks
	@$(BIN)/python -m integration.durations $(TIMES)

# `test-pysparks` runs the other Spark tests on Apache Kafka, with one of the PySpark versions.
test-kafka: java $(VENV)/.ready ## run the tests that depend on the cluster, using Apache Kafka
	$(call fast_spark)
	$(BIN)/pytest $(AT_ONCE) -n 3 $(COMPLETE) $(PARTS_OF_FILES) --cluster=kafka \
	  -m "kafka_only or not full and (slow or not spark)" $(NOT_ON_KAFKA:%=--ignore=tests/%) \
	  tests/conformance tests/failpoints/test_matrix.py tests/failpoints/test_zombies.py tests/integration \
	  tests/pyspark_kafka tests/spark

test-kafkas: $(OTHER_KAFKAS:%=test-kafka-%) ## test the exactly-once sink on other versions of Apache Kafka

test-kafka-%: java $(VENV)/.ready
	@echo "== Apache Kafka $* =="
	@KAFKA_VERSION=$* $(BIN)/pytest $(AT_ONCE) -n 2 $(COMPLETE) -m "not full" --cluster=kafka \
	  $(OPTIONS_WITH_KAFKA_$*) tests/pyspark_kafka/sink/exactly_once \
	  tests/failpoints/test_matrix.py::test_a_sample_of_kills_and_stalls_passes

test-pysparks: $(OTHER_PYSPARKS:%=test-pyspark-%) ## run the Spark tests on the other PySpark versions

.PRECIOUS: .cache/pyspark-%
test-pyspark-%: java .cache/pyspark-%
	@echo "== PySpark $* $(IMPLEMENTATION_WITH_$*) $(OPTIONS_WITH_$*) =="
	@$(IMPLEMENTATION_WITH_$*) PYTHONPATH=$(CURDIR)/.cache/pyspark-$* $(BIN)/pytest $(AT_ONCE) \
	  $(COMPLETE) -m "not full and not slow" $(LEAKS) --parts=$(or $(PARTS),1) --parts-of=tests $(OPTIONS_WITH_$*) \
	  tests/spark

bench: java $(BENCH)/.ready ## compare the speed with other connectors, on a quiet machine (50 minutes); see build/reports
	@$(BENCH)/bin/python -m integration.benchmarks

bench-quick: java $(BENCH)/.ready ## run the main cases of `bench` with fewer records (5 minutes)
	@$(BENCH)/bin/python -m integration.benchmarks --quick

SEEDS := 0:2000

sim: $(VENV)/.ready ## simulate a cluster with injected faults: SEED=n replays one seed, SEEDS=0:2000 runs many
	@$(BIN)/python -m integration.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

sim-sink: $(VENV)/.ready ## run the exactly-once sink on a simulated cluster with faults: SEED=n, SEEDS=0:2000
	@$(BIN)/python -m integration.simulation --sink $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

BACKEND := reference-processes

failpoints: $(VENV)/.ready ## kill the sink at every failpoint (10 minutes): BACKEND=kafka; see build/reports
	@$(BIN)/python -m integration.failpoints --all --backend $(BACKEND)
	@$(BIN)/python -m integration.failpoints --backend $(BACKEND) --old-transactions

chaos: java $(VENV)/.ready ## run a query while everything around it fails: SEED=n, BACKEND=kafka, SECONDS=60
	$(call fast_spark)
	@$(BIN)/python -m integration.chaos --seed $(or $(SEED),1) --backend $(BACKEND) --seconds $(or $(SECONDS),60)

parity: java $(VENV)/.ready ## compare 500 queries with Spark's own connector, on Apache Kafka (20 minutes)
	$(call fast_spark)
	@$(BIN)/python -m integration.parity

.cache/pyspark-%: | $(VENV)/.ready
	@rm -rf $@.part && mkdir -p .cache
	@$(PIP) install --no-build-isolation --no-compile --target $@.part \
	  --config-settings=--build-option=--compression=stored pyspark==$* || \
	  { echo "pyspark $* could not be installed. Check the network, or configure pip to use a package index that you can reach." >&2; exit 1; }
	@mv $@.part $@

# If this fails, the tests on this version of Kafka report the reason.
.cache/kafka-%: | $(VENV)/.ready
	-@KAFKA_VERSION=$* $(BIN)/python -c "from integration import clusters; clusters.prepare('kafka')"

docs: $(VENV)/.ready $(DOCS)/.ready ## build the documentation site in build/site
	@$(BIN)/python -m integration.docs_site
	@$(DOCS)/bin/zensical build --strict --config-file build/zensical.toml

check: lint ## check the code and run the fast tests (2 minutes); run this before each commit
	$(BIN)/pytest $(AT_ONCE) -m "not spark and not slow and not full"

lint: $(VENV)/.ready ## check format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready ## format the code and fix lint errors where possible
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate --upgrade
BOTH := pyproject.toml cluster/pyproject.toml --extra spark

lock: $(VENV)/.ready ## regenerate locks/ from both pyproject.toml files
	@$(PIP) install uv
	@$(LOCK) $(BOTH) --group dev --output-file locks/dev.txt
	@$(LOCK) $(BOTH) --group bench --constraint locks/dev.txt --output-file locks/bench.txt
	@for group in build docs release; do \
	  $(LOCK) --group $$group --constraint locks/dev.txt --output-file locks/$$group.txt || exit 1; done

clean: ## remove everything that make created
	rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
