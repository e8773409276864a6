"""Do three real nodes keep what they answered while the links between them are bad?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_load import ClusterLoad
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault_long]

PARTITIONS = 2
FAULT_S = 6.0
PLAIN = ("plain", "idempotent")
PAIRS = tuple(itertools.permutations((1, 2, 3), 2))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path / "nodes") as nodes:
        nodes.create("t", PARTITIONS)
        yield nodes


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
