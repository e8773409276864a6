"""Topics and their configuration through the admin part of real clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.kafka_brokers import KINDS, unique
from tests.conformance.kafka_clients import KafkaClient, Record, Refused, eventually

UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS = 3, 17, 36
INVALID_PARTITIONS, INVALID_CONFIG = 37, 40

ADMINS = [kind for kind in KINDS if kind != "kcat"]
SILENT: dict[str, frozenset[int]] = {
    "kafkajs": frozenset({TOPIC_EXISTS}),  # it answers false instead of an error
}
"""Errors that a client does not show."""


@pytest.fixture(params=ADMINS)
def admin(request, kafka_server, kafka_clients) -> KafkaClient:
    return kafka_clients.for_scenario(kafka_server, request.param, "admin")


def code_of(work: Callable[[], object]) -> int:
    with pytest.raises(Refused) as refused:
        work()
    return refused.value.code


def test_a_topic_is_made_grown_and_deleted(admin):
    topic = unique("admin.")
    admin.create(topic, 3, {"cleanup.policy": "compact"})
    assert eventually(lambda: topic in admin.topics(), bool)
    assert eventually(lambda: admin.partitions(topic), lambda count: count == 3)
    admin.grow(topic, 5)
    assert eventually(lambda: admin.partitions(topic), lambda count: count == 5)
    admin.delete(topic)
    eventually(admin.topics, lambda found: topic not in found)


def test_configuration_is_told_and_changed(admin):
    topic = unique("config.")
    admin.create(topic, 1, {"retention.ms": "3600000", "cleanup.policy": "compact"})
    eventually(admin.topics, lambda found: topic in found)
    found = admin.configs(topic)
    assert found["retention.ms"] == "3600000"
    assert found["cleanup.policy"] == "compact"
    assert found["max.message.bytes"] is not None, "what has its default is told, too"
    admin.configure(topic, "retention.ms", "7200000")
    eventually(lambda: admin.configs(topic), lambda now: now["retention.ms"] == "7200000")
    admin.delete(topic)


def test_what_cannot_be_done_has_kafkas_error(request, admin):
    kind = request.node.callspec.params["admin"]
    topic = unique("wrong.")
    admin.create(topic, 2, {})
    eventually(admin.topics, lambda found: topic in found)
    wrong: dict[int, Callable[[], object]] = {
        TOPIC_EXISTS: lambda: admin.create(topic, 2, {}),
        INVALID_TOPIC: lambda: admin.create("not/a topic", 1, {}),
        INVALID_PARTITIONS: lambda: admin.grow(topic, 1),
        INVALID_CONFIG: lambda: admin.create(unique(), 1, {"no.such.config": "1"}),
        UNKNOWN_TOPIC: lambda: admin.delete(unique("missing.")),
    }
    for code, work in wrong.items():
        if code not in SILENT.get(kind, ()):
            assert code_of(work) == code
    admin.delete(topic)


def test_a_topic_made_anew_is_empty(admin, kafka_server, kafka_clients):
    topic = unique("anew.")
    helper = kafka_clients.get(kafka_server, "confluent")
    admin.create(topic, 1, {})
    helper.produce(topic, [Record(b"old")], "none")
    admin.delete(topic)
    eventually(helper.topics, lambda found: topic not in found)

    def create() -> bool:
        """Kafka deletes in the background: until it is done the name is taken."""
        try:
            admin.create(topic, 1, {})
        except Refused as refused:
            assert refused.code == TOPIC_EXISTS
            return False
        return True

    eventually(create, bool)
    assert helper.produce(topic, [Record(b"new")], "none") == [0]
    assert [row.value for row in helper.read({topic: 1}, committed=False)[topic]] == [b"new"]
