"""Do three real nodes keep what they answered, whatever happens to one of them or between them?

Kafka producers and a reader run meanwhile; at the end every node's own data is read, and the
history of all calls is checked (`tests/support/cluster_history.py`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_load import WRITERS, ClusterLoad
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault]

PARTITIONS = 2
PAUSE_S = 10.0
LONG_TTL_S = 20
"""A registration that lasts so long cannot be what ends within half of it."""
UP_QUIET_S, UP_BUSY_S = 10.0, 30.0
"""How long the start of all nodes and etcd may take."""
QUIET = 0.5
"""The load per processor of a machine that does little else."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path / "nodes") as nodes:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        told = f"three nodes and etcd were up after {nodes.start_s:.1f} s at a load of {load:.1f}\n"
        sys.stdout.write(told)
        assert nodes.start_s < (UP_QUIET_S if load < QUIET else UP_BUSY_S), told
        nodes.create("t", PARTITIONS)
        yield nodes


def follower(cluster: ThreeNodes) -> int:
    """A node that does not lead partition 0."""
    leader = cluster.leader("t", 0).number
    return next(node.number for node in cluster.nodes if node.number != leader)


def test_a_leader_that_is_killed_loses_nothing(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS, WRITERS) as load:
        leader = cluster.leader("t", 0)
        leader.kill()
        load.wait_progress()
        leader.restart()
        load.healed()
    load.prove()


def test_suspicion_and_no_lease_replaces_a_leader_that_is_killed(tmp_path: Path) -> None:
    """The lease still has two thirds of its time at least when it is killed."""
    with ThreeNodes(tmp_path / "nodes", f"cluster.node_ttl_ms={LONG_TTL_S * 1000}") as cluster:
        cluster.create("t", 1)  # what is answered is answered by its next leader
        with ClusterLoad(cluster, tmp_path, "t", 1) as load:
            leader = cluster.leader("t", 0)
            leader.kill()
            load.wait_progress(LONG_TTL_S / 2)
            assert cluster.leader("t", 0) is not leader
            leader.restart()
            load.healed()
        load.prove()


def test_a_follower_that_is_cut_off_comes_back_with_everything(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS, WRITERS) as load:
        cluster.isolate(follower(cluster))
        load.wait_progress()
        cluster.heal()
        load.healed()
    load.prove()


def test_a_leader_that_stands_still_answers_nothing_that_is_lost(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS, WRITERS) as load:
        leader = cluster.leader("t", 0)
        leader.pause()
        begin = time.monotonic()
        load.wait_progress()
        time.sleep(max(0.0, begin + PAUSE_S - time.monotonic()))
        leader.go_on()
        load.healed()
    load.prove()


@pytest.mark.fault_long
@pytest.mark.parametrize("etcd", [False, True], ids=["with etcd", "without etcd"])
def test_a_leader_on_the_wrong_side_of_a_cut_answers_nothing_that_is_lost(
    cluster: ThreeNodes, tmp_path: Path, *, etcd: bool
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        cluster.isolate(cluster.leader("t", 0).number, etcd=etcd)
        time.sleep(5.0)
        cluster.heal()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_one_direction_between_a_leader_and_a_follower_may_be_cut(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        leader = cluster.leader("t", 0).number
        cluster.cut(follower(cluster), leader)
        time.sleep(5.0)
        cluster.heal()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_a_node_without_etcd_goes_on_or_is_deposed(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        cluster.cut_etcd(cluster.leader("t", 0).number)
        time.sleep(5.0)
        cluster.heal()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_etcd_may_be_away(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        cluster.etcd.members[0].kill()
        load.wait_progress()
        cluster.etcd.restart(cluster.etcd.members[0])
        cluster.etcd.wait()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_all_nodes_may_be_killed_at_once(cluster: ThreeNodes, tmp_path: Path) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start(node.same_place)
        for node in cluster.nodes:
            node.wait_ready()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_each_node_in_turn_may_be_stopped_as_operators_do(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        for node in cluster.nodes:
            node.terminate()
            load.wait_progress()
            node.restart()
            cluster.until(lambda: cluster.is_synced("t"), 30, "not all copies are in sync")
            load.healed()
    load.prove()


@pytest.mark.fault_long
def test_a_follower_that_is_killed_comes_back_with_everything(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = cluster.node(follower(cluster))
        node.kill()
        load.wait_progress()
        node.restart()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_a_follower_that_stands_still_is_left_out_and_comes_back(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        node = cluster.node(follower(cluster))
        node.pause()
        begin = time.monotonic()
        load.wait_progress()
        time.sleep(max(0.0, begin + PAUSE_S - time.monotonic()))
        node.go_on()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_a_controller_that_is_killed_has_a_successor_which_elects(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        first = cluster.controller()
        first.kill()
        load.wait_progress()
        cluster.until(lambda: cluster.controller() is not first, 10, "there is no controller")
        first.restart()
        cluster.until(lambda: cluster.is_synced("t"), 30, "not all copies are in sync")
        leader = cluster.leader("t", 0)
        leader.kill()
        load.wait_progress()
        leader.restart()
        load.healed()
    load.prove()


@pytest.mark.fault_long
def test_leaders_may_be_killed_again_and_again_before_all_copies_are_in_sync(
    cluster: ThreeNodes, tmp_path: Path
) -> None:
    with ClusterLoad(cluster, tmp_path, "t", PARTITIONS) as load:
        for turn in range(4):
            leader = cluster.leader("t", turn % PARTITIONS)
            leader.kill()
            leader.restart()
            load.healed()
    load.prove()
