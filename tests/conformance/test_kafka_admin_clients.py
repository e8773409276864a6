"""Administration by the clients that people use: librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import aiokafka.admin as aio
import aiokafka.errors as aio_errors
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.conformance.kafka_brokers import KafkaOnelog, unique
from tests.conformance.kafka_cluster import KafkaCluster

with warnings.catch_warnings():  # its own way to read its files is an old one
    warnings.simplefilter("ignore")
    import kafka.admin as kp
    import kafka.errors as kp_errors

DEADLINE_S = 20.0


def settled(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(DEADLINE_S) for future in futures.values()]


def refusal(futures: dict[Any, Any]) -> str:
    """The name of the error that all of them end with."""
    names = set()
    for future in futures.values():
        with pytest.raises(KafkaException) as caught:
            future.result(DEADLINE_S)
        names.add(caught.value.args[0].name())
    (name,) = names
    return name


# -- librdkafka


@pytest.fixture
def server(kafka_ours) -> KafkaOnelog | KafkaCluster:
    return kafka_ours


@pytest.fixture
def settings(server) -> dict[str, Any]:
    return {"bootstrap.servers": f"127.0.0.1:{server.port}", "socket.timeout.ms": 10_000}


@pytest.fixture
def admin(settings) -> AdminClient:
    return AdminClient(settings)


@pytest.fixture
def topic(admin) -> str:
    name = unique("rd")
    settled(admin.create_topics([NewTopic(name, 2, 1)]))
    return name


def produce(settings: dict[str, Any], name: str, *values: bytes, **rest: Any) -> list[Any]:
    """Send values to partition 0; what the client was told of each."""
    told: list[Any] = []
    producer = Producer(settings | {"linger.ms": 0} | rest)
    for value in values:
        producer.produce(
            name, value, b"key", 0, on_delivery=lambda error, message: told.append((error, message))
        )
    assert producer.flush(DEADLINE_S) == 0
    return told


def resource(name: str, *changes: ConfigEntry) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=list(changes) or None)


def config_of(admin: AdminClient, name: str, kind: Any = ResourceType.TOPIC) -> dict[str, Any]:
    (found,) = settled(admin.describe_configs([ConfigResource(kind, name)]))
    return found


def test_rdkafka_makes_grows_and_deletes_topics(admin) -> None:
    name = unique("rd")
    made = NewTopic(name, 3, 1, config={"cleanup.policy": "compact", "retention.ms": "60000"})
    settled(admin.create_topics([made]))
    rows = admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions
    assert sorted(rows) == [0, 1, 2]
    assert refusal(admin.create_topics([made])) == "TOPIC_ALREADY_EXISTS"
    settled(admin.create_partitions([NewPartitions(name, 5)]))
    assert len(admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions) == 5
    assert refusal(admin.create_partitions([NewPartitions(name, 5)])) == "INVALID_PARTITIONS"
    settled(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=DEADLINE_S).topics
    assert refusal(admin.delete_topics([name])) == "UNKNOWN_TOPIC_OR_PART"


def test_rdkafka_is_told_why_a_topic_cannot_be(admin) -> None:
    name = unique("rd")
    assert refusal(admin.create_topics([NewTopic(name, 1, 4)])) == "INVALID_REPLICATION_FACTOR"
    bad = NewTopic(name, 1, 1, config={"compression.type": "brotli"})
    (future,) = admin.create_topics([bad]).values()
    with pytest.raises(KafkaException) as caught:
        future.result(DEADLINE_S)
    assert caught.value.args[0].name() == "INVALID_CONFIG"
    assert caught.value.args[0].str() == (
        "compression.type cannot be 'brotli': it is one of producer, uncompressed, gzip, snappy,"
        " lz4, zstd"
    )
    assert refusal(admin.create_topics([bad], validate_only=True)) == "INVALID_CONFIG"


def test_rdkafka_sees_and_changes_settings(admin, topic) -> None:
    before = config_of(admin, topic)
    assert before["retention.ms"].value == "604800000"
    assert before["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    assert [row.name for row in before["retention.ms"].synonyms.values()] == ["log.retention.ms"]
    change = resource(
        topic,
        ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
    )
    settled(admin.incremental_alter_configs([change], validate_only=True))
    assert config_of(admin, topic)["retention.ms"].value == "604800000"
    settled(admin.incremental_alter_configs([change]))
    after = config_of(admin, topic)
    assert after["retention.ms"].value == "5000"
    assert after["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert after["cleanup.policy"].value == "compact,delete"
    back = resource(
        topic, ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    )
    settled(admin.incremental_alter_configs([back]))
    assert config_of(admin, topic)["retention.ms"].value == "604800000"


def test_rdkafka_sees_the_node(admin) -> None:
    cluster = admin.describe_cluster().result(DEADLINE_S)
    told = config_of(admin, str(cluster.controller.id), ResourceType.BROKER)
    assert told["num.partitions"].value == "4"
    assert told["num.partitions"].is_read_only


def test_rdkafka_deletes_records(admin, settings, topic) -> None:
    produce(settings, topic, *[b"%d" % number for number in range(10)])
    place = TopicPartition(topic, 0, 4)
    (deleted,) = settled(admin.delete_records([place]))
    assert deleted.low_watermark == 4
    (earliest,) = settled(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}))
    assert earliest.offset == 4
    (deleted,) = settled(admin.delete_records([TopicPartition(topic, 0, -1)]))
    assert deleted.low_watermark == 10
    assert refusal(admin.delete_records([TopicPartition(topic, 0, 11)])) == "OFFSET_OUT_OF_RANGE"


def test_a_batch_over_max_message_bytes_is_refused(admin, settings) -> None:
    name = unique("rd")
    settled(admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "1000"})]))
    ((small, _),) = produce(settings, name, b"x" * 500)
    assert small is None
    ((large, _),) = produce(settings, name, b"x" * 2000)
    assert large.name() == "MSG_SIZE_TOO_LARGE"
    # Stored bytes count: what compresses well enough fits.
    ((packed, _),) = produce(settings, name, b"x" * 2000, **{"compression.type": "gzip"})
    assert packed is None
    more = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    settled(admin.incremental_alter_configs([resource(name, more)]))
    ((large, _),) = produce(settings, name, b"x" * 2000)
    assert large is None


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_have_the_time_of_their_append_where_the_topic_says_so(
    admin, settings, codec
) -> None:
    name = unique("rd")
    configs = {"message.timestamp.type": "LogAppendTime"}
    settled(admin.create_topics([NewTopic(name, 1, 1, config=configs)]))
    before_ms = int(time.time() * 1000) - 1
    producer = Producer(settings | {"compression.type": codec, "linger.ms": 50})
    told: list[Any] = []
    for number in range(20):
        producer.produce(
            name,
            b"%d" % number * 20,
            timestamp=1_000_000,
            on_delivery=lambda error, message: told.append((error, message.timestamp())),
        )
    assert producer.flush(DEADLINE_S) == 0
    after_ms = int(time.time() * 1000) + 1
    appended = 2
    for error, (kind, at_ms) in told:
        assert error is None
        assert kind == appended
        assert before_ms <= at_ms <= after_ms
    reading = settings | {"group.id": name, "check.crcs": True, "auto.offset.reset": "earliest"}
    consumer = Consumer(reading)
    consumer.assign([TopicPartition(name, 0, 0)])
    deadline, found = time.monotonic() + DEADLINE_S, []
    while len(found) < 20:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            found.append(message)
    consumer.close()
    assert [message.value() for message in found] == [b"%d" % n * 20 for n in range(20)]
    for message in found:
        kind, at_ms = message.timestamp()
        assert kind == appended
        assert before_ms <= at_ms <= after_ms


def test_a_producer_of_a_deleted_topic_is_told_that_it_is_gone(admin, settings, topic) -> None:
    producer = Producer(settings | {"linger.ms": 0, "message.timeout.ms": 3000})
    told: list[Any] = []
    producer.produce(topic, b"1", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert told == [None]
    settled(admin.delete_topics([topic]))
    producer.produce(topic, b"2", partition=0, on_delivery=lambda error, _: told.append(error))
    producer.flush(DEADLINE_S)
    # librdkafka asks once more, and that may make the topic again; a storage error never comes.
    assert told[1] is None or told[1].name() in (
        "_UNKNOWN_TOPIC",
        "UNKNOWN_TOPIC_OR_PART",
        "_MSG_TIMED_OUT",
    )


def test_topics_that_come_and_go_under_load_break_nothing(admin, settings, server) -> None:
    """Who writes and reads meanwhile is told of topics that are gone, and of nothing worse."""
    names = [unique("churn") for _ in range(3)]
    settled(admin.create_topics([NewTopic(name, 2, 1) for name in names]))
    told: set[str] = set()
    until = time.monotonic() + 3
    quick = settings | {"topic.metadata.refresh.interval.ms": 200, "log_level": 0}

    def note(error: Any, _message: Any = None) -> None:
        told.add("ok" if error is None else error.name())

    def write() -> None:
        producer = Producer(quick | {"message.timeout.ms": 1000, "enable.idempotence": True})
        while time.monotonic() < until:
            for name in names:
                producer.produce(name, b"x" * 100, on_delivery=note)
            producer.poll(0.005)
        producer.flush(DEADLINE_S)

    def read() -> None:
        consumer = Consumer(quick | {"group.id": names[0], "auto.offset.reset": "earliest"})
        consumer.subscribe(names)
        while time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is not None:
                note(message.error())
        consumer.close()

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        for name in names:
            settled(admin.delete_topics([name]))
            for future in admin.create_topics([NewTopic(name, 2, 1)]).values():
                with contextlib.suppress(KafkaException):  # a first use was faster
                    future.result(DEADLINE_S)
    for thread in threads:
        thread.join()
    assert "ok" in told
    by_broker = {name for name in told if not name.startswith("_")}  # the others are the client's
    assert by_broker <= {"ok", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "OFFSET_OUT_OF_RANGE"}
    assert not server.errors()


# -- kafka-python


@pytest.fixture
def kp_admin(server) -> Iterator[kp.KafkaAdminClient]:
    client = kp.KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}")
    yield client
    client.close()


def test_kafka_python_administers_topics(kp_admin) -> None:
    name = unique("kp")
    kp_admin.create_topics([kp.NewTopic(name, 2, 1, topic_configs={"retention.ms": "5000"})])
    assert name in kp_admin.list_topics()
    with pytest.raises(kp_errors.TopicAlreadyExistsError):
        kp_admin.create_topics([kp.NewTopic(name, 2, 1)])
    kp_admin.create_partitions({name: kp.NewPartitions(4)})
    (described,) = kp_admin.describe_topics([name])
    assert len(described["partitions"]) == 4
    kp_admin.delete_topics([name])
    assert name not in kp_admin.list_topics()


# -- aiokafka


def test_aiokafka_administers_topics(server) -> None:
    async def scenario() -> None:
        client = aio.AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}")
        await client.start()
        try:
            name = unique("aio")
            topic = aio.NewTopic(name, 2, 1, topic_configs={"retention.ms": "5000"})
            made = await client.create_topics([topic])
            assert [row[1] for row in made.topic_errors] == [0]
            again = await client.create_topics([topic])
            assert [row[1] for row in again.topic_errors] == [
                aio_errors.TopicAlreadyExistsError.errno
            ]
            assert name in await client.list_topics()
            await client.create_partitions({name: aio.NewPartitions(4)})
            (described,) = await client.describe_topics([name])
            assert len(described["partitions"]) == 4
            kind = aio.config_resource.ConfigResourceType.TOPIC
            resource = aio.config_resource.ConfigResource(kind, name)
            (answer,) = await client.describe_configs([resource])
            rows = {row[0]: row[1] for row in answer.resources[0][4]}
            assert rows["retention.ms"] == "5000"
            resource = aio.config_resource.ConfigResource(
                kind, name, configs={"retention.ms": "6000"}
            )
            await client.alter_configs([resource])
            (answer,) = await client.describe_configs(
                [aio.config_resource.ConfigResource(kind, name)]
            )
            rows = {row[0]: row[1] for row in answer.resources[0][4]}
            assert rows["retention.ms"] == "6000"
            await client.delete_topics([name])
            assert name not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
