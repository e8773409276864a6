"""All settings of a topic, described and set again by librdkafka: beside Apache Kafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from tests.conformance.kafka_brokers import KafkaServer, unique
from tests.conformance.test_kafka_admin_wire import Admin

DEADLINE_S = 20.0
OWN = ConfigSource.DYNAMIC_TOPIC_CONFIG.value


pytestmark = pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")


@pytest.fixture
def client(kafka_server: KafkaServer) -> dict[str, Any]:
    return {"bootstrap.servers": f"127.0.0.1:{kafka_server.port}"}


@pytest.fixture
def admin(client) -> AdminClient:
    return AdminClient(client)


def made(admin: AdminClient, **configs: str) -> str:
    name = unique("all")
    rows = {key.replace("__", "."): value for key, value in configs.items()}
    (future,) = admin.create_topics([NewTopic(name, 1, 1, config=rows)]).values()
    future.result(DEADLINE_S)
    return name


def described(admin: AdminClient, name: str) -> dict[str, Any]:
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
    found: dict[str, Any] = future.result(DEADLINE_S)
    return found


def own(admin: AdminClient, name: str) -> dict[str, str]:
    """What the topic has chosen for itself."""
    return {row.name: row.value for row in described(admin, name).values() if row.source == OWN}


def values(rows: dict[str, Any]) -> dict[str, str]:
    return {name: row.value for name, row in rows.items()}


def test_what_is_described_can_be_set_again_one_by_one(admin) -> None:
    name = made(admin, retention__ms="60000")
    before = described(admin, name)
    assert len(before) > 30
    changes = [
        ConfigEntry(row.name, row.value, incremental_operation=AlterConfigOpType.SET)
        for row in before.values()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(DEADLINE_S)
    Admin.until(lambda: own(admin, name) == values(before))


def test_what_is_described_can_be_set_again_whole(admin) -> None:
    name = made(admin, retention__ms="60000")
    before = described(admin, name)
    resource = ConfigResource(ResourceType.TOPIC, name, set_config=values(before))
    (future,) = admin.alter_configs([resource]).values()
    future.result(DEADLINE_S)
    Admin.until(lambda: own(admin, name) == values(before))
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.ms": "7"})
    (future,) = admin.alter_configs([resource]).values()
    future.result(DEADLINE_S)
    Admin.until(lambda: own(admin, name) == {"retention.ms": "7"})


def test_a_compacted_topic_refuses_what_has_no_key_and_takes_the_rest(client, admin) -> None:
    """Ten records, two without a key; each batch is refused whole, as in Apache Kafka."""
    name = made(admin, cleanup__policy="compact")
    told: list[str | None] = []

    def heard(error: Any, _message: Any) -> None:
        told.append(None if error is None else error.name())

    producer = Producer(client | {"linger.ms": 200, "enable.idempotence": False})
    for at in range(10):
        producer.produce(name, b"v", None if at in (3, 7) else b"k", 0, on_delivery=heard)
    assert producer.flush(DEADLINE_S) == 0
    blamed = ["INVALID_RECORD" if at in (3, 7) else "_INVALID_DIFFERENT_RECORD" for at in range(10)]
    assert told == blamed
    told.clear()
    for _ in range(8):
        producer.produce(name, b"v", b"k", 0, on_delivery=heard)
    assert producer.flush(DEADLINE_S) == 0
    assert told == [None] * 8
    with pytest.raises(KafkaException):
        made(admin, cleanup__policy="compacted")
