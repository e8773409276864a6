"""Rows of the sink without Spark's JVM: columns, partitions, batches, and what is refused."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from onelog.base.errors import (
    ConfigError,
    InvalidName,
    InvalidRequest,
    InvalidTxnState,
    MessageTooLarge,
    TopicNotFound,
    Unavailable,
)
from onelog.base.names import to_dotted
from onelog.cli.talk.kafka import murmur2 as murmur2_of_one
from onelog.kafka_client import Client
from onelog.spark.sink.columns import Layout, Rows, header_rows, layout_of
from onelog.spark.sink.linking import Batch, Member, link
from onelog.spark.sink.options import SinkOptions, sink_options
from onelog.spark.sink.spreading import murmur2, spread
from onelog.spark.sink.staging import Staging
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.conformance.mqtt_brokers import environment
from tests.cross.clients import Mqtt, Said
from tests.support.kafka_txn_clients import DEADLINE_S, read, reader

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS,
    "topic": pa.string(),
    "partition": pa.int32(),
}
ALL = Layout(*range(5))


def rows(*found: dict[str, Any]) -> pa.RecordBatch:
    """Rows with every column; what is not said is null."""
    columns = [pa.array([row.get(name) for row in found], kind) for name, kind in TYPES.items()]
    return pa.record_batch(columns, list(TYPES))


# -- what the columns have to be


PAIRS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "varchar": VarcharType(3),
    "int": IntegerType(),
    "bigint": LongType(),
    "struct": StructType([StructField("a", IntegerType())]),
    "map": MapType(StringType(), BinaryType()),
    "time": TimestampType(),
    "pairs": PAIRS,
    "void": NullType(),
}


def schema_of(columns: str) -> StructType:
    """`name:kind` of each column."""
    pairs = (column.split(":") for column in columns.split())
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ("key:string", "t", "column value is missing"),
        ("a:int b:int", "t", "the rows have a, b"),
        ("value:int", "t", "column value is int, and has to be string or binary"),
        ("value:string key:struct", "t", "column key is struct<a:int>"),
        ("value:string headers:map", "t", "column headers is map"),
        ("value:string partition:bigint topic:string", None, "column partition is bigint"),
        ("value:string", None, "option topic, or the rows a column topic"),
        ("value:string topic:void", None, "column topic is void"),
        ("value:string VALUE:binary", "t", "column value twice"),
        ("value:void", "t", "column value is void"),
    ],
)
def test_wrong_and_missing_columns_are_named(columns: str, topic: str | None, said: str):
    with pytest.raises(InvalidRequest, match=said):
        layout_of(schema_of(columns), topic)


def test_columns_are_found_whatever_their_place_and_others_are_left_alone():
    schema = schema_of(
        "offset:bigint topic:string Key:binary timestamp:time value:varchar partition:int"
        " headers:pairs"
    )
    assert layout_of(schema, None) == Layout(value=4, key=2, headers=6, topic=1, partition=5)
    assert layout_of(schema, "t").topic is None, "the option counts for all rows"
    nulls = schema_of("value:string key:void headers:void partition:void")
    assert layout_of(nulls, "t") == Layout(0, None, None, None, None)


# -- partitions


def test_the_hash_of_a_column_is_that_of_each_key():
    chance = random.Random(7)
    keys = [chance.randbytes(chance.randrange(40)) for _ in range(500)]
    column = pa.array([b"before", *keys, None], pa.binary()).slice(1)
    found = (murmur2(column) & 0x7FFF_FFFF).tolist()
    assert found == [murmur2_of_one(key) for key in (*keys, b"")]
    assert murmur2(pa.array([], pa.binary())).tolist() == []
    assert murmur2(column.slice(3, 0)).tolist() == []


def test_the_size_of_a_row_counts_its_own_bytes_and_none_of_a_null():
    ends = pa.py_buffer(np.array([0, 2, 5, 9, 9], np.int32).tobytes())
    valid = pa.py_buffer(bytes([0b1011]))  # the third is null although it has four bytes
    column = pa.Array.from_buffers(pa.binary(), 4, [valid, ends, pa.py_buffer(b"aabbbcccc")])
    told = Rows(column.slice(1), column.slice(1), None).sizes()
    plain = Rows(pa.array([b""], pa.binary()), None, None).sizes()[0]
    assert (told - plain).tolist() == [6, 0, 0]
    assert Rows(pa.array([], pa.binary()), None, None).sizes().tolist() == []


def test_headers_count_whatever_type_arrow_has_for_them():
    pairs = [[{"key": "a", "value": b"12"}], None, [{"key": "bc", "value": None}] * 2]
    large = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    values = pa.array([b""] * 3, pa.binary())
    told = [Rows(values, None, pa.array(pairs, kind)).sizes().tolist() for kind in (HEADERS, large)]
    assert told[0] == told[1]
    assert [size - told[0][1] for size in told[0]] == [13, 0, 24]


def test_keys_go_where_librdkafka_puts_them(broker: KafkaOnelog):
    keys = [b"key-%d" % number for number in range(50)]
    topic, places = unique(), {}
    made = Producer(
        {"bootstrap.servers": f"127.0.0.1:{broker.port}", "partitioner": "murmur2_random"}
    )
    for key in keys:
        made.produce(
            topic,
            b"",
            key,
            on_delivery=lambda _error, message: places.update({message.key(): message.partition()}),
        )
    assert made.flush(DEADLINE_S) == 0
    assert spread(pa.array(keys), None, 4, 0, topic).tolist() == [places[key] for key in keys]


def test_a_row_goes_where_it_says_then_by_its_key_then_in_turn():
    keys = pa.array([b"a", None, b"a", None], pa.binary())
    by_key = int(murmur2_of_one(b"a") % 4)
    assert spread(keys, None, 4, 6, "t").tolist() == [by_key, 2, by_key, 2]
    wanted = pa.array([3, 1, None, None], pa.int32())
    assert spread(keys, wanted, 4, 6, "t").tolist() == [3, 1, by_key, 2]
    assert spread(None, wanted, 4, 6, "t").tolist() == [3, 1, 2, 2]
    assert spread(None, None, 4, 6, "t") == 2
    assert spread(keys, None, 1, 6, "t") == 0
    for number in (4, -1):
        with pytest.raises(InvalidRequest, match=f"partition {number} of t, which has 4"):
            spread(keys, pa.array([0, 0, number, 0], pa.int32()), 4, 0, "t")


# -- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "servers is missing"),
        ({"topics": "t"}, "did you mean topic"),
        ({"topic": ""}, "topic: it is empty"),
        ({"queryId": "q"}, "belong together"),
        ({"queryId": "a/b", "batchId": "1"}, "no /"),
        ({"queryId": "q", "batchId": "-1"}, "not a number from 0"),
        ({"compression": "rar"}, "not one of none, gzip"),
        ({"batchBytes": "1"}, "not a number from"),
        ({"transactionTimeoutMs": "1"}, "not a number from"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], said: str):
    servers = {} if "missing" in said else {"servers": "h:1"}
    with pytest.raises(ConfigError, match=said):
        sink_options(servers | options)


def test_the_options_of_kafkas_sink_work():
    found = sink_options(
        {
            "kafka.bootstrap.servers": "h:1",
            "topic": "t",
            "kafka.compression.type": "zstd",
            "kafka.acks": "all",
            "checkpointLocation": "/x",
        }
    )
    assert (found.topic, found.codec, found.access.servers) == ("t", 4, (("h", 1),))


# -- into the broker

Sink = Callable[..., SinkOptions]


@pytest.fixture
def sink(broker: KafkaOnelog) -> Sink:
    def made(**options: str) -> SinkOptions:
        return sink_options({"servers": f"127.0.0.1:{broker.port}", **options})

    return made


def opened(options: SinkOptions, batch: Batch, task: int = 0) -> Staging:
    layout = ALL if options.topic is None else ALL._replace(topic=None)
    return Staging(options, layout, batch.member_id(f"{task}-0"), task)


def staged(
    options: SinkOptions, batch: Batch, *batches: pa.RecordBatch, task: int = 0
) -> Member | None:
    with opened(options, batch, task) as staging:
        for rows_ in batches:
            staging.add(rows_)
        return staging.finish()


def linked(options: SinkOptions, batch: Batch, *members: Member | None) -> str:
    with Client(options.access) as client:
        found = [member for member in members if member is not None]
        return link(client, batch, found, commit=True)


def records(broker: KafkaOnelog, topic: str, count: int) -> list[Any]:
    with reader(broker.port, topic, committed=True) as consumer:
        return list(
            itertools.islice(
                (row for row in iter(lambda: consumer.poll(DEADLINE_S), None) if not row.error()),
                count,
            )
        )


def test_every_column_arrives_as_it_was(broker: KafkaOnelog, sink: Sink):
    topic, batch = unique(), Batch(unique("q"), 0)
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}]
    member = staged(
        sink(),
        batch,
        rows(
            {"topic": topic, "value": b"v", "key": b"k", "headers": headers, "partition": 2},
            {"topic": topic, "value": None, "key": b"", "headers": []},
            {"topic": topic, "value": b"", "key": None, "partition": 2},
        ),
    )
    assert linked(sink(), batch, member) == "linked"
    found = {(row.value(), row.key()): row for row in records(broker, topic, 3)}
    assert found.keys() == {(b"v", b"k"), (None, b""), (b"", None)}
    first = found[b"v", b"k"]
    assert first.headers() == [("a", b"1"), ("a", None), ("", b"")]
    assert first.partition() == found[b"", None].partition() == 2
    assert found[None, b""].partition() == murmur2_of_one(b"") % 4
    assert found[None, b""].headers() is None


def test_rows_go_to_the_topic_that_each_names_in_either_spelling(broker: KafkaOnelog, sink: Sink):
    one, two, batch = unique("a/b"), unique("c.d"), Batch(unique("q"), 0)
    member = staged(
        sink(),
        batch,
        rows(*({"topic": (one, two)[at % 2], "value": b"%d" % at} for at in range(10))),
        rows(),
        rows({"topic": two, "value": b"11"}),
    )
    linked(sink(), batch, member)
    assert sorted(read(broker.port, one.replace("/", "."))) == ["0", "2", "4", "6", "8"]
    assert sorted(read(broker.port, two)) == ["1", "11", "3", "5", "7", "9"]


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_more_rows_than_fit_into_a_batch_or_a_request(
    broker: KafkaOnelog, sink: Sink, codec: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("onelog.spark.sink.staging.HELD_BYTES", 20_000)
    topic, batch = unique(), Batch(unique("q"), 0)
    chance = random.Random(3)
    values = [b"%d " % at + b"x" * chance.choice((0, 10, 300, 5000)) for at in range(2000)]
    options = sink(topic=topic, batchBytes="4096", compression=codec)
    batches = [
        rows(*({"value": value, "key": value[:3]} for value in values[at : at + 333]))
        for at in range(0, 2000, 333)
    ]
    member = staged(options, batch, *batches)
    assert read(broker.port, topic) == []
    linked(options, batch, member)
    assert sorted(read(broker.port, topic)) == sorted(value.decode() for value in values)


def test_order_within_a_partition_is_that_of_the_rows(broker: KafkaOnelog, sink: Sink):
    topic, batch = unique(), Batch(unique("q"), 0)
    values = [b"%04d" % at for at in range(1000)]
    options = sink(topic=topic, batchBytes="2000")
    member = staged(
        options,
        batch,
        *(
            rows(*({"value": value, "key": b"one"} for value in values[at : at + 100]))
            for at in range(0, 1000, 100)
        ),
    )
    linked(options, batch, member)
    assert [row.value() for row in records(broker, topic, 1000)] == values


def test_a_task_without_rows_begins_nothing(sink: Sink):
    topic, batch = unique(), Batch(unique("q"), 0)
    assert staged(sink(topic=topic), batch) is None
    assert staged(sink(topic=topic), batch, rows()) is None
    assert linked(sink(), batch) == "linked"


def test_a_task_that_fails_takes_its_rows_back(broker: KafkaOnelog, sink: Sink):
    topic, batch = unique(), Batch(unique("q"), 0)
    options = sink(topic=topic, batchBytes="1024")
    with (
        pytest.raises(InvalidRequest, match="header without a key"),
        opened(options, batch) as staging,
    ):
        staging.add(rows(*({"value": b"x" * 500, "partition": 0} for _ in range(10))))
        staging.add(rows({"value": b"", "headers": [{"key": None, "value": b""}]}))
        staging.finish()
    assert len(read(broker.port, topic, committed=False)) > 0, "it had written already"
    assert read(broker.port, topic) == []


@pytest.mark.parametrize(
    ("options", "row", "kind", "said"),
    [
        ({}, {"value": b""}, InvalidRequest, "a row has no topic"),
        ({"topic": "t"}, {"value": b"", "partition": 9}, InvalidRequest, "partition 9 of t"),
        ({"topic": "a b"}, {"value": b""}, InvalidName, "topic a b"),
        ({"topic": "a/+/b"}, {"value": b""}, InvalidRequest, "topic a/./b: it is a filter"),
        (
            {"topic": "t", "transactionTimeoutMs": "900001"},
            {"value": b""},
            InvalidRequest,
            "timeout is longer than the broker allows",
        ),
    ],
)
def test_what_a_row_or_an_option_asks_for_wrongly_is_said(
    sink: Sink, options: dict[str, str], row: dict[str, Any], kind: type[Exception], said: str
):
    with pytest.raises(kind, match=said):
        staged(sink(**options), Batch(unique("q"), 0), rows(row))


def publish(server: KafkaOnelog, topic: str, value: bytes) -> None:
    client = Mqtt(server.ports["mqtt"], 5, unique("publisher"))
    client.write(Said(value), topic)
    client.close()


@pytest.mark.parametrize("beside", [(), ("fine",)], ids=["alone", "beside another"])
def test_a_topic_that_shares_its_stream_is_refused_with_what_to_do(
    broker: KafkaOnelog, sink: Sink, beside: tuple[str, ...]
):
    topic = unique("devices/t")
    publish(broker, topic, b"x")
    some = [{"value": b"", "topic": name, "partition": 0} for name in (*beside, topic)]
    with pytest.raises(InvalidRequest) as told:
        staged(sink(), Batch(unique("q"), 0), rows(*some))
    assert str(told.value) == (
        f"topic {topic} shares its stream with other topics, as every topic that MQTT made does,"
        " and a transaction would hold back their readers: write to a topic that has a stream of"
        " its own. The sink makes one of any topic that nobody has written to yet; so does `onelog"
        " stream create NAME --capture TOPIC`."
    )


def test_a_stream_that_is_made_first_lets_mqtt_and_the_sink_write_one_topic(
    own_broker: KafkaOnelog,
):
    """What the sink advises."""
    command = ("stream", "create", "doors", "--capture", "doors/front", "--partitions", "4")
    subprocess.run(
        [sys.executable, "-m", "onelog", *command],
        cwd=own_broker.folder,
        env=environment(),
        check=True,
        timeout=DEADLINE_S,
    )
    made_by_sink = unique("windows")
    for topic in ("doors/front", made_by_sink):
        options = sink_options({"servers": f"127.0.0.1:{own_broker.port}", "topic": topic})
        batch = Batch(unique("q"), 0)
        if topic != made_by_sink:
            publish(own_broker, topic, b"before")
        linked(options, batch, staged(options, batch, rows({"value": b"row"})))
        publish(own_broker, topic, b"after")
        expected = {"after", "row"} | ({"before"} if topic != made_by_sink else set())
        assert set(read(own_broker.port, to_dotted(topic))) == expected


@pytest.mark.parametrize("at_once", [True, False])
def test_more_partitions_than_a_transaction_may_have_are_told(tmp_path, at_once: bool):
    folder = tmp_path / "b"
    folder.mkdir()
    server = KafkaOnelog(folder, "kafka.transactions.partitions=2").start()
    try:
        options = sink_options(
            {"servers": f"127.0.0.1:{server.port}", "topic": "t", "batchBytes": "1024"}
        )
        some = [rows({"value": b"x" * 1000, "partition": at}) for at in range(4)]
        some = [rows(*(row for one in some for row in one.to_pylist()))] if at_once else some * 3
        with pytest.raises(InvalidRequest, match=r"more partitions than kafka\.transactions\.part"):
            staged(options, Batch("q", 0), *some)
    finally:
        server.stop()


def test_a_row_larger_than_the_topic_takes_is_refused(sink: Sink):
    with pytest.raises(MessageTooLarge, match=r"message\.max_bytes"):
        staged(sink(topic=unique()), Batch(unique("q"), 0), rows({"value": b"x" * (16 << 20)}))


def test_headers_of_a_slice_are_those_of_its_rows():
    column = pa.array(
        [[{"key": "no", "value": b""}], None, [], [{"key": "a", "value": b"1"}] * 2], HEADERS
    )
    assert header_rows(column.slice(1)) == [[], [], [(b"a", b"1")] * 2]


def test_a_batch_that_is_linked_again_is_there_once(broker: KafkaOnelog, sink: Sink):
    topic, batch = unique(), Batch(unique("q"), 5)
    options = sink(topic=topic)
    for outcome in ("linked", "already", "already"):
        member = staged(options, batch, rows({"value": b"v"}))
        assert linked(options, batch, member) == outcome
        assert linked(options, batch, member) == "already"
    assert read(broker.port, topic) == ["v"]


def test_a_member_that_is_over_refuses_the_batch(sink: Sink):
    batch = Batch(unique("q"), 0)
    with pytest.raises(InvalidTxnState, match="run the batch again"):
        linked(sink(), batch, Member(batch.member_id("0-0"), 4, 0))


def test_a_broker_that_is_away_is_named():
    options = sink_options({"servers": "127.0.0.1:1", "topic": "t", "timeoutMs": "100"})
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        staged(options, Batch("q", 0), rows({"value": b""}))


def test_a_broker_that_makes_no_topics_says_so(tmp_path):
    folder = tmp_path / "b"
    folder.mkdir()
    server = KafkaOnelog(folder, "kafka.topics.auto_create=false").start()
    try:
        options = sink_options({"servers": f"127.0.0.1:{server.port}", "topic": "t"})
        with pytest.raises(TopicNotFound, match="no topic t"):
            staged(options, Batch("q", 0), rows({"value": b""}))
    finally:
        server.stop()


def test_a_broker_restart_between_stage_and_link_and_in_between_writes(own_broker: KafkaOnelog):
    options = sink_options(
        {"servers": f"127.0.0.1:{own_broker.port}", "topic": "t", "batchBytes": "1024"}
    )
    batch = Batch("q", 0)
    with opened(options, batch) as staging:
        for at in range(4):
            staging.add(rows(*({"value": b"%d" % (at * 100 + row)} for row in range(100))))
            if at == 1:
                own_broker.kill()
                own_broker.start()
        member = staging.finish()
    own_broker.kill()
    own_broker.start()
    assert read(own_broker.port, "t") == []
    assert linked(options, batch, member) == "linked"
    own_broker.kill()
    own_broker.start()
    assert linked(options, batch, member) == "already"
    assert sorted(map(int, read(own_broker.port, "t"))) == list(range(400))
