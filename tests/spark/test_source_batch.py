"""Does a batch read exactly what lies between two places, in the columns that it should have?"""

from __future__ import annotations

import datetime
import json

import paho.mqtt.client as mqtt
import pytest
from pyspark.sql.functions import spark_partition_id

from onelog.kafka_client import Client, fetch_request
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import unique
from tests.spark.topics import access, append, make_topic, numbered, row, rows, servers


@pytest.fixture
def read(spark, broker):
    def start(**options):
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        return spark.read.format("onelog").options(servers=servers(broker), **named)

    return start


@pytest.fixture
def topic(broker) -> str:
    return make_topic(broker, unique("batch"))


def values(frame, column="value"):
    return sorted(bytes(found[0]).decode() for found in frame.select(column).collect())


def test_records_come_with_the_columns_of_the_kafka_source(broker, read, topic) -> None:
    append(broker, topic, 0, [row("a", time_ms=1500), row(None, None)])
    append(broker, topic, 1, [row("", b"", 2000)])
    frame = read(subscribe=topic).load()
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"),
        ("offset", "bigint"), ("timestamp", "timestamp"), ("timestampType", "int"),
    ]  # fmt: skip
    found = sorted(frame.collect(), key=lambda row: (row.partition, row.offset))
    moment = datetime.datetime.fromtimestamp
    assert [tuple(row) for row in found] == [
        (b"k", b"a", topic, 0, 0, moment(1.5), 0),
        (None, None, topic, 0, 1, moment(1.0), 0),
        (b"", b"", topic, 1, 0, moment(2.0), 0),
    ]


def test_headers_come_when_they_are_asked_for(broker, read, topic) -> None:
    headers = ((b"h", b"1"), (b"h", None))
    append(broker, topic, 0, [row("a", headers=headers), row("b")])
    frame = read(subscribe=topic, includeHeaders="true").load()
    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    found = {row.value: row.headers for row in frame.collect()}
    assert [tuple(header) for header in found[b"a"]] == [("h", b"1"), ("h", None)]
    assert found[b"b"] == []


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_are_read(broker, read, topic, codec) -> None:
    append(broker, topic, 0, numbered(0, 100), codec=codec)
    assert values(read(subscribe=topic).load()) == sorted(f"v{n}" for n in range(100))


def test_columns_chooses_what_is_made(broker, read, topic) -> None:
    append(broker, topic, 0, rows("a", "b"))
    frame = read(subscribe=topic, columns="offset, value").load()
    assert [tuple(row) for row in frame.sort("offset").collect()] == [(0, b"a"), (1, b"b")]


def test_a_schema_chooses_columns_too(broker, read, topic) -> None:
    append(broker, topic, 0, rows("a"))
    frame = read(subscribe=topic).schema("value binary, partition int").load()
    assert [tuple(row) for row in frame.collect()] == [(b"a", 0)]


def test_several_topics_a_pattern_and_partitions(broker, read) -> None:
    one, two = make_topic(broker, unique("many")), make_topic(broker, unique("many"))
    for name in (one, two):
        append(broker, name, 0, rows(f"{name}-0"))
        append(broker, name, 1, rows(f"{name}-1"))
    assert len(values(read(subscribe=f"{one}, {two}").load())) == 4
    assert values(read(subscribePattern=f"{one}|nothing.*").load()) == [f"{one}-0", f"{one}-1"]
    assert values(read(assign=json.dumps({two: [1]})).load()) == [f"{two}-1"]
    assert values(read(subscribePattern="nothing.at.all").load()) == []


def test_offsets_say_from_where_to_where(broker, read, topic) -> None:
    append(broker, topic, 0, numbered(0, 10))
    append(broker, topic, 1, numbered(10, 10))
    starts = json.dumps({topic: {"0": 8, "1": -2}})
    ends = json.dumps({topic: {"0": -1, "1": 2}})
    found = read(subscribe=topic, startingOffsets=starts, endingOffsets=ends).load()
    assert values(found) == ["v10", "v11", "v8", "v9"]


def test_times_say_from_where_to_where(broker, read, topic) -> None:
    append(broker, topic, 0, numbered(0, 10))
    append(broker, topic, 1, [row("late", time_ms=9000)])
    assert values(read(subscribe=topic, startingTimestamp=1008).load()) == ["late", "v8", "v9"]
    assert values(read(subscribe=topic, startingTimestamp=1003, endingTimestamp=1005).load()) == [
        "v3",
        "v4",
    ]
    each = json.dumps({topic: {"0": 1009, "1": 8000}})
    assert values(read(subscribe=topic, startingOffsetsByTimestamp=each).load()) == ["late", "v9"]


def test_a_time_that_no_record_has_reached_is_told_or_is_the_end(broker, read, topic) -> None:
    append(broker, topic, 0, numbered(0, 10))
    append(broker, topic, 1, [row("late", time_ms=9000)])
    with pytest.raises(Exception, match=f"{topic}-0 has no record at 5000 ms or later"):
        read(subscribe=topic, startingTimestamp=5000).load().count()
    lenient = read(
        subscribe=topic, startingTimestamp=5000, startingOffsetsByTimestampStrategy="latest"
    )
    assert values(lenient.load()) == ["late"]


def test_aborted_transactions_and_markers_are_left_out(broker, read, topic) -> None:
    append(broker, topic, 0, rows("before"))
    with Client(access(broker)) as client:
        for commit in (True, False, True, False):
            name = unique("txn")
            producer = client.init_producer(name, 60_000)
            client.add_partitions(name, producer, [(topic, 0)])
            data = build_batch(
                rows(f"{commit}"), attributes=ATTR_TRANSACTIONAL, producer=(*producer, 0)
            )
            client.produce({(topic, 0): data}, name)
            client.end(name, producer, commit=commit)
    append(broker, topic, 0, rows("after"))
    with Client(access(broker)) as client:  # the last marker is in when this is stable
        client.fetch(fetch_request({(topic, 0): 9}, bytes_max=1, part_bytes_max=1, wait_ms=5000))
    assert values(read(subscribe=topic).load()) == ["True", "True", "after", "before"]


@pytest.mark.parametrize("least", [1, 3, 7])
def test_min_partitions_cuts_and_loses_nothing(broker, read, topic, least) -> None:
    append(broker, topic, 0, numbered(0, 50))
    append(broker, topic, 1, numbered(50, 30))
    frame = read(subscribe=topic, minPartitions=least).load()
    assert frame.rdd.getNumPartitions() >= least
    assert values(frame) == sorted(f"v{n}" for n in range(80))


def test_a_task_has_no_more_records_than_is_said(broker, read, topic) -> None:
    append(broker, topic, 0, numbered(0, 25))
    frame = read(subscribe=topic, maxRecordsPerPartition=10).load()
    sizes = frame.groupBy(spark_partition_id()).count().collect()
    assert sorted(row["count"] for row in sizes) == [8, 8, 9]


def test_a_view_of_a_filter_shows_each_topic(broker, read) -> None:
    base = unique("view")
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker.ports["mqtt"])
    client.loop_start()
    for device in ("d1", "d2"):
        for kind in ("t", "other"):
            client.publish(f"{base}/{device}/{kind}", f"{device}-{kind}", 1).wait_for_publish(10)
    client.loop_stop()
    client.disconnect()
    # A topic that Kafka made has a stream of its own: its records do not carry their topic.
    made = make_topic(broker, f"{base}.d3.t", 1)
    append(broker, made, 0, rows("d3-t"))
    frame = read(filter=f"{base}/+/t").load().select("topic", "value")
    assert sorted(map(tuple, frame.collect())) == [
        (f"{base}/d1/t", b"d1-t"), (f"{base}/d2/t", b"d2-t"), (f"{base}/d3/t", b"d3-t"),
    ]  # fmt: skip
    exact = read(subscribe=f"{base}/d1/t").load().select("topic", "value")
    assert list(map(tuple, exact.collect())) == [(f"{base}/d1/t", b"d1-t")]


def test_sql_reads_a_topic(spark, broker, topic) -> None:
    append(broker, topic, 0, rows("a"))
    spark.sql(
        f"CREATE TEMPORARY VIEW {topic} USING onelog"
        f" OPTIONS (servers '{servers(broker)}', subscribe '{topic}')"
    )
    found = spark.sql(f"SELECT CAST(value AS STRING) v FROM {topic} WHERE offset = 0").collect()
    assert [row.v for row in found] == ["a"]
