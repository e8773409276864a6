"""Does a leader that may have been replaced show nothing, and does every other leader go on?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.etcd import needs_etcd
from tests.support.kafka_wire import Wire
from tests.support.three_nodes import NodeProcess, ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault]

K, E = ApiKey, ErrorCode
LATEST = -1
TTL_S = 2.0
"""The registrations of these nodes last so long (`ThreeNodes`)."""
SOON_S = 20.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path / "nodes") as nodes:
        nodes.create("t", 1)
        publish(nodes)
        yield nodes


def publish(cluster: ThreeNodes) -> None:
    """One record, answered."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    producer.produce("t", b"v", on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(SOON_S) == 0
    assert not failed


def shown(node: NodeProcess) -> set[ErrorCode]:
    """The codes with which a node answers a Fetch and a ListOffsets of the partition."""
    with Wire(node.ports["kafka"]) as wire:
        row: dict[str, Any] = {"partition_index": 0, "current_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [row | {"timestamp": LATEST}]}]
        listed = wire.ask(K.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        part = {
            "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0,
            "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20,
        }  # fmt: skip
        fetched = wire.ask(
            K.FETCH, 10, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=1 << 20,
            isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=[],
            topics=[{"topic": "t", "partitions": [part]}],
        )  # fmt: skip
        return {
            listed.topics[0].partitions[0].error_code,
            fetched.responses[0].partitions[0].error_code,
        }


@pytest.mark.parametrize("alone", [True, False], ids=["from all", "from etcd only"])
def test_a_leader_that_is_cut_off_refuses_reads_while_others_serve_them(
    cluster: ThreeNodes, *, alone: bool
) -> None:
    leader = cluster.leader("t", 0)
    assert shown(leader) == {E.none}
    if alone:
        cluster.isolate(leader.number, etcd=True)
    else:
        cluster.cut_etcd(leader.number)
    cluster.until(
        lambda: shown(leader) == {E.not_leader_or_follower}, SOON_S, "it still shows what it has"
    )
    others = [node for node in cluster.nodes if node is not leader]
    cluster.until(
        lambda: {E.none} in [shown(node) for node in others], SOON_S, "nobody else shows it"
    )
    assert shown(leader) == {E.not_leader_or_follower}
    cluster.heal()
    cluster.until(lambda: cluster.is_synced("t"), SOON_S, "not all copies are in sync")
    publish(cluster)


def test_while_etcd_is_away_a_leader_shows_what_it_has_as_long_as_all_replicas_follow_it(
    cluster: ThreeNodes,
) -> None:
    leader = cluster.leader("t", 0)
    cluster.etcd.members[0].kill()
    end = time.monotonic() + 3 * TTL_S
    while time.monotonic() < end:
        assert shown(leader) == {E.none}
        publish(cluster)
    follower = next(node for node in cluster.nodes if node is not leader)
    follower.kill()  # it may be dead, or cut off and elected: nobody can tell without etcd
    cluster.until(
        lambda: shown(leader) == {E.not_leader_or_follower}, SOON_S, "it still shows what it has"
    )
    cluster.etcd.restart(cluster.etcd.members[0])
    left = [node for node in cluster.nodes if node is not follower]
    cluster.until(lambda: {E.none} in map(shown, left), SOON_S, "nobody shows it again")
