"""An operator's commands on a bucket, and a topic of Kafka that lies in it: on a real S3 server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from onelog.objects.names import chain_wal, parse_chain
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog, environment
from tests.support.forks import run_onelog
from tests.support.s3_server import REGION, S3Server, available, s3_server, write_keys
from tests.support.store_proxy import FOREVER, StoreProxy, store_proxy

pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")

URL = "s3://history/broker"
TOPIC = "stored"


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        found.bucket("history")
        yield found


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[StoreProxy]:
    with store_proxy(s3.endpoint) as between:
        yield between


@pytest.fixture(scope="module")
def server(s3: S3Server, proxy: StoreProxy, tmp_path_factory) -> Iterator[Onelog]:
    folder = tmp_path_factory.mktemp("broker")
    write_keys(folder / "keys")
    options = [
        f"aws_endpoint={proxy.endpoint}", f"aws_region={REGION}",
        f"credentials_file={folder}/keys",
    ]  # fmt: skip
    found = Onelog(
        folder,
        f'store.url="{URL}"',
        f"store.options={json.dumps(options)}",
        'data_dir="data"',
        "object.linger_ms=5",
        "object.settle_ms=200",
    ).start()
    yield found
    assert found.stop() == 0


@pytest.fixture(scope="module")
def store(s3: S3Server) -> ObjectStore:
    """The bucket without the proxy."""
    return open_store(StoreSettings(url=URL, options=s3.store_options))


@pytest.fixture(scope="module")
def written(server: Onelog) -> list[bytes]:
    """What a client of Kafka wrote to a topic that it made in the engine `object`."""
    admin = AdminClient(servers(server))
    settings = {"onelog.engine": "object", "retention.ms": "-1"}
    admin.create_topics([NewTopic(TOPIC, 1, config=settings)])[TOPIC].result(DEADLINE_S)
    producer = Producer(servers(server) | {"enable.idempotence": True})
    values = [b"value %d" % number for number in range(50)]
    for value in values:
        producer.produce(TOPIC, value)
    assert producer.flush(DEADLINE_S) == 0
    return values


def servers(server: Onelog) -> dict[str, object]:
    return {"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", "log_level": 0}


def fetched(server: Onelog, count: int) -> list[bytes]:
    consumer = Consumer(servers(server) | {"group.id": f"g{time.monotonic_ns()}"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    ends = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < ends:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            found.append(message.value())
    consumer.close()
    return found


def test_a_topic_of_the_engine_object_is_in_the_bucket_and_outlives_a_kill(server, written, store):
    admin = AdminClient(servers(server))
    asked = ConfigResource(ResourceType.TOPIC, TOPIC)
    told = admin.describe_configs([asked])[asked].result(DEADLINE_S)
    assert told["onelog.engine"].value == "object"
    assert fetched(server, len(written)) == written
    assert list(store.list("n/")), "there is no chain"
    server.kill()
    server.start()
    assert fetched(server, len(written)) == written


def test_check_tries_the_store_leaves_nothing_there_and_gives_advice(server, store):
    told = json.loads(server.command("store", "check", "--json"))
    assert told["url"] == URL
    assert told["create_ms"] > 0 and told["get_ms"] > 0
    assert abs(told["clock_ms"]) < 60_000
    assert any("lifecycle rule" in line for line in told["advice"])
    assert list(store.list("probe/")) == []
    assert "keeps what a log needs" in server.command("store", "check")


def test_check_of_a_store_that_refuses_us_is_an_error_in_one_line(server, proxy):
    proxy.fault("refuse", FOREVER)
    try:
        done = run_onelog(
            "store", "check", folder=server.folder, environment=environment(), timeout_s=DEADLINE_S
        )
    finally:
        proxy.heal()
    assert done.returncode != 0
    said = " ".join(done.stderr.decode().split())
    assert "check the key" in said and "Traceback" not in said, said


def test_status_counts_requests_and_what_the_store_said_last(server, written, proxy):
    told = json.loads(server.command("store", "status", "--json"))
    assert told["url"] == URL
    assert told["total"]["put"] > 0
    before = told["total"]["put"]
    producer = Producer(servers(server))
    producer.produce(TOPIC, b"one more")
    assert producer.flush(DEADLINE_S) == 0
    written.append(b"one more")
    assert json.loads(server.command("store", "status", "--json"))["total"]["put"] > before
    assert URL in server.command("store", "status")


def test_sweep_deletes_what_is_old_and_named_by_nothing(server, written, store, proxy):
    ends = time.monotonic() + DEADLINE_S
    while not list(store.list("d/")):  # the engine settles by itself
        assert time.monotonic() < ends
        time.sleep(0.1)
    orphan = "d/00/00000000000000000000000000000000"
    store.put(orphan, [b"what a failed upload left"])
    young = json.loads(server.command("store", "sweep", "--json"))
    assert young["deleted"] == 0 and young["young"] >= 2
    proxy.fault("age", FOREVER, method="GET", path="prefix=broker%2Fd%2F")
    try:
        looked = json.loads(server.command("store", "sweep", "--dry-run", "--json"))
        assert looked["names"] == [orphan] and looked["deleted"] == 1
        assert store.get(orphan), "it was only looked"
        swept = json.loads(server.command("store", "sweep", "--json"))
        assert swept["names"] == [orphan] and swept["deleted"] == 1
    finally:
        proxy.heal()
    named = {row.name for row in store.list("d/")}
    assert named and orphan not in named
    assert fetched(server, len(written)) == written


def test_sweep_takes_what_a_replaced_broker_wrote_late(server, written, store, proxy):
    server.kill()
    server.start()
    assert fetched(server, len(written)) == written  # the chain is open
    newest = parse_chain(next(iter(store.list("n/"))).name)
    late = chain_wal(newest.node, newest.epoch - 1, 1_000)
    store.put(late, [b"a writer that was fenced and has not noticed"])
    proxy.fault("age", FOREVER, method="GET", path="prefix=broker%2Fn%2F")
    try:
        server.command("store", "sweep")
    finally:
        proxy.heal()
    assert late not in {row.name for row in store.list("n/")}
    server.kill()
    server.start()
    assert fetched(server, len(written)) == written
