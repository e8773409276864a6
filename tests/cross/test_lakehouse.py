"""History that became a table: SQL sees its rows, and every protocol replays it as it was (I6)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import load_catalog

from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog, environment
from tests.cross.clients import Clients, Said
from tests.support.forks import run_onelog

TOPIC = "lake/all"
NAME = "lake.all"
LONG_S = 120.0


@pytest.fixture(scope="module", params=["iceberg", "delta", "iceberg-object", "delta-object"])
def lake(request, tmp_path_factory) -> Iterator[Onelog]:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "store").mkdir()
    table_format, _, engine = request.param.partition("-")
    diskless = (
        'defaults.stream.engine="object"', 'metadata.url="store"', "object.linger_ms=5",
        f'lake.catalog="sqlite:///{folder}/lake.db"',
    )  # fmt: skip
    found = Onelog(
        folder,
        f'store.url="file://{folder}/store"',
        'data_dir="data"',
        *(diskless if engine else ()),
    ).start()
    found.table_format, found.has_disk = table_format, not engine
    found.catalog = f"sqlite:///{folder}/{'lake.db' if engine else 'data/lake.db'}"
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{found.ports['kafka']}"})
    settings = {"segment.bytes": "16384", "retention.ms": "-1"}
    admin.create_topics([NewTopic(NAME, 1, config=settings)])[NAME].result(DEADLINE_S)
    found.command(
        *("stream", "alter", NAME, "--tier", table_format, "--tier-commit", "1s"),
        *("--local-bytes", "0", "--tier-table", "history"),
    )
    yield found
    assert found.stop() == 0


@pytest.fixture(scope="module")
def written(lake) -> list[tuple]:
    """What all protocols wrote, as Kafka read it before any of it was cold."""
    clients = Clients(lake.ports)
    servers = {"bootstrap.servers": f"127.0.0.1:{lake.ports['kafka']}", "log_level": 0}
    for number in range(40):
        for writer in ("mqtt3", "mqtt5", "amqp", "kafka"):
            said = Said(f"{writer} {number} {'x' * 300}".encode())
            clients[writer].write(said, TOPIC)
    clients.close()
    for codec in ("gzip", "zstd"):
        producer = Producer(servers | {"compression.type": codec, "linger.ms": 50})
        for number in range(20):
            headers = [("h", b"\x00\xff"), ("n", None)]
            producer.produce(NAME, f"{codec} {number}", key=f"k{number}", headers=headers)
        assert producer.flush(DEADLINE_S) == 0
    teller = Producer(servers | {"transactional.id": "lake"})
    teller.init_transactions(DEADLINE_S)
    for commits in (True, False, True):
        teller.begin_transaction()
        teller.produce(NAME, f"transaction {commits}")
        teller.flush(DEADLINE_S)
        (teller.commit_transaction if commits else teller.abort_transaction)(DEADLINE_S)
    filler = Producer(servers)
    for number in range(200):  # so that what came before is in sealed segments
        filler.produce(NAME, f"filler {number} {'y' * 200}")
        assert filler.flush(DEADLINE_S) == 0
    return fetched(lake)


def fetched(lake: Onelog) -> list[tuple]:
    """Everything that a Kafka consumer gets, with all that a record has."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{lake.ports['kafka']}",
            "group.id": f"g{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(NAME, 0, 0)])
    rows, ends = [], time.monotonic() + LONG_S
    while time.monotonic() < ends:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            break
        rows.append(
            (
                message.offset(), message.timestamp(), message.key(), message.value(),
                tuple(message.headers() or ()),
            )
        )  # fmt: skip
    consumer.close()
    return rows


def tier_of(lake: Onelog) -> dict:
    (row,) = json.loads(lake.get("/api/v1/streams/lake.all/tier"))["items"]
    return row


@pytest.fixture(scope="module")
def cold(lake, written) -> int:
    """Where the history ends that only the table has."""
    ends = time.monotonic() + LONG_S
    while True:
        tier = tier_of(lake)
        if tier["local_start_offset"] > len(written) - 120:
            return tier["local_start_offset"]
        assert time.monotonic() < ends, tier
        time.sleep(0.2)


def files_of(lake: Onelog) -> list[str]:
    folder = lake.folder / "store" / "lake"
    if lake.table_format == "delta":
        return [str(path) for path in (folder / "history").glob("*.parquet")]
    catalog = load_catalog(
        "onelog",
        type="sql",
        uri=lake.catalog,
        warehouse=f"file://{folder}",
    )
    table = catalog.load_table("onelog.history")
    return [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]


def test_a_kafka_consumer_gets_the_same_records_from_the_table(lake, written, cold):
    assert cold > 250
    assert fetched(lake) == written


@pytest.mark.parametrize("via", ["mqtt", "kafka", "amqp"])
def test_each_protocol_replays_the_table(lake, written, cold, via):
    done = run_onelog(
        *("replay", TOPIC, "--via", via, "--port", str(lake.ports[via])),
        environment=environment(),
        timeout_s=LONG_S,
    )
    done.check_returncode()
    assert done.stdout.decode().splitlines() == [row[3].decode() for row in written]


def test_duckdb_counts_each_committed_record_once(lake, written, cold):
    rows = duckdb.execute(
        'SELECT "offset", key, value FROM read_parquet($1) WHERE "offset" < $2 ORDER BY 1',
        [files_of(lake), cold],
    ).fetchall()
    assert rows == [(row[0], row[2], row[3]) for row in written if row[0] < cold]


def test_a_restart_with_an_empty_cache_reads_the_same(lake, written, cold):
    """The engine object gets an empty disk."""
    assert lake.stop() == 0
    if not lake.has_disk:
        shutil.rmtree(lake.folder / "data")
    lake.start()
    assert fetched(lake) == written
    tier = tier_of(lake)
    assert tier["local_start_offset"] >= cold and not tier["halted"]
    assert Path(lake.catalog.removeprefix("sqlite:///")).exists() == (
        lake.table_format == "iceberg"
    )


def rewrite(lake: Onelog) -> None:
    """What a foreign writer does: every row in one file of its own; the old files are gone."""
    folder = lake.folder / "store" / "lake"
    if lake.table_format == "delta":
        table = deltalake.DeltaTable(str(folder / "history"))
        rows = pa.table(table.to_pyarrow_table()).sort_by([("value", "descending")])
        deltalake.write_deltalake(table, rows, mode="overwrite")
    else:
        catalog = load_catalog(
            "onelog",
            type="sql",
            uri=lake.catalog,
            warehouse=f"file://{folder}",
        )
        table = catalog.load_table("onelog.history")
        table.overwrite(table.scan().to_arrow().sort_by([("value", "descending")]))
    kept = set(files_named(lake))
    for path in folder.rglob("*.parquet"):
        if path.name not in kept and "_delta_log" not in path.parts:
            path.unlink()


def files_named(lake: Onelog) -> list[str]:
    if lake.table_format == "delta":
        table = deltalake.DeltaTable(str(lake.folder / "store" / "lake" / "history"))
        return [Path(uri).name for uri in table.file_uris()]
    return [Path(path).name for path in files_of(lake)]


def test_a_table_that_somebody_rewrote_is_adopted_and_replayed_byte_by_byte(lake, written, cold):
    lake.command("stream", "offload", NAME)
    rewrite(lake)
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{lake.ports['kafka']}"})
    for number in range(50):
        producer.produce(NAME, f"later {number}")
    assert producer.flush(DEADLINE_S) == 0

    def run(*words: str) -> tuple[int, str]:
        done = run_onelog(*words, folder=lake.folder, environment=environment(), timeout_s=LONG_S)
        return done.returncode, (done.stdout + done.stderr).decode()

    code, text = run("stream", "offload", NAME)
    assert code == 1 and "offsets 0 to" in text and "onelog store adopt" in text
    assert "somebody rewrote" in tier_of(lake)["halted"]
    code, text = run("store", "adopt", NAME)
    assert code == 0 and "OneLog's own again" in text
    assert tier_of(lake)["halted"] == ""
    code, text = run("stream", "offload", NAME)
    assert code == 0 and "50 records moved" in text
    again = fetched(lake)
    assert again[: len(written)] == written
    assert len(again) == len(written) + 50
    paths = set(files_named(lake))
    named = [path for path in files_of(lake) if Path(path).name in paths]
    rows = duckdb.execute(
        'SELECT "offset", key, value FROM read_parquet($1) ORDER BY 1', [named]
    ).fetchall()
    assert rows == [(row[0], row[2], row[3]) for row in again]
    assert run("store", "adopt", NAME) == (
        0, f"{NAME}: nothing to adopt: the table has every file that OneLog wrote\n"
    )  # fmt: skip
