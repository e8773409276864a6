"""Do engines that are not ours read the table of a tier, and see each committed record once?"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyiceberg.catalog import load_catalog

from tests.conformance.kafka_brokers import KafkaOnelog
from tests.spark import rest_catalog
from tests.spark.lines import ROOT, environment, has_line
from tests.spark.topics import make_topic, servers

pytestmark = pytest.mark.spark_slow
LINE = "4.1"
"""The newest line of Spark for which both formats have jars."""
WAIT_S = 300.0
DEADLINE_S = 30.0
FORMATS = ("iceberg", "delta", "rest")

Rows = list[list[Any]]
"""Partition, offset, time, key, value, headers; bytes as hexadecimal digits."""


@dataclass
class History:
    """What a broker wrote into a topic and moved into a table, and how the table is found."""

    broker: KafkaOnelog
    topic: str
    table: dict[str, str]
    committed: Rows = field(default_factory=list)
    """All that a consumer of committed records got before anything was cold."""
    cold: dict[int, int] = field(default_factory=dict)
    """Where the part of each partition ends that only the table has."""

    def check(self, seen: Rows) -> None:
        """Each committed record once, and nothing else."""
        below = [row for row in self.committed if row[1] < self.cold[row[0]]]
        assert len(below) > 300
        assert [row for row in seen if row[1] < self.cold[row[0]]] == below
        # The newest segments may be in the table and on the disk.
        assert [row for row in self.committed if row[:2] in [one[:2] for one in seen]] == seen


@pytest.fixture(scope="module")
def histories(tmp_path_factory) -> Iterator[dict[str, History]]:
    """A history of each kind; that with a REST catalog only where there is one."""
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("tables")
        broker = stack.enter_context(serving(folder))
        catalog = {"catalog": f"sqlite:///{folder}/data/lake.db", "name": "onelog"}
        warehouse = {"warehouse": f"file://{folder}/store/lake"}
        found = {
            "iceberg": written(broker, "iceberg", catalog | warehouse),
            "delta": written(broker, "delta", {}),
        }
        if rest_catalog.available():
            folder = tmp_path_factory.mktemp("rest")
            address = stack.enter_context(rest_catalog.rest_catalog(folder))
            broker = stack.enter_context(serving(folder, f'lake.catalog="{address}"'))
            found["rest"] = written(broker, "iceberg", {"catalog": address, "name": "rest"})
        for history in found.values():
            wait_until_cold(history)
        yield found


@contextlib.contextmanager
def serving(folder: Path, *settings: str) -> Iterator[KafkaOnelog]:
    (folder / "store").mkdir()
    options = (f'store.url="file://{folder}/store"', 'data_dir="data"', *settings)
    server = KafkaOnelog(folder, *options).start()
    yield server
    assert server.stop() == 0


def written(broker: KafkaOnelog, table_format: str, table: dict[str, str]) -> History:
    """A topic with all kinds of records whose history becomes a table."""
    topic = f"{table_format}s"
    make_topic(broker, topic, segment_bytes="16384")
    broker.command(
        *("stream", "alter", topic, "--tier", table_format, "--tier-commit", "1s"),
        *("--local-bytes", "0"),
    )
    fill(broker, topic)
    where = f"{broker.folder}/store/lake/{topic}" if table_format == "delta" else f"onelog.{topic}"
    found = History(broker, topic, table | {"table": where})
    found.committed = committed(found)
    return found


def fill(broker: KafkaOnelog, topic: str) -> None:
    """Keys, headers and nulls; compressed batches; transactions that commit and that do not."""
    plain = {"bootstrap.servers": servers(broker), "log_level": 0}
    for codec in ("none", "gzip", "zstd"):
        producer = Producer(plain | {"compression.type": codec, "linger.ms": 20})
        for number in range(80):
            producer.produce(
                topic,
                None if number % 7 == 0 else f"{codec} {number} {'x' * 200}",
                key=None if number % 5 == 0 else b"\x00k%d" % number,
                headers=[("h", b"\x00\xff"), ("none", None), ("é", b"")],
                partition=number % 2,
            )
        assert producer.flush(DEADLINE_S) == 0
    teller = Producer(plain | {"transactional.id": f"engines {topic}"})
    teller.init_transactions(DEADLINE_S)
    for number in range(12):
        teller.begin_transaction()
        for partition in range(2):
            teller.produce(topic, f"transaction {number}", partition=partition)
        teller.flush(DEADLINE_S)
        (teller.commit_transaction if number % 2 else teller.abort_transaction)(DEADLINE_S)
    filler = Producer(plain)
    for number in range(300):  # so that what came before is in sealed segments
        filler.produce(topic, f"filler {number} {'y' * 200}", partition=number % 2)
        if number % 10 == 9:
            assert filler.flush(DEADLINE_S) == 0


def committed(history: History) -> Rows:
    """Every committed record, as a Kafka consumer gets it."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers(history.broker),
            "group.id": f"g{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(history.topic, partition, 0) for partition in range(2)])
    rows: Rows = []
    ends, until = 0, time.monotonic() + WAIT_S
    while ends < 2:
        assert time.monotonic() < until
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            ends += 1
            continue
        headers = [[name, digits(value)] for name, value in message.headers() or ()]
        place = [message.partition(), message.offset(), message.timestamp()[1]]
        rows.append([*place, digits(message.key()), digits(message.value()), headers])
    consumer.close()
    return sorted(rows, key=lambda row: row[:2])


def digits(data: bytes | None) -> str | None:
    return None if data is None else data.hex().upper()


def wait_until_cold(history: History) -> None:
    """Until most of it is only in the table."""
    until = time.monotonic() + WAIT_S
    while True:
        answer = history.broker.get(f"/api/v1/streams/{history.topic}/tier")
        rows = json.loads(answer)["items"]
        history.cold = {row["partition"]: row["local_start_offset"] for row in rows}
        if min(history.cold.values()) > 200:
            return
        assert time.monotonic() < until, rows
        time.sleep(0.5)


def history_of(histories: dict[str, History], kind: str) -> History:
    if kind not in histories:
        pytest.skip("the REST catalog is missing: run 'make conformance-spark' where Maven is")
    return histories[kind]


@pytest.fixture(scope="module")
def by_spark(histories) -> dict[str, Rows]:
    """What Spark reads with Iceberg's and Delta's own jars."""
    if not has_line(LINE):
        pytest.skip(f"PySpark {LINE} is missing: run 'make conformance-spark'")
    if shutil.which("mvn") is None:
        pytest.skip("Maven is missing, and with it the jars: run 'apt-get install maven' as root")
    tables = {kind: history.table for kind, history in histories.items()}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.engines_child", json.dumps(tables)],
        cwd=ROOT, env=environment(LINE), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Rows] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", FORMATS)
def test_the_broker_replays_the_table(histories, kind):
    history = history_of(histories, kind)
    assert committed(history) == history.committed


@pytest.mark.parametrize("kind", FORMATS)
def test_spark_reads_each_committed_record_once_with_the_engine_of_the_format(
    histories, by_spark, kind
):
    history_of(histories, kind).check(by_spark[kind])


@pytest.mark.parametrize("kind", FORMATS)
def test_duckdb_reads_each_committed_record_once_with_its_extension(histories, kind):
    history = history_of(histories, kind)
    extension = "delta" if kind == "delta" else "iceberg"
    with duckdb.connect() as db:
        try:
            db.execute(f"INSTALL {extension}").execute(f"LOAD {extension}")
        except duckdb.Error as problem:
            words = str(problem).partition("\n")[0]
            pytest.skip(f"DuckDB's extension '{extension}' cannot be had: {words}")
        where = history.table["table"]
        if kind != "delta":
            words = {"uri": history.table["catalog"], "type": "rest" if kind == "rest" else "sql"}
            where = load_catalog("t", **words).load_table(where).metadata_location
        db.execute("SET timezone = 'UTC'")
        found = db.execute(
            f'SELECT partition, "offset", epoch_ms(timestamp), hex(key), hex(value), headers'
            f" FROM {extension}_scan($1) ORDER BY 1, 2",
            [where],
        ).fetchall()
    rows = [
        [*row[:5], [[one["key"], digits(one["value"])] for one in row[5] or ()]] for row in found
    ]
    history.check(rows)
