"""Does Spark read a real tier: moved by a real broker into SeaweedFS, with the broker idle?"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.object_broker import cpu_s
from onelog.kafka_client import LATEST, Client
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.pipelines.spec import BrokerKeys
from onelog.pipelines.sql import Query
from onelog.pipelines.workspace import Workspace
from onelog.record.batch import Row, build_batch
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.spark.topics import access, make_topic, row, servers
from tests.support.s3_server import S3Server, available, s3_server

pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is missing: run 'make setup'")
PARTITIONS = 2
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
}
WAIT_S = 180.0
"""Tiers look every 30 seconds."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket("log")
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory, s3) -> Iterator[KafkaOnelog]:
    folder = tmp_path_factory.mktemp("tiered")
    options = [f"{name}={value}" for name, value in s3.store_options.items()]
    server = KafkaOnelog(
        folder,
        "store.url=s3://log/broker",
        f"store.options={json.dumps(options)}",
    ).start()
    yield server
    assert server.stop() == 0
    # The library of a table writes lines of its own beside the broker's.
    lines = (folder / "stderr").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert rows
    assert not [row for row in rows if row["level"] in ("error", "critical")]


@pytest.fixture
def keys(s3) -> dict[str, str]:
    return {name: text for name, text in s3.options.items() if "key" in name}


def fill(broker: KafkaOnelog, topic: str, first: int, count: int) -> None:
    """Records of a kilobyte, in both partitions."""
    with Client(access(broker)) as client:
        for at in range(first, first + count, 200):
            for partition in range(PARTITIONS):
                rows: list[Row] = [
                    row(f"{partition}-{number}-" + "x" * 1000, time_ms=number)
                    for number in range(at, at + 200)
                ]
                found = client.produce({(topic, partition): build_batch(rows)})
                assert found[topic, partition].code == 0


def until_cold(broker: KafkaOnelog, topic: str, least: int) -> dict[int, int]:
    """Where the cold part of each partition ends, when all have so many offsets there."""
    deadline = time.monotonic() + WAIT_S
    with Client(access(broker)) as client:
        parts = [(topic, number) for number in range(PARTITIONS)]
        last = client.offsets(dict.fromkeys(parts, LATEST))
        while True:
            found = {part: client.cold(*part, 0, last[part]) for part in parts}
            ends = {part[1]: one.end if one else 0 for part, one in found.items()}
            if min(ends.values()) >= least:
                return ends
            assert time.monotonic() < deadline, ends
            time.sleep(0.2)


def read(spark, broker, topic: str, keys: dict[str, str], **options: str):
    named = {"servers": servers(broker), "subscribe": topic, **keys, **options}
    return spark.read.format("onelog").options(**named).load()


def values(frame) -> list[str]:
    return sorted(bytes(one.value).decode().rsplit("-", 1)[0] for one in frame.collect())


def numbers(count: int, first: int = 0) -> list[str]:
    return sorted(f"{p}-{n}" for p in range(PARTITIONS) for n in range(first, count))


def test_a_cold_read_leaves_the_broker_idle(spark, broker, keys) -> None:
    topic = make_topic(broker, unique("tier"), PARTITIONS, **TIERED)
    fill(broker, topic, 0, 8000)
    ends = until_cold(broker, topic, 5000)
    until = json.dumps({topic: {str(number): end for number, end in ends.items()}})
    read(spark, broker, topic, keys, endingOffsets=until).count()  # workers are there now
    names = ("onelog_store_requests_total", "onelog_kafka_requests_total")
    before = [broker.metric(name) for name in names]
    began, used = time.monotonic(), cpu_s(broker.process.pid)
    found = values(read(spark, broker, topic, keys, endingOffsets=until, coldReads="store"))
    cpu, took = cpu_s(broker.process.pid) - used, time.monotonic() - began
    gets, requests = (broker.metric(name) - was for name, was in zip(names, before, strict=True))
    assert found == sorted(f"{p}-{n}" for p, end in ends.items() for n in range(end))
    assert gets == 0
    assert requests <= 12  # topics, offsets and rows: no fetch
    assert cpu < max(0.1 * took, 0.1), f"{cpu} s of CPU in {took} s"


def abort_some(broker: KafkaOnelog, topic: str) -> None:
    """Records that nobody sees, in both partitions."""
    with Client(access(broker)) as client:
        name = unique("txn")
        producer = client.init_producer(name, 60_000)
        for partition in range(PARTITIONS):
            client.add_partitions(name, producer, [(topic, partition)])
            data = build_batch(
                [row("aborted-x")] * 100, attributes=ATTR_TRANSACTIONAL, producer=(*producer, 0)
            )
            client.produce({(topic, partition): data}, name)
        client.end(name, producer, commit=False)


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_table_and_the_log_behind_it_are_one_stream(spark, broker, keys, tmp_path, form) -> None:
    settings = {
        "onelog.tier.format": form,
        "onelog.tier.commit.ms": "1000",
        "segment.bytes": "1048576",
        "local.retention.bytes": "1",
    }
    topic = make_topic(broker, unique("lake"), PARTITIONS, **settings)
    fill(broker, topic, 0, 1000)
    abort_some(broker, topic)
    fill(broker, topic, 1000, 4000)
    until_cold(broker, topic, 3000)
    with Client(access(broker)) as client:
        part = client.cold(topic, 0, 0, 3000)
    assert part is not None
    assert {one.kind for one in part.rows} == {"parquet"}
    assert part.table is not None
    assert part.table[0] == form
    fill(broker, topic, 5000, 200)
    columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    frames = [
        read(spark, broker, topic, keys, coldReads=how, includeHeaders="true")
        for how in ("store", "broker")
    ]
    by_store, by_broker = (frame.sort("partition", "offset").collect() for frame in frames)
    assert by_store == by_broker
    assert by_store[0].asDict().keys() == {*columns, "headers"}
    assert values(frames[0]) == numbers(5200)
    query = Query(spark, Workspace(tmp_path, servers(broker)), BrokerKeys(options=keys))
    sql = f"SELECT count(*), count(DISTINCT `partition`, `offset`) FROM stream('{topic}')"
    assert query.ask(sql).take(1) == [(10_400, 10_400)]


def test_history_and_the_tail_are_one(spark, broker, keys) -> None:
    topic = make_topic(broker, unique("tier"), PARTITIONS, **TIERED)
    fill(broker, topic, 0, 6000)
    until_cold(broker, topic, 3000)
    fill(broker, topic, 6000, 400)
    assert values(read(spark, broker, topic, keys)) == numbers(6400)
    assert values(read(spark, broker, topic, keys, coldReads="broker")) == numbers(6400)


def test_a_plan_survives_retention_and_a_restart(spark, broker, keys, tmp_path: Path) -> None:
    topic = make_topic(broker, unique("tier"), PARTITIONS, **TIERED)
    fill(broker, topic, 0, 6000)
    until_cold(broker, topic, 4000)
    frame = read(spark, broker, topic, keys)
    frame.rdd.getNumPartitions()  # it is planned
    broker.kill()
    broker.start()
    with Client(access(broker)) as client:
        assert client.cold(topic, 0, 0, 6000) is not None
    assert values(frame.rdd.map(lambda one: one).toDF(frame.schema)) == numbers(6000)
