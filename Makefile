# OneLog: every task of the project. `make help` lists them.
# Nothing has to be prepared: each target first makes the environment that it needs.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BASE   ?= HEAD~1

BIN      := $(VENV)/bin
PY       := $(BIN)/python
SEEN     := $(PY) -m pip --disable-pip-version-check
PIP      := $(SEEN) --quiet
# The versions that were tested together; `make CONSTRAINTS= …` takes the newest.
CONSTRAINTS ?= constraints.txt
PINNED   := install $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --requirement /dev/stdin
PYTEST   := $(PY) -m pytest
KERNEL   := $(wildcard setup.py) $(shell find src/onelog/kernel -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h')
STAMP    := $(VENV)/.stamp
AZURITE  := azurite@3
FAKE_GCS := github.com/fsouza/fake-gcs-server@v1.56.1

# KafkaJS has only gzip itself: the packages after it bring the other codecs.
JS_CLIENTS := mqtt@5 kafkajs@2 kafkajs-snappy@1 @bokuweb/zstd-wasm@0 @platformatic/kafka@1 amqplib@0

# They start hundreds of processes, and none is to compile the sources for itself alone.
export PYTHONDONTWRITEBYTECODE :=

# Each core takes two shares. What failed is run once more; what passes only then is counted and named.
RUN_TESTS := $(PY) tools/run_tests.py

# Targets that do not need each other.
TOGETHER := $(MAKE) --no-print-directory --jobs=3

SHORT := -m "not fault_long and not kafka_peer and not kafka_cluster and not rabbitmq_peer and not spark_slow and not package"

.DEFAULT_GOAL := help
.PHONY: help run console console-pictures example-iot example-pipeline example-one-copy spark setup check check-types check-rest format test test-pure conformance conformance-kafka conformance-cluster \
        conformance-amqp conformance-spark conformance-stores constraints fuzz fault soak dev-python dev-js dev-java dev-stores bench bench-log bench-mqtt bench-kafka bench-amqp bench-views bench-spark bench-object bench-against bench-lockstep bench-lone bench-operate bench-growth bench-cluster bench-page package image-check docs site clean

help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Options: PYTHON=python3.12 (which Python), VENV=dir (where to install), ARGS='…' (passed on)"

run: $(STAMP)-node ## Install and start `onelog serve`, data under ./data
	@$(PY) tools/console.py --if-possible
	@exec $(BIN)/onelog serve $(ARGS)

console: $(STAMP)-node ## Build the web console, if its sources or the API changed
	@$(PY) tools/console.py

console-pictures: $(STAMP)-dev ## Take the pictures of the guide's page on the console anew
	$(PY) -m tests.console.pictures docs/guide/console $(ARGS)

example-iot: $(STAMP)-clients ## One log, many views: devices, a stream, workers and late comers
	@$(PY) examples/iot $(ARGS)

example-pipeline: $(STAMP)-pipeline ## Devices to Spark to alerts, an Iceberg table and a picture
	@$(PY) examples/iot-pipeline/run.py $(ARGS)

example-one-copy: $(STAMP)-pipeline ## Devices by MQTT; a week later Kafka replays the files that SQL reads
	@$(PY) tools/dev_requirements.py confluent-kafka | $(PIP) $(PINNED)
	@$(PY) examples/one-copy/run.py $(ARGS)

spark: $(STAMP)-spark ## Install Spark for `onelog pipeline`, `onelog sql` and Spark Connect
	@echo "onelog: Spark is there: $(BIN)/onelog pipeline --help, $(BIN)/onelog sql --help"

setup: $(STAMP)-dev ## Install everything for development and tests

check: $(STAMP)-dev ## Format, lint, types, floors, tidiness (under a minute)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	@$(TOGETHER) check-types check-rest

check-types:
	$(BIN)/mypy

check-rest:
	$(BIN)/lint-imports --no-logo
	$(PYTEST) tests/test_tidy.py tests/test_links.py tests/test_packaging.py

format: $(STAMP)-dev ## Format the sources and fix what lint can fix
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

test: check ## Check, then run every test but the long ones
	$(RUN_TESTS) pure checked cold all $(SHORT) --durations=40 $(ARGS)

test-pure: $(STAMP)-dev ## Run unit tests and contracts with the interpreted kernel
	$(RUN_TESTS) pure

conformance: $(STAMP)-dev ## Run the tests with real clients, beside Mosquitto and RabbitMQ
	$(PYTEST) tests/conformance -m "not kafka_peer and not kafka_cluster and not package" $(ARGS)

conformance-kafka: $(STAMP)-dev ## Run the Kafka client scenarios on OneLog and on Apache Kafka
	@$(PY) -m bench.kafka_jars broker client-3 client-4 mirror streams
	$(PYTEST) $(addprefix tests/conformance/test_kafka_,clients_*.py admin_wire.py group_wire.py \
		txn_wire.py one_node_wire.py settings_clients.py streams.py mirror.py) -m "not kafka_cluster" $(ARGS)

conformance-cluster: $(STAMP)-dev ## Run the Kafka client scenarios on three nodes whose leaders move
	@sh tools/provision $(PYTHON) package etcd-server
	@$(PY) -m bench.kafka_jars client-3 client-4 mirror streams
	$(PYTEST) tests/conformance/test_kafka_*.py -m kafka_cluster $(ARGS)

conformance-amqp: $(STAMP)-dev ## Run the AMQP scenarios on OneLog and on RabbitMQ
	$(PYTEST) tests/conformance/test_amqp_*.py $(ARGS)

conformance-spark: $(STAMP)-dev ## Run every Spark test, also the long ones, the jars and the older Spark
	@$(PY) -m tests.spark.lines 4.1
	@$(PY) -m tests.spark.rest_catalog
	@$(PY) -m tests.spark.yarn
	$(PYTEST) tests/spark $(ARGS)
	PYTHONPATH=build/spark/pyspark-4.1 $(PYTEST) tests/spark -m "not spark_slow" $(ARGS)

conformance-stores: $(STAMP)-dev dev-stores ## Run the tests of object stores on stand-ins for Azure and Google Cloud, too
	$(PYTEST) tests/contract/test_object_store.py tests/fault/test_cloud_stores.py $(ARGS)

fuzz: $(STAMP)-dev ## Fuzz each decoder and each connection for ten minutes; ARGS='mqtt --seconds 60'
	$(PY) -m tests.fuzz $(ARGS)

fault: $(STAMP)-dev ## Kill processes and break disks, also for minutes
	$(PYTEST) -m "fault or fault_long" $(ARGS)

soak: $(STAMP)-dev ## Half an hour each: clients come and go, memory stays flat; the object store is killed again and again
	$(PYTEST) -m fault_long tests/fault/test_overload.py tests/fault/test_store_soak.py -s $(ARGS)

bench: bench-log bench-mqtt bench-kafka bench-amqp bench-views bench-spark ## Run every benchmark

bench-log: $(STAMP)-dev ## Measure the kernel, storage and cursors; prints a table, writes JSON
	$(PY) -m bench.log $(ARGS)

bench-mqtt: $(STAMP)-dev ## Measure MQTT against Mosquitto; prints a table, writes JSON
	@sh tools/provision $(PYTHON) package mosquitto
	$(PY) -m bench.mqtt

bench-kafka: $(STAMP)-dev ## Measure Kafka against Apache Kafka; prints a table, writes JSON
	@$(PY) -m bench.kafka_jars broker
	$(PY) -m bench.kafka $(ARGS)

bench-amqp: $(STAMP)-dev ## Measure AMQP against RabbitMQ; prints a table, writes JSON
	@sh tools/provision $(PYTHON) package rabbitmq-server
	$(PY) -m bench.amqp $(ARGS)

bench-views: $(STAMP)-dev ## Measure what views of all protocols on one log cost; prints a table, writes JSON
	@sh tools/provision $(PYTHON) package rabbitmq-server
	$(PY) -m bench.views $(ARGS)

bench-spark: $(STAMP)-dev ## Measure the Spark sources and sinks against Spark's own; prints a table, writes JSON
	$(PY) -m bench.spark $(ARGS)

bench-operate: $(STAMP)-dev ## Measure what it costs to run the broker safely; prints a table, writes JSON
	$(PY) -m bench.operate $(ARGS)

bench-object: $(STAMP)-dev ## Measure the log in an object store against raw requests; prints a table, writes JSON
	$(PY) -m bench.object $(ARGS)

bench-against: $(STAMP)-dev ## Measure this tree beside the commit BASE, per CPU; prints a table, writes JSON
	$(PY) -m bench.against --base $(BASE) $(ARGS)

bench-lockstep: $(STAMP)-dev ## Measure the broker's own CPU per message beside the commit BASE; prints a table, writes JSON
	$(PY) -m bench.lockstep --base $(BASE) $(ARGS)

bench-lone: $(STAMP)-dev ## Measure what a message that comes alone costs beside the commit BASE; prints a table, writes JSON
	$(PY) -m bench.lone --base $(BASE) $(ARGS)

bench-growth: $(STAMP)-dev ## Measure a message beside 1 to 10,000 topics, readers, queues, partitions; prints a table, writes JSON
	@sh tools/provision $(PYTHON) package mosquitto
	@sh tools/provision $(PYTHON) package rabbitmq-server
	@$(PY) -m bench.kafka_jars broker
	$(PY) -m bench.growth $(ARGS)

bench-cluster: $(STAMP)-dev ## Measure three nodes beside one and beside three of Apache Kafka; prints a table, writes JSON
	@sh tools/provision $(PYTHON) package etcd-server
	@$(PY) -m bench.kafka_jars broker
	$(PY) -m bench.cluster $(ARGS)

bench-page: $(STAMP)-dev ## Write docs/benchmarks.md anew from the newest result of each benchmark
	$(PY) -m bench.page $(ARGS)

package: $(STAMP)-dev console ## Build wheel and sdist into dist/; install both in empty environments and use them
	@rm -rf dist
	$(PY) tools/package.py dist
	@sh tools/provision $(PYTHON) helm
	$(PYTEST) tests/conformance/test_packages.py tests/conformance/test_deploy_schemas.py $(ARGS)

image-check: ## Build the container image in a chroot, without an engine, and use it (root, debootstrap)
	@sh tools/provision $(PYTHON) package debootstrap
	$(PYTHON) tools/image.py

constraints: $(STAMP)-dev $(STAMP)-site ## Write constraints.txt anew: the versions that are installed here
	$(PY) tools/pin.py

docs: $(STAMP)-dev ## Write the generated reference pages anew
	$(PY) tools/gen_config_docs.py
	$(PY) tools/gen_limits_docs.py
	$(PY) tools/gen_cli_docs.py

site: $(STAMP)-site ## Build the documentation as a site with search, into build/site
	@$(PY) tools/site.py build/site

clean: ## Remove the environment and everything that was built (not ./data)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info src/onelog/admin/static console/node_modules console/src/api/schema.ts
	find src/onelog/kernel -name '*.so' -delete
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment, in steps that are done once. A stamp is older than what it was made from
# when a step has to be done again.
$(STAMP)-venv:
	@sh tools/provision $(PYTHON)
	@echo "onelog: making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(STAMP)-run: $(STAMP)-venv pyproject.toml $(CONSTRAINTS) $(KERNEL)
	@echo "onelog: the first start installs what OneLog needs and compiles its kernel: two to five minutes, once"
	@echo "onelog: 1 of 2: installing the libraries that it needs"
	@$(PY) tools/dev_requirements.py --runtime | $(SEEN) $(PINNED)
	@echo "onelog: 2 of 2: compiling the kernel, the longest part"
	@# Where a compiler is, a kernel that does not compile is an error and not a slow server.
	@# pip shows nothing of a build that works: the build itself tells this shell how far it is.
	@if sh tools/provision $(PY) compiles; then export ONELOG_REQUIRE_NATIVE=1; fi; \
	    PIP_CONSTRAINT="$(CONSTRAINTS)" ONELOG_PROGRESS=/proc/$$$$/fd/1 $(PIP) install --editable .
	@$(PY) tools/report_kernel.py
	@touch $@

# Node for the console: the system's where it is new enough, else that of a package.
$(STAMP)-node: $(STAMP)-run
	@$(PY) tools/console.py --has-node || $(PY) tools/dev_requirements.py --console | $(PIP) $(PINNED) || \
	    echo "onelog: Node could not be installed: going on without the web console" >&2
	@touch $@

# The clients that the example of the guide is written with.
$(STAMP)-clients: $(STAMP)-run
	@$(PY) tools/dev_requirements.py paho-mqtt confluent-kafka pika | $(PIP) $(PINNED)
	@touch $@

# Nothing of OneLog itself: pages are built where no kernel is.
$(STAMP)-site: $(STAMP)-venv pyproject.toml $(CONSTRAINTS)
	@$(PY) tools/dev_requirements.py --site | $(PIP) $(PINNED)
	@touch $@

$(STAMP)-spark: $(STAMP)-run
	@echo "onelog: installing Spark: about 600 MB, some minutes, only the first time"
	@$(PY) tools/dev_requirements.py spark spark-connect | $(SEEN) $(PINNED)
	@touch $@

# The clients, Spark and what draws the picture of the pipeline's example.
$(STAMP)-pipeline: $(STAMP)-run
	@echo "onelog: installing Spark and the clients of the example: about 600 MB, some minutes, only the first time"
	@$(PY) tools/dev_requirements.py spark paho-mqtt pika matplotlib | $(SEEN) $(PINNED)
	@touch $@

$(STAMP)-dev: $(STAMP)-node
	@echo "onelog: installing what tests and checks need"
	@sh tools/provision $(PY) tests
	@$(TOGETHER) dev-python dev-js dev-java
	@touch $@

dev-python:
	@$(PY) tools/dev_requirements.py | $(PIP) $(PINNED)

# Clients of the conformance tests; without npm and Maven their tests are skipped.
dev-js:
	@if command -v npm >/dev/null 2>&1; then \
	    mkdir -p build/js && npm install --prefix build/js --silent --no-audit --no-fund $(JS_CLIENTS) || \
	    echo "onelog: JavaScript clients could not be installed: their tests are skipped" >&2; fi

dev-java:
	@if command -v mvn >/dev/null 2>&1; then $(PY) -m bench.kafka_jars client-3 client-4; \
	    $(PY) -m tests.conformance.amqp_jars; fi

# Stand-ins for clouds: 240 MB and 90 s of CPU, so `make setup` leaves them away. Their tests are skipped then.
dev-stores:
	@mkdir -p build/stores/bin
	@if test ! -d build/stores/node_modules/azurite && command -v npm >/dev/null 2>&1; then \
	    npm install --prefix build/stores --silent --no-audit --no-fund $(AZURITE) || \
	    echo "onelog: Azurite could not be installed: its tests are skipped" >&2; fi
	@if test ! -x build/stores/bin/fake-gcs-server && command -v go >/dev/null 2>&1; then \
	    GOBIN="$(CURDIR)/build/stores/bin" go install $(FAKE_GCS) || \
	    echo "onelog: fake-gcs-server could not be installed: its tests are skipped" >&2; fi
