"""Consumer groups of real clients: members share partitions, come and go, nothing is lost."""

from __future__ import annotations

import pytest

from tests.conformance.kafka_brokers import KINDS, Clients, KafkaServer, unique
from tests.conformance.kafka_clients import KafkaClient, Record, eventually

PARTITIONS = 4
EACH = 10
MIXED = ("confluent", "aiokafka", "kafka-python", "kcat", "java-3", "java-4")
"""Clients whose range assignor speaks to the others'."""


def produce(client: KafkaClient, topic: str) -> None:
    """The same number of records into each partition."""
    rows = [Record(b"%d" % n, partition=p) for p in range(PARTITIONS) for n in range(EACH)]
    client.produce(topic, rows, "none")


def expected(rounds: int) -> set[tuple[int, int]]:
    return {(p, offset) for p in range(PARTITIONS) for offset in range(EACH * rounds)}


def balanced(*members: list[int]) -> bool:
    """Whether every partition has one member and every member its share."""
    share = PARTITIONS // len(members)
    whole = sorted(partition for member in members for partition in member)
    return whole == list(range(PARTITIONS)) and all(len(member) >= share for member in members)


@pytest.fixture
def helper(kafka_server, kafka_clients) -> KafkaClient:
    """The client that makes topics and fills them."""
    return kafka_clients.get(kafka_server, "confluent")


@pytest.mark.parametrize("kind", KINDS)
def test_members_share_partitions_and_take_over(kafka_server, kafka_clients, helper, kind):
    client = kafka_clients.for_scenario(kafka_server, kind, "groups")
    topic, group, first, second = (unique(prefix) for prefix in ("t", "g", "m", "m"))
    helper.create(topic, PARTITIONS, {})
    produce(helper, topic)

    client.join(first, group, topic)
    eventually(lambda: set(client.took(first)), lambda took: took == expected(1))
    assert client.assigned(first) == list(range(PARTITIONS))

    client.join(second, group, topic)
    eventually(
        lambda: (client.assigned(first), client.assigned(second)), lambda both: balanced(*both)
    )
    produce(helper, topic)
    eventually(
        lambda: set(client.took(first)) | set(client.took(second)),
        lambda took: took == expected(2),
    )
    own = set(client.assigned(second))
    late = {place for place in client.took(second) if place[1] >= EACH}
    assert late == {place for place in expected(2) - expected(1) if place[0] in own}

    gone = set(client.took(first))
    client.leave(first)
    eventually(lambda: client.assigned(second), lambda found: found == list(range(PARTITIONS)))
    produce(helper, topic)
    eventually(lambda: gone | set(client.took(second)), lambda took: took == expected(3))
    client.leave(second)

    # Who comes later goes on where the group was.
    third = unique("m")
    client.join(third, group, topic)
    eventually(lambda: client.assigned(third), lambda found: found == list(range(PARTITIONS)))
    produce(helper, topic)
    eventually(
        lambda: {place for place in client.took(third) if place[1] >= 3 * EACH},
        lambda took: took == expected(4) - expected(3),
    )
    assert set(client.took(third)) == expected(4) - expected(3), "what was committed came again"
    client.leave(third)


def test_clients_of_all_kinds_share_one_group(kafka_server, kafka_clients, helper):
    topic, group = unique(), unique("g")
    helper.create(topic, PARTITIONS, {})
    members = join_all(kafka_server, kafka_clients, group, topic)
    eventually(
        lambda: sorted(place for name, client in members for place in client.assigned(name)),
        lambda found: found == list(range(PARTITIONS)),
    )
    produce(helper, topic)
    eventually(
        lambda: {place for name, client in members for place in client.took(name)},
        lambda took: took == expected(1),
    )
    while len(members) > 1:
        name, client = members.pop(0)
        client.leave(name)
    ((name, client),) = members
    eventually(lambda: client.assigned(name), lambda found: found == list(range(PARTITIONS)))
    produce(helper, topic)
    late = expected(2) - expected(1)
    eventually(lambda: set(client.took(name)) & late, lambda took: took == late)
    client.leave(name)


def join_all(
    server: KafkaServer, clients: Clients, group: str, topic: str
) -> list[tuple[str, KafkaClient]]:
    """A member of each kind that is here."""
    members = []
    for kind in MIXED:
        if KINDS[kind].lacks() is None:
            client = clients.get(server, kind)
            name = unique("m")
            client.join(name, group, topic)
            members.append((name, client))
    return members
