"""Do JSON, Avro and text come out as columns, and does a bad value cost itself only?"""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from onelog.base.errors import ConfigError, InvalidRequest
from onelog.spark.source.avro import avro_ddl
from onelog.spark.source.decoding import RowOrigin, decode_arrays, decode_values, decoder_of
from onelog.spark.source.options import Decode
from tests.conformance.kafka_brokers import unique
from tests.spark.topics import append, make_topic, row, servers

KIND = pa.struct([("a", pa.int64()), ("b", pa.string())])
JSON = Decode("json", "a BIGINT, b STRING")
SCHEMA = {
    "type": "record", "name": "r", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "k", "symbols": ["x", "y"]}},
    ],
}  # fmt: skip


def avro(record: dict[str, object]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), record)
    return out.getvalue()


@pytest.fixture
def read(spark, broker):
    def start(topic: str, **options: str):
        return spark.read.format("onelog").options(
            servers=servers(broker), subscribe=topic, **options
        )

    return start


@pytest.fixture
def topic(broker) -> str:
    return make_topic(broker, unique("decode"), 1)


def test_json_is_a_struct_and_what_is_none_is_seen(broker, read, topic) -> None:
    good, bad = '{"a": 1, "b": "x", "more": [1]}', "{oops"
    append(broker, topic, 0, [row(good), row(bad), row(None), row('{"b":null}')])
    frame = read(topic, decode="json", valueSchema="a BIGINT, b STRING").load()
    assert dict(frame.dtypes)["value"] == "struct<a:bigint,b:string>"
    found = frame.sort("offset").select("value.a", "value.b", "corrupt").collect()
    assert [tuple(row) for row in found] == [
        (1, "x", None), (None, None, b"{oops"), (None, None, None), (None, None, None),
    ]  # fmt: skip


def test_bad_values_are_left_out_or_told_with_their_place(broker, read, topic) -> None:
    append(broker, topic, 0, [row('{"a":1}'), row('{"a":"text"}'), row('{"a":3}')])
    options = {"decode": "json", "valueSchema": "a INT"}
    frame = read(topic, **options, mode="DROPMALFORMED").load()
    assert [row.a for row in frame.sort("offset").select("value.a").collect()] == [1, 3]
    with pytest.raises(PySparkException, match=f"{topic}-0 at offset 1: a value is not json"):
        read(topic, **options, mode="FAILFAST").load().select("value").collect()


def test_avro_is_a_struct(broker, read, topic) -> None:
    record = {"id": 7, "note": None, "at": 1_700_000_000_000, "tags": ["p", "q"], "kind": "y"}
    append(broker, topic, 0, [row(avro(record)), row(b"\x02"), row(avro(record) + b"tail")])
    frame = read(topic, decode="avro", valueSchema=json.dumps(SCHEMA)).load()
    assert dict(frame.dtypes)["value"] == (
        "struct<id:bigint,note:string,at:timestamp,tags:array<string>,kind:string>"
    )
    found = frame.sort("offset").selectExpr(
        "value.id", "value.tags", "value.kind", "unix_millis(value.at)", "corrupt"
    )
    assert [tuple(row) for row in found.collect()] == [
        (7, ["p", "q"], "y", 1_700_000_000_000, None),
        (None, None, None, None, b"\x02"),
        (None, None, None, None, avro(record) + b"tail"),
    ]


def test_text_is_what_a_cast_makes_of_the_bytes(broker, read, topic) -> None:
    append(broker, topic, 0, [row("ä"), row(b"\xff"), row(None)])
    frame = read(topic, decode="string", columns="value").load()
    assert frame.dtypes == [("value", "string")]
    assert [row[0] for row in frame.selectExpr("CAST(value AS BINARY)").collect()] == [
        "ä".encode(), b"\xff", None,
    ]  # fmt: skip


def test_a_schema_of_the_reader_gives_the_type(broker, read, topic) -> None:
    append(broker, topic, 0, [row('{"a":{"b":[1,2]}}')])
    frame = read(topic, decode="json").schema("value struct<a:struct<b:array<int>>>").load()
    assert frame.select("value.a.b").collect()[0][0] == [1, 2]


def test_a_schema_that_does_not_fit_is_told(read, topic) -> None:
    with pytest.raises(PySparkException, match="the schema has value as string; it is binary"):
        read(topic).schema("value string").load().count()
    with pytest.raises(PySparkException, match="the schema has a column 'temperature'"):
        read(topic).schema("temperature double").load().count()


# -- without Spark


@pytest.mark.parametrize(
    "values",
    [
        [b'{"a":1}', b'{"a":2} {"a":3}', b'{"a":4}'],
        [b'{"a":1}', b"", b'{"a":4}'],
        [b'{"a":1}', b'{"a":1}}\n{"v":{"a":9}', b'{"a":4}'],
        [b'{"a":1}', b'{"b":"x', b'"}'],
        [b'{"a":1}', b"5", b'{"a":4}'],
        [b'{"a":1}', b'{"a":1.5}', b'{"a":4}'],
        [b'{"a":1}', b"[]", b'{"a":4}'],
        [b'{"a":1}', b'{"a":1},"v":{"a":2}', b'{"a":4}'],
    ],
)
def test_a_value_that_is_no_json_never_moves_its_neighbours(values) -> None:
    convert = decoder_of(JSON, KIND)
    assert convert is not None
    array, bad = decode_values(convert, list(values))
    assert len(array) == 3
    assert 1 in bad
    assert array[0].as_py()["a"] == 1
    assert array[1].as_py() is None


def test_breaks_between_the_parts_of_a_value_are_white_space() -> None:
    convert = decoder_of(JSON, KIND)
    assert convert is not None
    array, bad = decode_values(convert, [b'{\n"a"\r\n: 1}', None, b"null"])
    assert (array.to_pylist(), bad) == ([{"a": 1, "b": None}, None, None], [])


def test_a_bad_value_is_told_where_it_lies() -> None:
    convert = decoder_of(JSON, KIND)
    assert convert is not None
    arrays = {"value": pa.array([b"{}", b"x"], pa.binary()), "offset": pa.array([7, 8])}
    with pytest.raises(InvalidRequest, match="t-3 at offset 8"):
        decode_arrays(arrays, convert, Decode("json", "", "FAILFAST"), RowOrigin("t", 3))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "is not JSON"),
        ('"string"', "of type record"),
        ('{"type":"record","name":"r"}', "without fields"),
        ('{"type":"record","name":"r","fields":[{"name":"f","type":"what"}]}', "value.f"),
        (
            '{"type":"record","name":"r","fields":[{"name":"f","type":["int","string"]}]}',
            "union of 2",
        ),
        (
            '{"type":"record","name":"r","fields":[{"name":"f","type":["null","r"]}]}',
            "contains itself",
        ),
    ],
)
def test_an_avro_schema_that_spark_cannot_hold_is_told(schema, words) -> None:
    with pytest.raises(ConfigError, match=words):
        avro_ddl(schema)


def test_types_that_json_cannot_be_are_told() -> None:
    with pytest.raises(ConfigError, match="option valueSchema"):
        decoder_of(Decode("json", "m MAP<STRING,INT>"), pa.struct([("m", pa.map_("str", "i4"))]))
