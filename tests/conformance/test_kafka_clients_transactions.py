"""Transactions of real clients: what was aborted is read by nobody who reads what is committed."""

from __future__ import annotations

import pytest

from tests.conformance.kafka_brokers import KINDS, unique
from tests.conformance.kafka_clients import KafkaClient, Record

MARKER = 1
"""A transaction's marker takes an offset."""


@pytest.fixture
def helper(kafka_server, kafka_clients) -> KafkaClient:
    return kafka_clients.get(kafka_server, "confluent")


def values(rows: list[Record]) -> list[bytes | None]:
    return [row.value for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_an_aborted_transaction_is_not_read(kafka_server, kafka_clients, helper, kind):
    client = kafka_clients.for_scenario(kafka_server, kind, "transactions")
    topic, name = unique(), unique("x")
    helper.create(topic, 1, {})
    first, gone, last = (
        [b"%s %d" % (w, n) for n in range(5)] for w in (b"first", b"gone", b"last")
    )
    client.transact(name, topic, first, commit=True)
    aborter = client if "aborts" in client.scenarios else helper
    aborter.transact(name, topic, gone, commit=False)
    client.transact(name, topic, last, commit=True)
    for reader in KINDS:
        if KINDS[reader].lacks() is not None:
            continue
        other = kafka_clients.get(kafka_server, reader)
        rows = other.read({topic: len(first + last)}, committed=True)[topic]
        assert values(rows) == first + last, reader
        places = [*range(5), *range(10 + 2 * MARKER, 15 + 2 * MARKER)]
        assert [row.offset for row in rows] == places, reader
    everything = client.read({topic: 15}, committed=False)[topic]
    assert values(everything) == first + gone + last


@pytest.mark.parametrize("kind", KINDS)
def test_reading_and_writing_are_one_transaction(kafka_server, kafka_clients, helper, kind):
    client = kafka_clients.for_scenario(kafka_server, kind, "transform")
    source, target, group, name = (unique(prefix) for prefix in ("t", "t", "g", "x"))
    helper.create(source, 1, {})
    helper.create(target, 1, {})
    given = [Record(b"%d" % number) for number in range(10)]
    helper.produce(source, given, "none")
    # The aborted attempt leaves nothing behind, not even its position in the source.
    client.transform(name, group, source, target, 10, commit=False)
    client.transform(name, group, source, target, 10, commit=True)
    rows = helper.read({target: 10}, committed=True)[target]
    assert values(rows) == [b"> %d" % number for number in range(10)]
    # The committed one has moved the group.
    helper.produce(source, [Record(b"late")], "none")
    client.transform(name, group, source, target, 1, commit=True)
    rows = helper.read({target: 11}, committed=True)[target]
    assert values(rows)[-1] == b"> late"
