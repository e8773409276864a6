"""One Spark session for all tests, and a real broker beside it.

Rules: one JVM for a run of pytest, since each takes seconds and half a gigabyte. Its classes are
kept in an archive under `build`, so that the second run starts in half of the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import onelog.spark
from tests.conformance.kafka_brokers import KafkaOnelog
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE
from tests.spark.jvm import local_settings
from tests.spark.processes import Cluster

# PySpark 4.1 leaves the socket files that it read results from to the collector; ours are of TCP.
SPARK_SOCKETS = "ignore:.*socket.socket fd=.*family=1:pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(SPARK_SOCKETS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[SparkSession]:
    """The session of every test; a test must not stop it or change its settings for good."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PySpark's own start, not of ours
        made = onelog.spark.session(
            "local[2]",
            name="tests",
            config={
                **local_settings(writes_archive=True),
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            },
        )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory) -> Iterator[KafkaOnelog]:
    """`onelog serve` for all tests; topics are told apart by name (`unique`)."""
    server = KafkaOnelog(tmp_path_factory.mktemp("broker"), GROUPS_AT_ONCE).start()
    yield server
    assert server.stop() == 0
    assert not server.errors()


@pytest.fixture
def own_broker(tmp_path) -> Iterator[KafkaOnelog]:
    """A broker of this test alone, to be stopped, killed and started again."""
    folder = tmp_path / "broker"
    folder.mkdir()
    server = KafkaOnelog(folder).start()
    yield server
    server.stop()


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    """A master and two workers of Spark."""
    made = Cluster(tmp_path)
    try:
        yield made.start(2)
    finally:
        made.stop()
