"""Are tables read as written and kept up without a change, and are bad rows in topics once?"""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.types import LongType as IcebergLong

from onelog.base.errors import InvalidRequest
from onelog.lake.formats import open_table
from onelog.lake.log_table import LOG_COLUMNS
from onelog.lake.options import parse_options
from onelog.lake.projection import projected
from onelog.lake.upkeep import keep_up
from onelog.spark import read_table
from tests.conformance.kafka_brokers import unique
from tests.spark.lakes import FORMATS, WITH_UPSERT, Lake, stage, write
from tests.spark.topics import servers

DDL = "id BIGINT, name STRING, at TIMESTAMP"
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
)
NOON = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
AT_ONCE = datetime.timedelta(0)


@pytest.fixture(params=FORMATS)
def lake(request, tmp_path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture(params=WITH_UPSERT)
def kept(request, tmp_path) -> Lake:
    return Lake(request.param, tmp_path)


def rows(*numbers: int) -> list[dict[str, object]]:
    return [{"id": n, "name": f"n/%2 {n % 3}", "at": NOON} for n in numbers]


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


# -- reading


@pytest.mark.parametrize("parts", ["", "name"])
def test_spark_reads_what_was_written(spark, lake, parts):
    more = {"partitionBy": parts} if parts else {}
    sink = lake.sink(DDL, **more)
    assert read_table(spark, **lake.options()).count() == 0
    write(sink, SCHEMA, "q", 0, rows(*range(6)), [{"id": 9, "name": None, "at": None}])
    found = read_table(spark, **lake.options()).orderBy("id")
    assert found.columns == ["id", "name", "at"]
    expected = [(n, f"n/%2 {n % 3}", NOON.replace(tzinfo=None)) for n in range(6)]
    assert [tuple(row) for row in found.collect()] == [*expected, (9, None, None)]
    assert found.where("name = 'n/%2 1'").count() == 2


def test_spark_reads_columns_by_id_over_renames_and_additions(spark, tmp_path):
    lake = Lake("iceberg", tmp_path)
    write(lake.sink(DDL), SCHEMA, "q", 0, rows(1))
    with lake.open().inner.update_schema() as update:
        update.rename_column("name", "title")
    with lake.open().inner.update_schema() as update:
        update.add_column("name", IcebergLong())
    (found,) = read_table(spark, **lake.options()).collect()
    assert (found["title"], found["name"]) == ("n/%2 1", None)


def test_a_table_that_is_not_there_is_told(spark, lake):
    with pytest.raises(InvalidRequest, match="check table"):
        read_table(spark, **lake.options("nowhere"))


# -- upkeep


def test_small_files_become_one_and_every_row_stays(kept, tmp_path):
    sink = kept.sink(DDL)
    for batch in range(5):
        write(sink, SCHEMA, "q", batch, rows(batch))
    done = keep_up(kept.parsed(), snapshot_age=AT_ONCE, orphan_age=AT_ONCE)
    assert (done.files_before, done.files_after) == (5, 1)
    assert done.files_removed >= 5
    assert ids(kept) == [0, 1, 2, 3, 4]
    data = [path for path in tmp_path.rglob("*.parquet") if "_delta_log" not in path.parts]
    assert len(data) == 1


def test_marks_outlive_the_expiry_of_their_snapshots(kept):
    sink = kept.sink(DDL)
    for batch in range(3):
        write(sink, SCHEMA, "q", batch, rows(batch))
    keep_up(kept.parsed(), snapshot_age=AT_ONCE, orphan_age=AT_ONCE)
    assert not write(sink, SCHEMA, "q", 2, rows(2))
    assert write(sink, SCHEMA, "q", 3, rows(3))
    assert ids(kept) == [0, 1, 2, 3]


def test_partitions_are_not_mixed_by_compaction(kept):
    sink = kept.sink(DDL, partitionBy="name")
    for batch in range(2):
        write(sink, SCHEMA, "q", batch, rows(*range(6)))
    keep_up(kept.parsed(), snapshot_age=AT_ONCE, orphan_age=AT_ONCE)
    table = kept.open()
    assert len(table.files()) == 3
    for file in table.files():
        assert len({row["name"] for row in table.read(file).to_pylist()}) == 1
    assert ids(kept) == sorted([*range(6)] * 2)


def test_files_of_a_batch_that_is_under_way_are_not_swept(kept):
    sink = kept.sink(DDL)
    write(sink, SCHEMA, "q", 0, rows(0))
    under_way = stage(sink, SCHEMA, "q", rows(1))
    keep_up(kept.parsed(), snapshot_age=AT_ONCE)
    assert sink.commit(under_way, "q", 1)
    assert ids(kept) == [0, 1]


def test_files_that_nobody_names_are_swept_when_they_are_old(kept):
    sink = kept.sink(DDL)
    write(sink, SCHEMA, "q", 0, rows(0))
    write(sink, SCHEMA, "q", 0, rows(0))  # replayed: its file is nobody's
    assert keep_up(kept.parsed(), orphan_age=AT_ONCE, snapshot_age=AT_ONCE).files_removed == 1
    assert ids(kept) == [0]


def test_plain_parquet_is_not_kept_up(tmp_path):
    lake = Lake("parquet", tmp_path)
    lake.sink(DDL)
    with pytest.raises(InvalidRequest, match="rewrite it into"):
        keep_up(lake.parsed())


# -- what other engines did


def test_nested_columns_are_known_by_id_and_null_lists_stay_null(tmp_path):
    lake = Lake("iceberg", tmp_path)
    inner = pa.struct([("key", pa.string()), ("value", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("items", pa.list_(inner))])
    ddl = "id BIGINT"
    sink = lake.sink(ddl)
    with lake.open().inner.update_schema() as update:
        update.union_by_name(schema)
    table = lake.open()
    file = tmp_path / "other.parquet"
    data = pa.Table.from_pylist(
        [{"id": 1, "items": None}, {"id": 2, "items": [{"key": "a", "value": 7}]}], schema=schema
    )
    pq.write_table(data.cast(table.layout.schema), file)
    write(sink, pa.schema([("id", pa.int64())]), "q", 0, [{"id": 3}])
    written = table.layout.schema
    with lake.open().inner.update_schema() as update:
        update.rename_column("items.element.key", "label")
    fresh = lake.open()
    found = projected(pq.read_table(file), fresh.layout.schema).to_pylist()
    assert written != fresh.layout.schema
    assert found == [
        {"id": 1, "items": None},
        {"id": 2, "items": [{"label": "a", "value": 7}]},
    ]


def test_a_query_goes_on_over_a_table_that_another_engine_changes_meanwhile(tmp_path):
    lake = Lake("iceberg", tmp_path)
    sink = lake.sink(DDL)
    write(sink, SCHEMA, "q", 0, rows(0))
    with lake.open().inner.update_schema() as update:
        update.rename_column("name", "title")
    with lake.open().inner.update_spec() as spec:
        spec.add_field("title", "identity", "title")
    write(sink, SCHEMA, "q", 1, rows(1))  # the sink that was made before
    write(lake.sink("id BIGINT, title STRING"), SCHEMA.set(1, SCHEMA.field(1).with_name("title")),
          "q", 2, [{"id": 2, "title": "t", "at": None}])  # fmt: skip
    assert {row["id"]: row["title"] for row in lake.rows()} == {
        0: "n/%2 0",
        1: "n/%2 1",
        2: "t",
    }
    assert lake.open().inner.scan(row_filter="title = 't'").to_arrow().num_rows == 1
    assert lake.open().inner.scan(row_filter="title = 'n/%2 1'").to_arrow().num_rows == 1


def test_options_do_not_tell_secrets_when_they_are_shown():
    given = {"tableFormat": "iceberg", "table": "a.b", "catalog": "https://lake.example"}
    secret = {"catalog.token": "hush", "s3.access-key-id": "k", "s3.secret-access-key": "hush"}
    assert "hush" not in repr(parse_options(given | secret))


# -- bad rows in topics


def letters(server, topic: str) -> list[dict[str, object]]:
    """What a consumer sees that reads only what is committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers(server),
            "group.id": unique("letters"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        known = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in known])
        left = len(known)
        while left:
            message = consumer.poll(30)
            assert message is not None, "the topic did not end"
            if message.error():
                left -= 1
            else:
                found.append(json.loads(message.value()))
    finally:
        consumer.close()
    return found


def test_bad_rows_go_to_a_topic_once_also_when_the_batch_is_replayed(lake, broker):
    topic = unique("dead")
    more = {
        "required": "name",
        "deadLetterTopic": topic,
        "dead.servers": servers(broker),
    }
    sink = lake.sink(DDL, **more)
    bad = {"id": 7, "name": None, "at": None}
    query = unique("query")
    write(sink, SCHEMA, query, 0, [*rows(1), bad], rows(2))
    write(sink, SCHEMA, query, 0, [*rows(1), bad], rows(2))
    assert ids(lake) == [1, 2]
    assert letters(broker, topic) == [
        {"table": lake.table("t"), "reason": "column name is null", "row": bad}
    ]


def test_bad_rows_of_a_batch_that_was_given_up_are_not_seen(tmp_path, broker):
    lake = Lake("delta", tmp_path)
    topic, query = unique("dead"), unique("query")
    more = {"required": "name", "deadLetterTopic": topic, "dead.servers": servers(broker)}
    sink = lake.sink(DDL, **more)
    bad = {"id": 7, "name": None, "at": None}
    sink.abort(stage(sink, SCHEMA, query, [bad]), query, 0)
    assert letters(broker, topic) == []
    write(sink, SCHEMA, query, 0, [bad, *rows(1)])
    assert len(letters(broker, topic)) == 1
    assert ids(lake) == [1]


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_the_history_of_a_stream_is_left_to_its_broker(tmp_path, form) -> None:
    kept = Lake(form, tmp_path)
    table = open_table(kept.parsed(), LOG_COLUMNS)
    assert table.layout.schema.names == LOG_COLUMNS.names
    with pytest.raises(InvalidRequest, match="is the history of a stream"):
        keep_up(kept.parsed())
