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

from onelog.pipelines import Workspace
from onelog.pipelines.spec import BrokerKeys
from onelog.pipelines.sql import Query
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


def test_spark_still_keeps_what_a_filter_left(spark, broker) -> None:
    """Why it is off unless one asks for it (ADR 10): when this fails, it can be on."""
    topic = make_topic(broker, unique("push"))
    append(broker, topic, 0, numbered(0, 10))
    given = {"servers": servers(broker), "subscribe": topic, "pushdown": "true"}
    frame = spark.read.format("onelog").options(**given).load()
    assert frame.where("offset >= 7").count() == 3
    assert frame.count() == 3  # of 10
    assert frame.where("offset < 2").union(frame.where("offset > 5")).count() == 4  # of 6


def tasks_of(answer) -> int:
    return answer._frame.rdd.getNumPartitions()


ONCE = "SELECT offset FROM topic('@') WHERE offset > 195"


@pytest.mark.parametrize(
    ("query", "offsets", "tasks"),
    [
        (ONCE, [196, 197, 198, 199], 1),
        (f"SELECT offset FROM ({ONCE}) WHERE offset < 198", [196, 197], 1),
        (f"{ONCE} UNION ALL SELECT offset FROM topic('@') WHERE offset < 2",
         [0, 1, 196, 197, 198, 199], 2),
        ("WITH t AS (SELECT * FROM topic('@')) SELECT offset FROM t WHERE offset < 2"
         " UNION ALL SELECT offset FROM t WHERE offset > 197", [0, 1, 198, 199], 4),
        ("WITH t AS (SELECT * FROM topic('@')) SELECT offset FROM t"
         " WHERE offset > (SELECT max(offset) - 2 FROM t WHERE offset < 50)"
         " AND offset < 50", [48, 49], 2),
        ("SELECT o.offset FROM topic('@') o WHERE o.offset > 197 AND (SELECT count(*)"
         " FROM topic('@') i WHERE i.offset < o.offset AND i.offset > 2) > 2", [198, 199], None),
    ],
    ids=["once", "nested", "two calls", "with", "scalar", "correlated"],
)  # fmt: skip
def test_sql_spares_reading_where_no_row_can_be_missed(
    spark, broker, tmp_path, query, offsets, tasks
) -> None:
    topic = make_topic(broker, unique("push"), partitions=1)
    append(broker, topic, 0, numbered(0, 100))
    append(broker, topic, 0, numbered(100, 100))
    place = Workspace(tmp_path, servers(broker), tmp_path)
    keys = BrokerKeys(options={"maxRecordsPerPartition": 100})
    answer = Query(spark, place, keys).ask(query.replace("@", topic))
    assert sorted(row[0] for row in answer.take(300)) == offsets
    assert tasks is None or tasks_of(answer) == tasks
    for view in spark.catalog.listTables():  # the session is that of other tests, too
        spark.catalog.dropTempView(view.name)


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
