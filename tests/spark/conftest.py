"""One Spark session for all tests, and a real broker beside it.

Rules: one JVM for a run of pytest, since each takes seconds and half a gigabyte. Its classes are
kept in an archive under `build`, so that the second run starts in half of the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

import onelog.spark
from tests.conformance.kafka_brokers import KafkaOnelog

ROOT = Path(__file__).resolve().parents[2]
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
"""A JVM that lives for a minute does not repay the second compiler and the parallel collector."""

# PySpark 4.1 leaves the socket files that it read results from to the collector; ours are of TCP.
SPARK_SOCKETS = "ignore:.*socket.socket fd=.*family=1:pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(SPARK_SOCKETS))


def class_archive() -> str:
    """Use the archive of classes, or write it when the JVM ends."""
    path = ROOT / "build" / "spark" / f"classes-{spark_version}.jsa"
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"-XX:SharedArchiveFile={path}" if path.exists() else f"-XX:ArchiveClassesAtExit={path}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[SparkSession]:
    """The session of every test; a test must not stop it or change its settings for good."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PySpark's own start, not of ours
        made = onelog.spark.session(
            "local[2]",
            name="tests",
            config={
                "spark.driver.extraJavaOptions": " ".join((*SHORT_LIVED, class_archive())),
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "1g",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            },
        )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory) -> Iterator[KafkaOnelog]:
    """`onelog serve` for all tests; topics are told apart by name (`unique`)."""
    server = KafkaOnelog(
        tmp_path_factory.mktemp("broker"), "kafka.groups.initial_rebalance_delay_ms=0"
    ).start()
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
