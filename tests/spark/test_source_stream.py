"""Does a stream read everything once, so much at a time, over restarts, and say how far it is?"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from onelog.kafka_client import Client
from onelog.spark import lag
from tests.conformance.kafka_brokers import unique
from tests.spark.topics import access, append, make_topic, numbered, rows, servers

HAS_LIMITS = not pyspark.__version__.startswith("4.1.")
needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="PySpark 4.1 has no limits for sources")
DEADLINE_S = 90.0


class Run:
    """A query into memory, and what it read, batch by batch."""

    def __init__(self, query: Any, spark: Any, name: str) -> None:
        self.query = query
        self._spark = spark
        self._name = name

    def values(self) -> list[str]:
        found = self._spark.sql(f"SELECT CAST(value AS STRING) v FROM {self._name}").collect()
        return sorted(row.v for row in found)

    def wait(self, done: Callable[[], bool]) -> None:
        ends = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < ends, self.query.lastProgress
            failed = self.query.exception()
            if failed is not None:
                raise failed
            self.query.awaitTermination(0.1)

    def sizes(self) -> list[int]:
        return [row["numInputRows"] for row in self.query.recentProgress if row["numInputRows"]]


@pytest.fixture
def start(spark, broker, tmp_path) -> Iterator[Callable[..., Run]]:
    """Start a query; the same checkpoint goes on where the last one was."""
    running: list[Any] = []

    def begin(
        trigger: dict[str, Any] | None = None,
        folder: str = "ck",
        server: Any = None,
        **options: Any,
    ) -> Run:
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        frame = (
            spark.readStream.format("onelog")
            .options(servers=servers(server or broker), **named)
            .load()
        )
        name = unique("run")
        query = (
            frame.writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", str(tmp_path / folder))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )
        running.append(query)
        return Run(query, spark, name)

    yield begin
    for query in running:
        query.stop()


@pytest.fixture
def topic(broker) -> str:
    return make_topic(broker, unique("stream"))


def test_what_is_appended_while_it_runs_comes_once(broker, start, topic) -> None:
    append(broker, topic, 0, numbered(0, 10))
    run = start(subscribe=topic, startingOffsets="earliest")
    run.wait(lambda: len(run.values()) == 10)
    append(broker, topic, 1, numbered(10, 10))
    run.wait(lambda: len(run.values()) == 20)
    assert run.values() == sorted(f"v{n}" for n in range(20))


def test_a_stream_starts_at_the_end_unless_told(broker, start, topic) -> None:
    append(broker, topic, 0, rows("old"))
    run = start(subscribe=topic)
    run.wait(lambda: run.query.lastProgress is not None)
    append(broker, topic, 0, rows("new"))
    run.wait(lambda: bool(run.values()))
    assert run.values() == ["new"]


@needs_limits
def test_a_backlog_is_read_so_much_at_a_time(broker, start, topic) -> None:
    append(broker, topic, 0, numbered(0, 70))
    append(broker, topic, 1, numbered(70, 30))
    run = start(
        {"availableNow": True}, subscribe=topic, startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
    )  # fmt: skip
    assert run.query.awaitTermination(DEADLINE_S)
    assert run.sizes() == [40, 40, 20]
    assert run.values() == sorted(f"v{n}" for n in range(100))


@needs_limits
def test_a_backlog_is_read_so_many_bytes_at_a_time(broker, start, topic) -> None:
    for first in range(0, 4000, 500):
        append(broker, topic, 0, rows(*(f"{n:0100}" for n in range(first, first + 500))))
    run = start(
        {"availableNow": True}, subscribe=topic, startingOffsets="earliest",
        maxBytesPerTrigger=100_000,
    )  # fmt: skip
    assert run.query.awaitTermination(DEADLINE_S)
    assert sum(run.sizes()) == 4000
    assert all(700 <= size <= 1000 for size in run.sizes()[:-1]), run.sizes()


@needs_limits
def test_few_records_are_waited_for_but_not_for_ever(broker, start, topic) -> None:
    run = start(
        subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=10,
        maxTriggerDelay="3s",
    )  # fmt: skip
    run.wait(lambda: run.query.lastProgress is not None)
    append(broker, topic, 0, numbered(0, 10))
    run.wait(lambda: len(run.values()) == 10)
    began = time.monotonic()
    append(broker, topic, 0, numbered(10, 1))
    run.wait(lambda: len(run.values()) == 11)
    assert time.monotonic() - began > 1.5


@needs_limits
def test_available_now_ends_at_what_was_there(broker, start, topic) -> None:
    append(broker, topic, 0, numbered(0, 10))
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
    first = start({"availableNow": True}, **options)
    assert first.query.awaitTermination(DEADLINE_S)
    append(broker, topic, 1, numbered(10, 5))
    assert len(first.values()) == 10


def test_group_offsets_show_how_far_it_is(broker, start, topic) -> None:
    append(broker, topic, 0, numbered(0, 10))
    group = unique("group")
    run = start(subscribe=topic, startingOffsets="earliest", group__id=group)
    with Client(access(broker)) as client:
        parts = [(topic, 0), (topic, 1)]
        run.wait(lambda: client.committed(group, parts).get((topic, 0)) == 10)
        append(broker, topic, 1, numbered(10, 5))
        run.wait(lambda: client.committed(group, parts) == {(topic, 0): 10, (topic, 1): 5})


@needs_limits
def test_last_progress_has_the_lag(broker, start, topic) -> None:
    append(broker, topic, 0, numbered(0, 100))
    run = start(
        {"processingTime": "1 hour"}, subscribe=topic, startingOffsets="earliest",
        maxOffsetsPerTrigger=30,
    )  # fmt: skip
    run.wait(lambda: run.query.lastProgress is not None)
    assert lag(json.loads(run.query.lastProgress.json)) == 70


def test_a_new_partition_is_read_from_its_beginning(broker, start, topic) -> None:
    append(broker, topic, 0, rows("a"))
    run = start(subscribe=topic, startingOffsets="earliest")
    run.wait(lambda: run.values() == ["a"])
    admin = AdminClient({"bootstrap.servers": servers(broker)})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    append(broker, topic, 2, rows("b"))
    run.wait(lambda: run.values() == ["a", "b"])


def test_a_new_topic_of_a_pattern_is_read_from_its_beginning(broker, start) -> None:
    base = unique("patterned")
    first = make_topic(broker, f"{base}-one")
    append(broker, first, 0, rows("a"))
    run = start(subscribePattern=f"{base}-.*", startingOffsets="earliest")
    run.wait(lambda: run.values() == ["a"])
    second = make_topic(broker, f"{base}-two")
    append(broker, second, 0, rows("b"))
    run.wait(lambda: run.values() == ["a", "b"])


def parquet(spark: Any, source: dict[str, str], out: Path, checkpoint: Path, **trigger: Any) -> Any:
    return (
        spark.readStream.format("onelog").options(**source).load()
        .selectExpr("CAST(value AS STRING) v", "partition", "offset")
        .writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        .trigger(**trigger).start(str(out))
    )  # fmt: skip


def test_a_restart_goes_on_where_it_was(spark, broker, topic, tmp_path) -> None:
    source = {"servers": servers(broker), "subscribe": topic, "startingOffsets": "earliest"}
    out, checkpoint = tmp_path / "out", tmp_path / "ck"
    expected = 0
    for count in (10, 0, 25):
        if count:
            append(broker, topic, count % 2, numbered(expected, count))
        expected += count
        query = parquet(spark, source, out, checkpoint, availableNow=True)
        assert query.awaitTermination(DEADLINE_S)
        found = [row.v for row in spark.read.parquet(str(out)).collect()]
        assert sorted(found) == sorted(f"v{n}" for n in range(expected))


def test_a_broker_restart_in_the_middle_of_a_micro_batch_is_lived_through(
    spark, own_broker, tmp_path
) -> None:
    topic = make_topic(own_broker, "t", 2)
    for first in range(0, 200_000, 10_000):
        append(own_broker, topic, (first // 10_000) % 2, numbered(first, 10_000))
    source = {"servers": servers(own_broker), "subscribe": topic, "startingOffsets": "earliest"}
    out = tmp_path / "out"
    killed = threading.Event()

    def slow(frame: Any, batch_id: int) -> None:
        # The tasks read while the broker dies and comes back.
        def restart() -> None:
            own_broker.kill()
            killed.set()
            own_broker.start()

        thread = None
        if not killed.is_set():
            thread = threading.Timer(0.3, restart)
            thread.start()
        frame.selectExpr("CAST(value AS STRING) v").write.mode("append").parquet(str(out))
        if thread is not None:
            thread.join()

    query = (
        spark.readStream.format("onelog").options(**source, splitBytes="65536").load()
        .writeStream.foreachBatch(slow).option("checkpointLocation", str(tmp_path / "ck"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(DEADLINE_S)
    assert killed.is_set()
    found = spark.read.parquet(str(out))
    assert (found.count(), found.distinct().count()) == (200_000, 200_000)
