"""Is every row in the topic once, seen by nobody before its batch is done, whatever fails?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.spark.sink_faults import FaultySource
from tests.spark.topics import append, make_topic, rows, servers
from tests.support.kafka_txn_clients import read
from tests.support.kafka_txn_talk import Talk

DEADLINE_S = 90


def values(broker: KafkaOnelog, topic: str) -> list[str]:
    return sorted(read(broker.port, topic))


OTHERS: set[str] = set()
"""Transactions of queries that other tests have stopped in the middle: they wait for their end."""


@pytest.fixture(autouse=True)
def others(broker: KafkaOnelog) -> None:
    OTHERS.clear()
    OTHERS.update(left_open(broker))


def left_open(broker: KafkaOnelog) -> list[str]:
    """Transactions of this test's sinks that are not over."""
    with Talk(broker.port) as talk:
        answer = talk.wire.ask(66, 0, state_filters=[], producer_id_filters=[])
        found = [row.transactional_id for row in answer.transaction_states]
    return [name for name in found if name.startswith("~link/") and name not in OTHERS]


# -- jobs


def save(frame: DataFrame, broker: KafkaOnelog, topic: str, **options: str) -> None:
    writer = frame.write.format("onelog").mode("append")
    writer.options(servers=servers(broker), topic=topic, **options).save()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr(
        "cast(id as string) as key", "encode(cast(id as string), 'utf-8') as value"
    )


def test_the_rows_of_a_job_are_in_the_topic_and_can_be_read_back(spark, broker):
    topic = unique("job")
    save(numbers(spark, 100), broker, topic, compression="zstd")
    assert values(broker, topic) == sorted(map(str, range(100)))
    back = spark.read.format("onelog").options(servers=servers(broker), subscribe=topic).load()
    assert back.selectExpr("cast(value as string) v").distinct().count() == 100
    copy = unique("copy")
    back.drop("topic").write.format("onelog").mode("append").options(
        servers=servers(broker), topic=copy
    ).save()
    assert values(broker, copy) == values(broker, topic)
    assert left_open(broker) == []


def test_a_job_that_is_run_again_under_its_number_writes_nothing(spark, broker):
    topic, query = unique("job"), unique("query")
    for number in ("1", "1", "2", "1"):
        save(numbers(spark, 10), broker, topic, queryId=query, batchId=number)
    assert values(broker, topic) == sorted([*map(str, range(10))] * 2)


def test_nothing_is_seen_of_a_job_that_fails(spark, broker):
    topic = unique("job")
    good = numbers(spark, 3000)
    bad = good.selectExpr("key", "if(key = '2999', raise_error('bad row'), value) as value")
    with pytest.raises(PySparkException, match="bad row"):
        save(bad, broker, topic, batchBytes="1024")
    assert values(broker, topic) == []
    assert left_open(broker) == []
    save(good, broker, topic)
    assert len(values(broker, topic)) == 3000


@pytest.mark.parametrize(
    ("columns", "mode", "options", "said"),
    [
        (["key"], "append", {}, "column value is missing"),
        (["key", "value"], "overwrite", {}, "a log cannot be overwritten"),
        (["key", "value"], "append", {"topik": "x"}, "did you mean topic"),
        (["key", "value"], "append", {"compression": "rar"}, "not one of none, gzip"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    spark, broker, columns, mode, options, said
):
    writer = numbers(spark, 1).select(*columns).write.format("onelog").mode(mode)
    with pytest.raises(PySparkException, match=said):
        writer.options(servers=servers(broker), topic="t", **options).save()


# -- queries


class Copy:
    """A query from one topic to another, which can be started again."""

    def __init__(self, spark: SparkSession, broker: KafkaOnelog, folder: Path) -> None:
        self._spark, self._broker, self._folder = spark, broker, folder
        self.source, self.target = make_topic(broker, unique("from")), unique("to")
        self.faults = folder / "faults"
        self.faults.mkdir()
        self._written = 0

    def write(self, count: int) -> None:
        """More rows to copy."""
        names = [f"{self._written + at}" for at in range(count)]
        self._written += count
        append(self._broker, self.source, 0, rows(*names[::2]))
        append(self._broker, self.source, 1, rows(*names[1::2]))

    def run(self, fault: str = "") -> None:
        """Copy all there is; a fault that a test asks for has to come."""
        if fault:
            (self.faults / fault).touch()
        reading = self._spark.readStream.format("onelog")
        frame = reading.options(
            servers=servers(self._broker),
            subscribe=self.source,
            includeHeaders="true",
            startingOffsets="earliest",
        ).load()
        query = (
            frame.select("key", "value", "headers")
            .writeStream.format("onelog-faulty")
            .options(servers=servers(self._broker), topic=self.target, faults=str(self.faults))
            .option("batchBytes", "1024")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(DEADLINE_S), query.lastProgress
        finally:
            query.stop()
            assert not list(self.faults.iterdir()), "the fault did not come"

    def forget_last_commit(self) -> None:
        """As a driver that died before it could write down that the batch is done."""
        commits = self._folder / "checkpoint" / "commits"
        last = max(int(row.name) for row in commits.iterdir() if row.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def check(self) -> None:
        """Rows = distinct = expected."""
        assert values(self._broker, self.target) == sorted(map(str, range(self._written)))
        assert left_open(self._broker) == []


@pytest.fixture
def make_copy(spark, tmp_path) -> Callable[[KafkaOnelog], Copy]:
    spark.dataSource.register(FaultySource)
    return lambda broker: Copy(spark, broker, tmp_path)


@pytest.fixture
def copy(make_copy, broker) -> Copy:
    made: Copy = make_copy(broker)
    return made


def test_a_query_copies_each_row_once_and_drops_a_batch_that_is_run_again(copy: Copy, broker):
    for _ in range(2):
        copy.write(50)
        copy.run()
        copy.check()
    before = broker.metric("onelog_kafka_links_replayed_total")
    copy.forget_last_commit()
    copy.run()
    copy.check()
    assert broker.metric("onelog_kafka_links_replayed_total") == before + 1


slow = pytest.mark.spark_slow


@pytest.mark.parametrize(
    "fault",
    [
        "commit-dies-after",
        pytest.param("commit-dies-before", marks=slow),
        pytest.param("task-fails", marks=slow),
        pytest.param("worker-dies", marks=slow),
    ],
)
def test_a_process_that_dies_costs_a_restart_and_no_row(copy: Copy, fault: str):
    """Spark aborts a batch whose commit failed, also one that took effect."""
    copy.write(50)
    copy.run()
    copy.write(50)
    with pytest.raises(StreamingQueryException):
        copy.run(fault)
    copy.run()
    copy.check()


@slow
def test_a_broker_that_dies_between_batches_loses_no_row(make_copy, own_broker):
    copy = make_copy(own_broker)
    for again in (False, True):
        copy.write(20)
        copy.run()
        if again:
            copy.forget_last_commit()
        own_broker.kill()
        own_broker.start()
    copy.run()
    copy.check()
