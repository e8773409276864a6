"""Do tasks read old records straight from the object store: each once, with the broker idle?

SeaweedFS holds the pieces, a broker in this process names them, and Spark is the real one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import paho.mqtt.client as mqtt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onelog.kafka_client import Client
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.lake.storage import Storage
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.pipelines.spec import BrokerKeys
from onelog.pipelines.sql import Query
from onelog.pipelines.workspace import Workspace
from onelog.record.batch import build_batch
from onelog.spark.source import cold_planning
from tests.conformance.kafka_brokers import unique
from tests.spark.topics import access, append, make_topic, numbered, row, servers
from tests.support.cold_rows import NamingEngine, make_naming
from tests.support.s3_server import S3Server, available, s3_server
from tests.support.served import Served

pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is missing: run 'make setup'")


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket("log")
        yield running


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture(scope="module")
def engines(patch) -> list[NamingEngine]:
    return make_naming(patch)


@pytest.fixture(scope="module")
def served(tmp_path_factory, engines, s3) -> Iterator[Served]:
    options = f'["aws_endpoint={s3.endpoint}", "aws_region=us-east-1"]'
    settings = ('store.url="s3://log/onelog"', f"store.options={options}")
    with Served(tmp_path_factory.mktemp("served"), *settings) as running:
        yield running


@pytest.fixture(scope="module")
def store(s3) -> ObjectStore:
    return open_store(StoreSettings(url="s3://log/onelog", options=s3.store_options))


@pytest.fixture
def keys(s3) -> dict[str, str]:
    return {name: text for name, text in s3.options.items() if "key" in name}


@pytest.fixture
def read(spark, served, keys):
    def start(**options):
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        reader = spark.read.format("onelog").options(servers=servers(served), **keys)
        return reader.options(**named)

    return start


@pytest.fixture
def topic(served) -> str:
    return make_topic(served, unique("cold"), 1)


@pytest.fixture
def log(topic, engines):
    return engines[0].newest()


def fill(served, topic: str, first: int, count: int, **more) -> None:
    for at in range(first, first + count, 100):
        append(served, topic, 0, numbered(at, min(100, first + count - at)), **more)


def offsets(frame) -> list[int]:
    return sorted(found[0] for found in frame.select("offset").collect())


def test_what_lies_in_the_store_is_read_there_and_the_rest_from_the_broker(
    served, store, read, topic, log
) -> None:
    fill(served, topic, 0, 3000)
    log.put(store, 0, 1500, before=b"another piece")
    log.put(store, 1500, 2500)
    through = read(subscribe=topic, coldReads="broker").load().sort("offset").collect()
    log.reads.clear()
    found = read(subscribe=topic).load().sort("offset").collect()
    assert found == through
    assert [one.offset for one in found] == list(range(3000))
    assert log.reads
    assert min(log.reads) == 2500  # the broker read what only it has
    assert log.tier.held_until_ms


def test_bounds_inside_of_pieces_are_exact(served, store, read, topic, log) -> None:
    fill(served, topic, 0, 4000, codec=4)
    log.put(store, 0, 2000)
    log.put(store, 2000, 4000)
    ends = f'{{"{topic}":{{"0":3333}}}}'
    begins = f'{{"{topic}":{{"0":777}}}}'
    log.reads.clear()
    frame = read(subscribe=topic, startingOffsets=begins, endingOffsets=ends, splitBytes=8192)
    assert offsets(frame.load()) == list(range(777, 3333))
    assert frame.load().rdd.getNumPartitions() > 1
    assert not log.reads
    few = read(subscribe=topic, maxRecordsPerPartition=500).load()
    assert few.rdd.getNumPartitions() == 8
    assert offsets(few) == list(range(4000))


def test_aborted_transactions_of_a_piece_are_left_out(served, store, read, topic, log) -> None:
    fill(served, topic, 0, 100)
    at, spans, wanted = 100, [], list(range(100))
    with Client(access(served)) as client:
        for number in range(8):
            name = unique("txn")
            producer = client.init_producer(name, 60_000)
            client.add_partitions(name, producer, [(topic, 0)])
            data = build_batch(
                numbered(at, 100), attributes=ATTR_TRANSACTIONAL, producer=(*producer, 0)
            )
            client.produce({(topic, 0): data}, name)
            client.end(name, producer, commit=bool(number % 2))
            client.offsets({(topic, 0): -1})
            if number % 2:
                wanted += range(at, at + 100)
            else:
                spans.append(AbortedSpan(producer.id, at, at + 100, at))
            at += 101
    fill(served, topic, at, 1000)
    wanted += range(at, at + 1000)
    log.put(store, 0, 403, aborted=spans)
    log.put(store, 403, at + 1000, aborted=spans)
    log.reads.clear()
    assert offsets(read(subscribe=topic).load()) == wanted
    starts = f'{{"{topic}":{{"0":150}}}}'  # inside of an aborted transaction
    again = read(subscribe=topic, startingOffsets=starts, splitBytes=4096).load()
    assert offsets(again) == [one for one in wanted if one >= 150]
    assert not log.reads


def test_a_gap_between_pieces_comes_from_the_broker_in_its_place(
    served, store, read, topic, log
) -> None:
    fill(served, topic, 0, 3000)
    log.put(store, 0, 1000)
    log.put(store, 1500, 2500)
    assert offsets(read(subscribe=topic).load()) == list(range(3000))


def test_an_object_that_was_joined_meanwhile_is_asked_for_again(
    spark, served, store, read, topic, log
) -> None:
    fill(served, topic, 0, 3000)
    rows = [log.put(store, 0, 1000), log.put(store, 1000, 2000), log.put(store, 2000, 3000)]
    frame = read(subscribe=topic).load()
    frame.rdd.getNumPartitions()  # it is planned now
    joined = log.put(store, 0, 3000, name=f"t/joined/{unique()}")
    log.rows[:] = [joined]
    store.delete([one.object for one in rows])
    log.reads.clear()
    assert sorted(one.offset for one in frame.rdd.collect()) == list(range(3000))
    assert not log.reads


def test_an_object_that_is_gone_for_good_is_read_by_the_broker(
    served, store, read, topic, log
) -> None:
    fill(served, topic, 0, 3000)
    rows = [log.put(store, at, at + 1000) for at in (0, 1000, 2000)]
    frame = read(subscribe=topic, coldReads="store").load()
    frame.rdd.getNumPartitions()
    store.delete([rows[1].object])
    log.reads.clear()
    assert sorted(one.offset for one in frame.rdd.collect()) == list(range(3000))
    assert {at // 1000 for at in log.reads} == {1}


def test_damaged_bytes_are_never_used(served, store, read, topic, log, caplog) -> None:
    fill(served, topic, 0, 2000)
    row = log.put(store, 0, 2000)
    data = bytearray(store.get(row.object))
    data[row.log_bytes // 2] ^= 1
    store.put(row.object, [data])
    assert offsets(read(subscribe=topic).load()) == list(range(2000))
    with pytest.raises(Exception, match=f"{topic}-0 at offset .* with coldReads=auto"):
        read(subscribe=topic, coldReads="store").load().collect()
    data[-200] ^= 1  # of the index part
    store.put(row.object, [data])
    assert offsets(read(subscribe=topic).load()) == list(range(2000))


def test_a_driver_without_keys_leaves_it_to_the_broker(
    spark, served, store, topic, log, monkeypatch
) -> None:
    fill(served, topic, 0, 2000)
    log.put(store, 0, 2000)
    wrong = {"s3.access-key-id": "nobody", "s3.secret-access-key": "nothing"}
    options = {"servers": servers(served), "subscribe": topic} | wrong
    log.reads.clear()
    reader = spark.read.format("onelog").options(**options)
    assert offsets(reader.load()) == list(range(2000))
    assert log.reads
    with pytest.raises(Exception, match="does not let this process into"):
        reader.options(coldReads="store").load().collect()


def test_views_show_their_topics_only(served, engines, store, read) -> None:
    base = unique("view")
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", served.ports["mqtt"])
    client.loop_start()
    chosen = random.Random(17)
    said = []
    for number in range(2500):
        topic = f"{base}/d{chosen.randrange(4)}/{chosen.choice('tx')}"
        said.append((topic, f"{number}".encode()))
        client.publish(topic, f"{number}", 1).wait_for_publish(10)
    client.loop_stop()
    client.disconnect()
    logs = [one for by in engines[0].logs.values() for one in by.values() if one.end_offset > 200]
    for one in logs:
        if not one.rows and one.end_offset:
            one.put(store, one.start_offset, one.end_offset)
        one.reads.clear()
    matching = sorted(one for one in said if one[0].endswith("/t"))
    frame = read(filter=f"{base}/+/t", coldReads="store").load()
    assert sorted((one.topic, bytes(one.value)) for one in frame.collect()) == matching
    exact = f"{base}/d1/t"
    frame = read(subscribe=exact, coldReads="store", columns="value,topic").load()
    rows = sorted((one.topic, bytes(one.value)) for one in frame.collect())
    assert rows == [one for one in matching if one[0] == exact]


def test_a_stream_reads_its_backlog_from_the_store(
    spark, served, store, topic, log, keys, tmp_path
) -> None:
    fill(served, topic, 0, 5000)
    log.put(store, 0, 2500)
    log.put(store, 2500, 4500)
    log.reads.clear()
    options = {"servers": servers(served), "subscribe": topic, "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("onelog")
        .options(**options, **keys, maxOffsetsPerTrigger="2000")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert offsets(found) == list(range(5000))
    sampled = {at for at in log.reads if at < 4000}
    assert len(sampled) <= 1  # what sizes are is looked at once


def test_values_are_decoded_as_ever(served, store, read, topic, log) -> None:
    for first in range(0, 1200, 100):
        append(served, topic, 0, [row(f'{{"n":{n}}}') for n in range(first, first + 100)])
    log.put(store, 0, 1200)
    log.reads.clear()
    frame = read(subscribe=topic, decode="json", valueSchema="n INT", columns="value").load()
    assert sorted(one.value.n for one in frame.collect()) == list(range(1200))
    assert not log.reads


def test_a_stream_in_sql_is_the_store_and_the_log_behind_it(
    spark, served, store, topic, log, keys, tmp_path
) -> None:
    fill(served, topic, 0, 3000)
    log.put(store, 0, 2000)
    workspace = Workspace(tmp_path, servers(served))
    query = Query(spark, workspace, BrokerKeys(options=keys))
    log.reads.clear()
    sql = (
        f"SELECT count(*), count(DISTINCT `offset`), min(value), max(topic) FROM stream('{topic}')"
    )
    assert query.ask(sql).take(2) == [(3000, 3000, "v0", topic)]
    assert min(log.reads) == 2000
    fill(served, topic, 3000, 100)  # up to now
    found = query.ask(f"SELECT count(*) FROM stream('{topic}', cold_reads => 'store')").take(1)
    assert found == [(3100,)]
    with pytest.raises(Exception, match="there is no stream 'nothing'"):
        query.ask("SELECT * FROM stream('nothing')").take(1)


def put_file(s3, log, frame, name: str, start: int, end: int) -> Row:
    """Rows of a frame as a file of a tier's table, which the log names from now on."""
    rows = pa.Table.from_batches(
        [pa.RecordBatch.from_pylist([one.asDict(recursive=True) for one in frame.collect()])]
    )
    names = ["timestamp_type" if one == "timestampType" else one for one in rows.column_names]
    rows = rows.rename_columns(names).sort_by("offset")
    files, inner = Storage(tuple(sorted(s3.options.items()))).open(f"s3://log/table/{name}")
    with files.open_output_stream(inner) as out:
        pq.write_table(rows, out, row_group_size=250)
    log.rows.append(
        Row(
            base=start, end=end, log_bytes=100_000, records=rows.num_rows, min_timestamp_ms=0,
            max_timestamp_ms=1, created_ms=1, kind="parquet", object=f"f/{name}", position=0,
            piece_bytes=128, index_bytes=128, index_crc=0, leader_epoch=0,
            file=f"s3://log/table/{name}",
        )
    )  # fmt: skip
    return log.rows[-1]


def test_parquet_files_of_a_tier_are_read_as_they_are(s3, served, store, read, topic, log) -> None:
    headers = ((b"h", b"1"), (b"i", None))
    for first in range(0, 3000, 100):
        rows = [row(f"v{n}", headers=headers, time_ms=n) for n in range(first, first + 100)]
        append(served, topic, 0, rows)
    through = read(subscribe=topic, coldReads="broker", includeHeaders="true").load()
    wanted = through.sort("offset").collect()
    file = put_file(s3, log, through.where("`offset` < 1500"), f"{topic}-a.parquet", 0, 1500)
    store.put(file.object, [bytes(128)])
    log.put(store, 1500, 2000)
    last = put_file(
        s3, log, through.where("`offset` BETWEEN 2000 AND 2499"), f"{topic}-b.parquet", 2000, 2500
    )
    log.reads.clear()
    everything = read(subscribe=topic, includeHeaders="true", splitBytes=30_000).load()
    assert everything.sort("offset").collect() == wanted
    assert min(log.reads) == 2500
    log.reads.clear()
    begins, ends = f'{{"{topic}":{{"0":333}}}}', f'{{"{topic}":{{"0":2222}}}}'
    few = read(subscribe=topic, startingOffsets=begins, endingOffsets=ends, columns="value,topic")
    found = sorted((bytes(one.value), one.topic) for one in few.load().collect())
    assert found == sorted((f"v{n}".encode(), topic) for n in range(333, 2222))
    counted = read(subscribe=topic, columns="partition", endingOffsets=ends).load()
    assert counted.count() == 2222
    assert not log.reads
    planned = read(subscribe=topic).load()
    planned.rdd.getNumPartitions()
    files, inner = Storage(tuple(sorted(s3.options.items()))).open(last.file)
    files.delete_file(inner)  # the broker reads what is gone
    assert sorted(one.offset for one in planned.rdd.collect()) == list(range(3000))
    assert min(log.reads) == 2000


def test_few_records_are_not_worth_a_look_at_the_store(served, store, read, topic, log) -> None:
    append(served, topic, 0, numbered(0, 50))
    log.put(store, 0, 50)
    assert offsets(read(subscribe=topic).load()) == list(range(50))
    assert not log.tier.held_until_ms
    assert cold_planning.OFFSETS_MIN > 50


def test_a_refusal_is_said_once_in_words(served, store, topic, log, caplog) -> None:
    fill(served, topic, 0, 2000)
    log.put(store, 0, 2000)
    planner = cold_planning.ColdPlanner(
        cold_planning.ColdReads("auto", (("s3.access-key-id", "a"), ("s3.secret-access-key", "b"))),
        with_headers=False,
    )
    with Client(access(served)) as client, caplog.at_level(logging.WARNING, "onelog.spark"):
        whole = cold_planning.Slice(topic, topic, 0, 0, 2000)
        assert planner.cut(client, [whole]) == [whole]
        assert planner.cut(client, [whole]) == [whole]
    assert len(caplog.records) == 1
    assert "since this driver cannot" in caplog.text
    assert "s3.*" in caplog.text
