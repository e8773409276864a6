"""Do filters spare reading, and does every row that matches still come?"""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from onelog.spark.source.planning import Slice
from onelog.spark.source.pushdown import apply, narrow
from tests.conformance.kafka_brokers import unique
from tests.spark.topics import append, make_topic, numbered, servers

SLICES = [Slice("t", "t", 0, 0, 100), Slice("t", "t", 1, 50, 60), Slice("u", "u", 0, 0, 10)]


class Clock:
    """A broker that has a record every millisecond."""

    def offsets(self, asked):
        return {part: at if at < 100 else -1 for part, at in asked.items()}


def left(*filters):
    kept = apply(narrow(filters), SLICES, Clock())
    return [(row.topic, row.partition, row.start, row.end) for row in kept]


def at(millis: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(millis / 1000, datetime.UTC)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], [("t", 0, 0, 100), ("t", 1, 50, 60), ("u", 0, 0, 10)]),
        ([EqualTo(("topic",), "u")], [("u", 0, 0, 10)]),
        ([In(("topic",), ("u", "x")), EqualTo(("partition",), 1)], []),
        ([EqualTo(("partition",), 1)], [("t", 1, 50, 60)]),
        ([GreaterThan(("partition",), 0)], [("t", 1, 50, 60)]),
        ([GreaterThanOrEqual(("offset",), 55)], [("t", 0, 55, 100), ("t", 1, 55, 60)]),
        ([GreaterThan(("offset",), 55), LessThan(("offset",), 57)],
         [("t", 0, 56, 57), ("t", 1, 56, 57)]),
        ([LessThanOrEqual(("offset",), 2)], [("t", 0, 0, 3), ("u", 0, 0, 3)]),
        ([EqualTo(("offset",), 9)], [("t", 0, 9, 10), ("u", 0, 9, 10)]),
        ([GreaterThanOrEqual(("timestamp",), at(55))], [("t", 0, 55, 100), ("t", 1, 55, 60)]),
        ([GreaterThan(("timestamp",), at(500))], []),
        ([LessThan(("timestamp",), at(5))], [("t", 0, 0, 100), ("t", 1, 50, 60), ("u", 0, 0, 10)]),
        ([IsNotNull(("value",)), StringContains(("topic",), "t"), EqualTo(("value", "offset"), 1)],
         [("t", 0, 0, 100), ("t", 1, 50, 60), ("u", 0, 0, 10)]),
    ],
)  # fmt: skip
def test_filters_narrow_what_is_read(filters, found) -> None:
    assert left(*filters) == found


def test_spark_reads_less_and_finds_the_same(spark, broker) -> None:
    topic = make_topic(broker, unique("push"))
    append(broker, topic, 0, numbered(0, 100))
    append(broker, topic, 1, numbered(100, 100))

    def frame(**more: str):
        given = {"servers": servers(broker), "subscribe": topic, "maxRecordsPerPartition": "10"}
        return spark.read.format("onelog").options(**given, **more).load()

    for condition, rows, tasks in (
        ("partition = 1 AND offset >= 95", 5, 1),
        ("timestamp >= timestamp_millis(1090)", 20, 2),
        ("topic = 'other'", 0, 1),
    ):
        for pushdown, expected in (("true", tasks), ("false", 20)):
            chosen = frame(pushdown=pushdown).where(condition)
            assert chosen.count() == rows
            assert chosen.rdd.getNumPartitions() == expected


def test_a_frame_is_good_for_many_queries(spark, broker) -> None:
    """Spark 4.3 keeps what a filter left for the next query: not unless one asks for it."""
    topic = make_topic(broker, unique("push"))
    append(broker, topic, 0, numbered(0, 10))
    frame = spark.read.format("onelog").options(servers=servers(broker), subscribe=topic).load()
    assert frame.where("offset >= 7").count() == 3
    assert frame.count() == 10
    assert frame.where("offset < 2").union(frame.where("offset > 5")).count() == 6


def test_a_session_that_offers_no_filters_reads_all_the_same(spark, broker) -> None:
    topic = make_topic(broker, unique("push"))
    append(broker, topic, 0, numbered(0, 10))
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "false")
    try:
        frame = spark.read.format("onelog").options(servers=servers(broker), subscribe=topic).load()
        assert frame.where("offset >= 7").count() == 3
    finally:
        spark.conf.set(name, before)
