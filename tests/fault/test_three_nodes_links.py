"""Do three real nodes keep what they answered while the links between them are bad?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from onelog.kernel import topic_hash
from tests.conformance import mqtt_raw
from tests.support.cluster_load import LATE_S, WRITERS, ClusterLoad
from tests.support.cluster_publishers import ElsewhereError, mqtt_at, publish_at, publish_mqtt
from tests.support.cluster_workers import read, write
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import ETCD, ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault_long]

PARTITIONS = 2
FAULT_S = 6.0
LOST = 0.3
NOT_LET_IN = (ElsewhereError, mqtt_raw.Ended, TimeoutError)
"""Use another server; refused with 0x88; no answer."""
LATE_CLIENTS = 4
PLAIN = ("plain", "idempotent")
PAIRS = tuple(itertools.permutations((1, 2, 3), 2))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path / "nodes") as nodes:
        nodes.create("t", PARTITIONS)
        yield nodes


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[ThreeNodes]:
    """Nodes each of which serves some MQTT clients."""
    with ThreeNodes(tmp_path / "nodes", "internal.partitions=6") as nodes:
        nodes.create("t", PARTITIONS)
        yield nodes


def keep_session(port: int, name: str) -> None:
    """Have a session kept. Raises what `NOT_LET_IN` has."""
    with mqtt_at(port, name, clean=False, session_expiry_s=60):
        pass


def roles(cluster: ThreeNodes) -> tuple[int, int, int]:
    """The leader of partition 0, and the two others."""
    leader = cluster.leader("t", 0).number
    one, other = (node.number for node in cluster.nodes if node.number != leader)
    return leader, one, other


def test_each_node_in_turn_may_be_cut_off_from_the_others(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    """One of them coordinates the transactions, one the group."""
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        for node in cluster.nodes:
            cluster.isolate(node.number)
            load.wait_progress()
            cluster.heal()
            cluster.until(lambda: cluster.is_synced("t"), 30, "not all copies are in sync")
            load.healed()
    load.prove()


def test_a_leader_may_not_reach_a_follower_that_reaches_it(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        leader, one, _other = roles(cluster)
        cluster.cut(leader, one)
        load.wait_progress()
        time.sleep(FAULT_S)
        cluster.heal()
        load.healed()
    load.prove()


def test_two_followers_may_not_reach_each_other(cluster: ThreeNodes, tmp_path: Path) -> None:
    """Transactions wait while their coordinator does not reach the leader of a partition, and so
    do readers of committed records."""
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        _leader, one, other = roles(cluster)
        cluster.part(one, other)
        load.wait_progress(only=PLAIN)
        time.sleep(FAULT_S)
        load.wait_progress(only=PLAIN)
        cluster.heal()
        load.healed()
    load.prove()


def test_bytes_between_nodes_may_come_half_a_second_late(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        for pair in PAIRS:
            cluster.proxy.delay(*pair, 0.5)
        time.sleep(2 * FAULT_S)
        cluster.heal()
        load.healed()
    load.prove()


def test_frames_may_be_cut_in_half(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        dialled = len(cluster.proxy.dialled)
        for pair in PAIRS:
            cluster.proxy.halve(*pair, times=3)
            time.sleep(1.0)
        cluster.heal()
        load.healed()
        assert len(cluster.proxy.dialled) > dialled + len(PAIRS)
    load.prove()


def test_a_third_of_what_nodes_and_etcd_send_may_be_lost(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    """It is sent again, as TCP does: everybody goes on meanwhile, though slower."""
    pairs = itertools.permutations((1, 2, 3, ETCD), 2)
    works = (partial(write, once=True, answer_s=60.0), read, publish_mqtt)
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS, works) as load:
        for pair in pairs:
            cluster.proxy.lose(*pair, LOST)
        for _ in range(3):
            time.sleep(FAULT_S / 3)
            load.wait_progress(LATE_S)
        assert all(cluster.proxy.losses(*pair) > 0 for pair in PAIRS)
        cluster.heal()
        load.healed()
    load.prove()


@pytest.mark.parametrize("answers", [False, True], ids=["to etcd", "from etcd"])
def test_one_direction_between_a_leader_and_etcd_may_be_cut(
    cluster: ThreeNodes, tmp_path: Path, *, answers: bool
) -> None:
    """What it asks does not arrive, or what became of it is not known. It is deposed, and producers
    go on meanwhile. A consumer that asks only this node who leads waits until it hears etcd again.
    """
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        leader = cluster.leader("t", 0).number
        cluster.cut(*((ETCD, leader) if answers else (leader, ETCD)))
        load.wait_progress(LATE_S, only=PLAIN)
        cluster.until(
            lambda: cluster.leader("t", 0).number != leader, LATE_S, "no other node leads"
        )
        time.sleep(FAULT_S)
        load.wait_progress(LATE_S, only=PLAIN)
        cluster.heal()  # what was under way arrives, late
        load.healed()
    load.prove()


def test_clients_on_the_smaller_side_hear_nothing_that_is_not_so(
    sharded: ThreeNodes, tmp_path: Path
) -> None:
    """A node that led their topic is cut off from everybody with the clients that know no other.
    Nothing is answered there, and no session is kept; the other side goes on."""
    partition = topic_hash(b"t") % PARTITIONS
    alone = sharded.leader("t", partition).number
    at = f"at{alone}"
    works = (*WRITERS, publish_mqtt, partial(publish_at, number=alone))
    with ClusterLoad(sharded, tmp_path, "t", PARTITIONS, works) as load:
        sharded.isolate(alone, etcd=True)
        cut = time.monotonic()
        load.wait_progress(LATE_S, only=(*PLAIN, "mqtt"))
        time.sleep(FAULT_S)
        load.wait_progress(LATE_S, only=(*PLAIN, "mqtt"))
        for number in range(LATE_CLIENTS):  # of several shards
            with pytest.raises(NOT_LET_IN):
                keep_session(sharded.node(alone).ports["mqtt"], f"late{number}")
        until = time.monotonic()
        sharded.heal()  # others serve now what it served
        load.wait_progress(LATE_S, only=(*PLAIN, "mqtt"))
    history = load.prove()
    told = [
        line.result for line in history.lines
        if line.who.startswith(at) and cut < line.start and line.end < until
    ]  # fmt: skip
    assert told
    assert "ok" not in told
