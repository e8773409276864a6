"""Does Spark read streams of the engine `object` from their data objects, with the broker idle?

SeaweedFS holds the objects, and `onelog serve` runs in a process of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from bench.object_spark import cpu_s
from onelog.kafka_client import LATEST, Client, ColdPart
from onelog.kernel import ATTR_TRANSACTIONAL
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.pipelines.spec import BrokerKeys
from onelog.pipelines.sql import Query
from onelog.pipelines.workspace import Workspace
from onelog.record.batch import build_batch
from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.spark.topics import access, make_topic, row, servers
from tests.support.s3_server import S3Server, available, s3_server

pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is missing: run 'make setup'")
PARTITIONS = 2
WAIT_S = 60.0
REQUESTS = ("onelog_store_requests_total", "onelog_kafka_requests_total")


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        running.bucket("log")
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory, s3) -> Iterator[KafkaOnelog]:
    options = [f"{name}={value}" for name, value in s3.store_options.items()]
    server = KafkaOnelog(
        tmp_path_factory.mktemp("object"),
        "store.url=s3://log/broker",
        f"store.options={json.dumps(options)}",
        "store.grace_ms=0",
        "defaults.stream.engine=object",
        "defaults.stream.durability=fsync",
        "object.linger_ms=10",
        "object.settle_ms=1000",
    ).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def store(s3) -> ObjectStore:
    return open_store(StoreSettings(url="s3://log/broker", options=s3.store_options))


@pytest.fixture
def keys(s3) -> dict[str, str]:
    return {name: text for name, text in s3.options.items() if "key" in name}


def fill(broker: KafkaOnelog, topic: str, first: int, count: int) -> None:
    """Records of a kilobyte, in all partitions."""
    with Client(access(broker)) as client:
        for at in range(first, first + count, 200):
            rows = {
                (topic, number): build_batch(
                    [row(f"{number}-{n}-" + "x" * 1000, time_ms=n) for n in range(at, at + 200)]
                )
                for number in range(PARTITIONS)
            }
            assert all(found.code == 0 for found in client.produce(rows).values())


def abort_some(broker: KafkaOnelog, topic: str) -> None:
    """Transactions that nobody sees, and one that everybody sees, in all partitions."""
    with Client(access(broker)) as client:
        for commit in (False, True, False):
            name = unique("txn")
            producer = client.init_producer(name, 60_000)
            text = "committed-0" if commit else "aborted-0"
            for number in range(PARTITIONS):
                client.add_partitions(name, producer, [(topic, number)])
                data = build_batch(
                    [row(f"{text}-x")] * 50,
                    attributes=ATTR_TRANSACTIONAL,
                    producer=(*producer, 0),
                )
                client.produce({(topic, number): data}, name)
            client.end(name, producer, commit=commit)


def until_settled(broker: KafkaOnelog, topic: str) -> list[ColdPart]:
    """The rows of each partition, when all that was decided has rows."""
    deadline = time.monotonic() + WAIT_S
    with Client(access(broker)) as client:
        parts = [(topic, number) for number in range(PARTITIONS)]
        while True:
            last = client.offsets(dict.fromkeys(parts, LATEST))
            found = [client.cold(*part, 0, last[part]) for part in parts]
            done = [one for one in found if one is not None]
            if all(one.end == last[part] for one, part in zip(done, parts, strict=True)):
                return done
            assert time.monotonic() < deadline, done
            time.sleep(0.1)


def read(spark, broker, topic: str, keys: dict[str, str], **options: str):
    named = {"servers": servers(broker), "subscribe": topic, **keys, **options}
    return spark.read.format("onelog").options(**named).load()


def values(frame) -> list[str]:
    return sorted(bytes(one.value).decode().rsplit("-", 1)[0] for one in frame.collect())


def numbers(count: int) -> list[str]:
    return [f"{p}-{n}" for p in range(PARTITIONS) for n in range(count)]


def test_tasks_read_data_objects_and_the_broker_stays_idle(spark, broker, keys) -> None:
    topic = make_topic(broker, unique("object"), PARTITIONS)
    fill(broker, topic, 0, 1000)
    abort_some(broker, topic)
    fill(broker, topic, 1000, 2000)
    parts = until_settled(broker, topic)
    assert {one.position for one in parts[0].rows} != {
        one.position for one in parts[1].rows
    }  # partitions share objects
    assert all(len(one.aborted) == 2 for one in parts)
    read(spark, broker, topic, keys).count()  # workers are there now
    before = [broker.metric(name) for name in REQUESTS]
    began, used = time.monotonic(), cpu_s(broker.process.pid)
    found = values(read(spark, broker, topic, keys, coldReads="store"))
    cpu, took = cpu_s(broker.process.pid) - used, time.monotonic() - began
    gets, requests = (broker.metric(name) - was for name, was in zip(REQUESTS, before, strict=True))
    assert found == sorted(numbers(3000) + ["committed-0"] * 50 * PARTITIONS)
    assert found == values(read(spark, broker, topic, keys, coldReads="broker"))
    assert gets <= 1  # a chain has nothing to write; the sweep may look
    assert requests <= 12  # topics, offsets and rows: no fetch
    assert cpu < max(0.1 * took, 0.1), f"{cpu} s of CPU in {took} s"


def test_what_is_not_settled_comes_from_the_broker_in_the_same_query(
    spark, broker, keys, tmp_path
) -> None:
    topic = make_topic(broker, unique("object"), PARTITIONS)
    fill(broker, topic, 0, 2000)
    until_settled(broker, topic)
    query = Query(spark, Workspace(tmp_path, servers(broker)), BrokerKeys(options=keys))
    fill(broker, topic, 2000, 200)
    sql = f"SELECT count(*), count(DISTINCT partition, `offset`) FROM stream('{topic}')"
    assert query.ask(sql).take(1) == [(2200 * PARTITIONS, 2200 * PARTITIONS)]


def test_objects_that_are_gone_by_a_join_are_asked_for_again(spark, broker, store, keys) -> None:
    topic = make_topic(broker, unique("object"), PARTITIONS)
    for at in range(0, 1400, 200):
        fill(broker, topic, at, 200)
        planned = until_settled(broker, topic)
    frame = read(spark, broker, topic, keys, coldReads="store")
    frame.rdd.getNumPartitions()  # it is planned now
    named = {one.object for part in planned for one in part.rows}
    deadline = time.monotonic() + WAIT_S
    at, fresh = 1400, planned
    while any(one.object in named for part in fresh for one in part.rows[:1]):
        assert time.monotonic() < deadline
        fill(broker, topic, at, 200)  # the eighth row joins
        fresh = until_settled(broker, topic)
        at += 200
    still = {found.name for found in store.list("d/")}
    assert named <= still  # the lease of the plan
    store.delete(sorted(named - {one.object for part in fresh for one in part.rows}))
    before = broker.metric("onelog_store_requests_total")
    found = sorted((one.partition, one.offset) for one in frame.rdd.collect())
    assert found == [(p, n) for p in range(PARTITIONS) for n in range(1400)]
    assert broker.metric("onelog_store_requests_total") - before <= 2  # no read by the broker


def test_a_table_of_the_engine_and_its_data_objects_are_one_stream(spark, broker, keys) -> None:
    topic = make_topic(broker, unique("object"), PARTITIONS)
    fill(broker, topic, 0, 1000)
    abort_some(broker, topic)
    words = ("--tier", "delta", "--tier-commit", "1s", "--local-bytes", "0")
    broker.command("stream", "alter", topic, *words)
    broker.command("stream", "offload", topic)
    fill(broker, topic, 1000, 1000)
    for part in until_settled(broker, topic):
        assert {one.kind for one in part.rows} == {"parquet", "log"}
        assert [one.base for one in part.rows[1:]] == [one.end for one in part.rows[:-1]]
    found = values(read(spark, broker, topic, keys, coldReads="store"))
    assert found == sorted(numbers(2000) + ["committed-0"] * 50 * PARTITIONS)
    assert found == values(read(spark, broker, topic, keys, coldReads="broker"))
