"""Do three real nodes keep what they answered while members of etcd come and go?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_load import ClusterLoad
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault_long]

PARTITIONS = 2
AWAY_S = 6.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path / "nodes", etcd_members=3) as nodes:
        nodes.create("t", PARTITIONS)
        yield nodes


def test_one_of_three_members_of_etcd_may_be_lost(cluster: ThreeNodes, tmp_path: Path) -> None:
    """Also the one that leads the others; elections of leaders go on with two."""
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        member = cluster.etcd.leader()
        member.kill()
        load.wait_progress()
        leader = cluster.leader("t", 0)
        leader.kill()
        load.wait_progress(20.0)  # a new leader of etcd begins all leases anew
        leader.restart()
        cluster.etcd.restart(member)
        cluster.etcd.wait()
        load.healed()
    load.prove()


def test_without_a_majority_of_etcd_leaders_go_on(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        lost = cluster.etcd.members[:2]
        for member in lost:
            member.kill()
        begin = time.monotonic()
        while time.monotonic() < begin + AWAY_S:
            load.wait_progress()
        for member in lost:
            cluster.etcd.restart(member)
        cluster.etcd.wait()
        load.healed()
    load.prove()


def test_a_leader_killed_without_a_majority_of_etcd_has_a_successor_once_that_is_back(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        leader = cluster.leader("t", 0)
        lost = cluster.etcd.members[1:]
        for member in lost:
            member.kill()
        leader.kill()
        time.sleep(AWAY_S)
        for member in lost:
            cluster.etcd.restart(member)
        cluster.etcd.wait()
        load.healed()
        leader.restart()
        load.healed()
    load.prove()
