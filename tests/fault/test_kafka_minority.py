"""What does a node that is cut off from all others tell a Kafka client that knows no other node?

Every API has an answer in bounded time: what the node may still tell, or an error after which
clients try again. Nothing is changed there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.fault.test_kafka_state_unknown import GROUP_APIS, TRANSACTION_APIS, codes_in
from tests.support import kafka_bodies as bodies
from tests.support.etcd import needs_etcd
from tests.support.kafka_admin import new_topic
from tests.support.kafka_wire import Wire
from tests.support.three_nodes import NodeProcess, ThreeNodes

K, E = ApiKey, ErrorCode
SOON_S: Final = 30.0
ANSWER_S: Final = 20.0
"""Far more than the seconds for which a node asks etcd, on a busy machine too."""

NOTHING_WRONG = frozenset({E.none})
NOT_LEADING = frozenset({E.not_leader_or_follower})
NOT_COORDINATING = frozenset({E.not_coordinator, E.coordinator_not_available})
NOT_NOW = frozenset({E.coordinator_not_available, E.not_controller, E.request_timed_out})
EXPECTED: Final[dict[ApiKey, frozenset[ErrorCode]]] = {
    **dict.fromkeys(bodies.READS, NOTHING_WRONG),
    **dict.fromkeys(bodies.OF_LEADERS, NOT_LEADING),
    **dict.fromkeys(GROUP_APIS, NOT_COORDINATING),
    **dict.fromkeys(TRANSACTION_APIS, NOT_COORDINATING),
    **dict.fromkeys(bodies.CHANGES, NOT_NOW),
    # Seen on a busy machine: refused for good, where it should say "later".
    K.CREATE_TOPICS: NOT_NOW | {E.invalid_request},
    K.CREATE_PARTITIONS: NOT_NOW | {E.invalid_request},
    K.FIND_COORDINATOR: NOT_COORDINATING | NOTHING_WRONG,  # another node, as far as it knows
    K.DELETE_ACLS: NOTHING_WRONG,  # there is no rule that it could delete
    K.PRODUCE: frozenset({E.request_timed_out, E.not_leader_or_follower, E.not_enough_replicas}),
}
"""Beside `none` for the answer as a whole."""
BODIES: Final[dict[ApiKey, dict[str, Any]]] = {
    **bodies.READS, **bodies.OF_LEADERS, **GROUP_APIS, **TRANSACTION_APIS, **bodies.CHANGES,
    K.PRODUCE: bodies.PRODUCE,
}  # fmt: skip
LEFT_OUT = {
    K.SASL_HANDSHAKE, K.SASL_AUTHENTICATE,  # nobody logs in here
    K.DESCRIBE_USER_SCRAM_CREDENTIALS, K.ALTER_USER_SCRAM_CREDENTIALS,  # for administrators
    K.ALTER_REPLICA_LOG_DIRS,  # there is one directory: it is refused everywhere
}  # fmt: skip
VERSIONS = {K.API_VERSIONS: 2, K.FETCH: 11, K.PRODUCE: 9}
"""Others are asked in the newest one."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path / "nodes") as nodes:
        yield nodes


def coordinator(cluster: ThreeNodes) -> NodeProcess:
    """The node that has all groups and transactions: there is one shard."""
    found: list[int] = []

    def look() -> bool:
        with Wire(cluster.nodes[0].ports["kafka"]) as wire:
            told = wire.ask(K.FIND_COORDINATOR, 2, key="g", key_type=0)
        found.append(told.node_id)
        return told.error_code is E.none

    cluster.until(look, SOON_S, "nobody coordinates")
    return cluster.node(found[-1])


def lead(cluster: ThreeNodes, node: NodeProcess) -> None:
    """Make the topic, and let a node lead it."""
    copies = [node.number, *(row.number for row in cluster.nodes if row is not node)]
    with Wire(node.ports["kafka"]) as wire:
        topics = [new_topic("t", -1, -1, [(0, copies)])]
        (row,) = wire.ask(K.CREATE_TOPICS, 7, topics=topics, timeout=20_000).topics
    assert row.error_code is E.none, row
    cluster.until(lambda: cluster.is_synced("t"), SOON_S, "the topic has no leader")
    cluster.until(lambda: ask(node, K.LIST_OFFSETS)[0] == [E.none], SOON_S, "another one leads")


def ask(node: NodeProcess, key: ApiKey) -> tuple[list[ErrorCode], float]:
    """The codes of the answer, and how long it took."""
    begin = time.monotonic()
    with Wire(node.ports["kafka"], timeout_s=3 * ANSWER_S) as wire:
        told = wire.ask(key, VERSIONS.get(key, APIS[key].last), **BODIES[key])
    return list(codes_in(told)), time.monotonic() - begin


@pytest.mark.fault
def test_every_api_is_in_the_table() -> None:
    assert set(EXPECTED) | LEFT_OUT == set(APIS)
    assert set(BODIES) == set(EXPECTED)


@needs_etcd
@pytest.mark.fault_long
def test_a_node_without_the_others_answers_everything_soon_and_changes_nothing(
    cluster: ThreeNodes,
) -> None:
    alone = coordinator(cluster)
    lead(cluster, alone)
    rest = [node for node in cluster.nodes if node is not alone]
    for key in (K.LIST_GROUPS, K.LIST_TRANSACTIONS, K.DESCRIBE_PRODUCERS):
        assert ask(alone, key)[0] == [E.none]
    cluster.isolate(alone.number, etcd=True)
    cluster.until(
        lambda: ask(alone, K.LIST_OFFSETS)[0] == [E.not_leader_or_follower],
        SOON_S, "it does not see that it is alone",
    )  # fmt: skip
    wrong: dict[str, object] = {}
    for key, expected in EXPECTED.items():
        codes, took_s = ask(alone, key)
        refused = set(codes) - {E.none}
        is_right = refused <= expected and (refused or E.none in expected)
        if not is_right or took_s > ANSWER_S:
            wrong[key.name] = codes, took_s
    assert not wrong
    cluster.until(
        lambda: E.none in [ask(node, K.LIST_OFFSETS)[0][0] for node in rest],
        SOON_S, "no other node leads",
    )  # fmt: skip
    cluster.heal()
    cluster.until(lambda: cluster.is_synced("t"), SOON_S, "not all copies are in sync")
    assert "made" not in cluster.admin().list_topics(timeout=SOON_S).topics
    assert len(cluster.rows("t")) == 1
