"""History that lies in a bucket only: every protocol reads what every other wrote (I2, I5, I6).

The store is a real S3 server. Nothing of the streams stays on the broker's disk.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from onelog.protocols.kafka.apis import ApiKey
from tests.conformance.mqtt_brokers import DEADLINE_S, GROUPS_AT_ONCE, Onelog, environment
from tests.cross.clients import Clients, Mqtt, Said
from tests.support.forks import run_onelog
from tests.support.kafka_wire import Wire
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, S3Server, available, s3_server

pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")

TOPIC = "cold/all"
BUCKETS: list[S3Server] = []
"""The server of the bucket."""
LONG_S = 120.0
LATEST, EARLIEST, LOCAL_START, COLD = -1, -2, -4, -5
"""Kinds of offsets that a client of Kafka lists."""
LOCAL = {"remote.storage.enable": "false"}
REMOTE = {"remote.storage.enable": "true", "local.retention.bytes": "0", "segment.bytes": "16384"}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    folder = tmp_path_factory.mktemp("tier")
    keys = folder / "keys"
    keys.write_text(
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    with s3_server(folder / "s3") as s3:
        s3.bucket("history")
        BUCKETS.append(s3)
        options = [
            f"aws_endpoint={s3.endpoint}", f"aws_region={REGION}",
            f"credentials_file={keys}",
        ]  # fmt: skip
        found = Onelog(
            folder,
            GROUPS_AT_ONCE,
            "store.url=s3://history/broker",
            f"store.options={json.dumps(options)}",
            "defaults.stream.tier=log",
            "defaults.stream.local_bytes=0",
            "defaults.stream.segment_bytes=16KiB",
        ).start()
        yield found
        assert found.stop() == 0
        # One test takes the bucket away: the broker says so.
        assert not [line for line in found.errors() if "trouble began" not in line]


def command(server: Onelog, *words: str) -> str:
    where = environment() | {
        "ONELOG_LISTENERS_ADMIN_PORT": str(server.ports["admin"]),
        "ONELOG_DATA_DIR": str(server.folder / "data"),
    }
    done = run_onelog(*words, environment=where, folder=server.folder, timeout_s=LONG_S)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.decode()


def tier_rows(server: Onelog, stream: str) -> list[dict]:
    return json.loads(command(server, "stream", "tier", stream, "--json"))["items"]


def offload(server: Onelog, stream: str) -> list[dict]:
    """Move everything of a stream; its partitions with records."""
    command(server, "stream", "offload", stream)
    rows = [row for row in tier_rows(server, stream) if row["pieces"]]
    for row in rows:
        assert row["local_start_offset"] == row["cold_end_offset"] > 0, row
        assert row["lag_bytes"] == 0
    return rows


@pytest.fixture(scope="module")
def servers(server) -> dict[str, str]:
    return {"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}", "log_level": "0"}


@pytest.fixture(scope="module")
def written(server, servers) -> list[str]:
    """What lies in the topic, by whom it was written; all of it in the bucket."""
    name = TOPIC.replace("/", ".")
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(name, 1, config=REMOTE)])[name].result(DEADLINE_S)
    expected, clients = [], Clients(server.ports)

    def others(number: int) -> None:
        for writer in ("mqtt3", "mqtt5", "amqp", "kafka"):
            text = f"{writer} {number} {'y' * 300}"
            clients[writer].write(Said(text.encode()), TOPIC)
            expected.append(text)

    others(1)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = Producer(servers | {"compression.type": codec, "linger.ms": 50})
        for number in range(20):
            text = f"{codec} {number} {os.urandom(150).hex()}"
            producer.produce(name, text)
            expected.append(text)
        assert producer.flush(DEADLINE_S) == 0
    teller = Producer(servers | {"transactional.id": "cold", "compression.type": "zstd"})
    teller.init_transactions(DEADLINE_S)
    for number, commits in enumerate((True, False, True, False)):
        teller.begin_transaction()
        texts = [f"transaction {number} {row} {os.urandom(300).hex()}" for row in range(5)]
        for text in texts:
            teller.produce(name, text)
        teller.flush(DEADLINE_S)
        if commits:
            teller.commit_transaction(DEADLINE_S)
            expected += texts
        else:
            teller.abort_transaction(DEADLINE_S)
        others(number + 2)
    clients.close()
    (row,) = offload(server, name)
    assert row["pieces"] > 1
    return expected


def replayed(server: Onelog, text: str, via: str, *more: str) -> list[str]:
    done = run_onelog(
        *("replay", text, "--via", via, "--port", str(server.ports[via]), *more),
        environment=environment(),
        timeout_s=LONG_S,
    )
    done.check_returncode()
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("via", ["mqtt", "kafka", "amqp"])
@pytest.mark.parametrize("text", [TOPIC, "cold/+"], ids=["topic", "filter"])
def test_history_in_a_bucket_is_read_by_each(server, written, via, text):
    assert replayed(server, text, via) == written


def test_new_records_follow_those_of_the_bucket(server, written):
    for number in range(3):
        command(
            server, "pub", TOPIC, f"fresh {number}", "--via", "mqtt",
            "--port", str(server.ports["mqtt"]),
        )  # fmt: skip
    fresh = [f"fresh {number}" for number in range(3)]
    assert replayed(server, TOPIC, "kafka") == written + fresh
    assert replayed(server, TOPIC, "mqtt") == written + fresh


def test_one_topic_of_a_stream_of_many_is_found_in_the_bucket(server, servers):
    clients = Clients(server.ports)
    command(server, "stream", "create", "fleet", "--capture", "fleet/#", "--partitions", "2")
    own = []
    for number in range(300):
        writer = ("mqtt3", "mqtt5", "amqp")[number % 3]
        topic = f"fleet/{number % 50}/telemetry"
        text = f"{number} {'z' * 200}"
        clients[writer].write(Said(text.encode()), topic)
        if number % 50 == 7:
            own.append(text)
    clients.close()
    assert len(offload(server, "fleet")) == 2
    for via in ("mqtt", "kafka", "amqp"):
        assert replayed(server, "fleet/7/telemetry", via) == own


def test_a_kafka_group_reads_a_bucket_from_earliest_and_by_time(servers, written):
    consumer = Consumer(
        servers
        | {
            "group.id": "cold-readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
        }
    )
    name = TOPIC.replace("/", ".")
    consumer.subscribe([name])
    found: list[str] = []
    while len(found) < len(written) + 10:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message.value().decode())
    aborted = [text for text in found if text.startswith(("transaction 1 ", "transaction 3 "))]
    assert len(aborted) == 10
    assert [text for text in found if text not in aborted][: len(written)] == written
    (first,) = consumer.offsets_for_times([TopicPartition(name, 0, 1)], DEADLINE_S)
    assert first.offset == 0
    consumer.close()


def test_kafka_says_where_the_local_log_begins_and_which_settings_made_it_so(
    server, servers, written
):
    admin, name = AdminClient(servers), TOPIC.replace("/", ".")
    place = TopicPartition(name, 0)
    ends = {
        kind: admin.list_offsets({place: spec})[place].result(DEADLINE_S).offset
        for kind, spec in (("earliest", OffsetSpec.earliest()), ("latest", OffsetSpec.latest()))
    }
    (row,) = tier_rows(server, name)
    assert ends["earliest"] == row["start_offset"] == 0
    assert row["local_start_offset"] <= ends["latest"]
    resource = ConfigResource(ResourceType.TOPIC, name)
    (told,) = admin.describe_configs([resource]).values()
    settings = told.result(DEADLINE_S)
    for key, value in REMOTE.items():
        assert settings[key].value == value
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    wrong = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    (changed,) = admin.incremental_alter_configs([wrong]).values()
    with pytest.raises(KafkaException, match="cannot go with cleanup = compact"):
        changed.result(DEADLINE_S)


def listed(server: Onelog, topic: str, kind: int) -> tuple[int, int]:
    """Error code and offset of a kind."""
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": kind}]
    with Wire(server.ports["kafka"]) as wire:
        answer = wire.ask(
            ApiKey.LIST_OFFSETS, 9, replica_id=-1, isolation_level=0,
            topics=[{"name": topic, "partitions": asked}], timeout_ms=30_000,
        )  # fmt: skip
    (row,) = answer.topics[0].partitions
    return int(row.error_code), row.offset


def test_kafka_lists_the_local_start_and_the_end_of_the_bucket(server, servers):
    admin = AdminClient(servers)
    topics = [NewTopic("edges.t", 1, config=REMOTE), NewTopic("edges.off", 1, config=LOCAL)]
    for made in admin.create_topics(topics).values():
        made.result(DEADLINE_S)
    producer = Producer(servers)
    for number in range(90):
        if number == 60:
            offload(server, "edges.t")
        producer.produce("edges.t", b"%d" % number)
        producer.produce("edges.off", b"%d" % number)
        assert producer.flush(DEADLINE_S) == 0
    (row,) = tier_rows(server, "edges.t")
    assert (row["local_start_offset"], row["cold_end_offset"]) == (60, 60)
    found = {
        kind: listed(server, "edges.t", kind) for kind in (EARLIEST, LATEST, LOCAL_START, COLD)
    }
    assert found == {EARLIEST: (0, 0), LATEST: (0, 90), LOCAL_START: (0, 60), COLD: (0, 59)}
    assert listed(server, "edges.off", LOCAL_START) == (0, 0)
    assert listed(server, "edges.off", COLD) == (0, -1), "nothing of it is in the bucket"


def requests(server: Onelog) -> int:
    """Reads of the bucket since the start."""
    return json.loads(command(server, "store", "status", "--json"))["total"]["get"]


def test_a_subscribe_gets_retained_messages_without_a_read_of_the_bucket(server):
    command(server, "stream", "create", "states", "--capture", "states/#")
    for number in range(5):
        command(
            server, "pub", f"states/{number}", f"on {number}", "--retain", "--via", "mqtt",
            "--port", str(server.ports["mqtt"]),
        )  # fmt: skip
    offload(server, "states")
    before = requests(server)
    reader = Mqtt(server.ports["mqtt"], 5, "states/#")
    assert sorted(reader.read().payload for _ in range(5)) == [b"on %d" % n for n in range(5)]
    reader.close()
    assert requests(server) == before


def consumed(servers: dict[str, str], topic: str, count: int) -> list[str]:
    """The first values of a topic, as a consumer has them that goes on whatever it hears."""
    consumer = Consumer(servers | {"group.id": topic, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    ends_at = time.monotonic() + LONG_S
    while len(found) < count and time.monotonic() < ends_at:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
    consumer.close()
    return found


def test_readers_wait_for_a_bucket_that_is_away_and_then_have_everything_once(server, servers):
    admin = AdminClient(servers)
    admin.create_topics([NewTopic("late.t", 1, config=REMOTE)])["late.t"].result(DEADLINE_S)
    clients = Clients(server.ports)
    texts = [f"{number} {'w' * 400}" for number in range(100)]
    for text in texts:
        clients["mqtt3"].write(Said(text.encode()), "late/t")
    clients.close()
    offload(server, "late.t")
    (s3,) = BUCKETS
    s3.kill()
    with ThreadPoolExecutor(3) as pool:
        found = {
            via: pool.submit(replayed, server, "late/t", via, "--follow", "--count", "100")
            for via in ("mqtt", "amqp")
        }
        found["kafka"] = pool.submit(consumed, servers, "late.t", 100)
        time.sleep(3.0)
        for via, one in found.items():
            assert not one.done(), (via, one.exception() or one.result())
        clients = Clients(server.ports)
        clients["mqtt5"].write(Said(b"while it is away"), "late/t")  # writers wait for nobody
        clients.close()
        s3.start()
        for via, one in found.items():
            assert one.result(LONG_S) == texts, via
