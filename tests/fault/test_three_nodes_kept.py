"""Do three real nodes keep what they owe to a kept MQTT session and to a queue of AMQP?

The session has QoS 2; the queue's consumer settles by `tx`. Each is served by the node that leads
its shard, which is killed, cut off, and stopped.
"""

from __future__ import annotations

import time

import pytest

from tests.support.cluster_load import KEPT, SYNC_S, ClusterLoad
from tests.support.cluster_takers import QUEUE, SESSION
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault_long]

WORKS = KEPT
FAULT_S = 6.0


def prove(load: ClusterLoad) -> None:
    """The history is whole, the session took messages, and the queue settled some."""
    counts = load.prove().counts()
    assert counts["taken ok"] > counts["settled ok"] > 0, counts


@pytest.mark.parametrize("kept", [SESSION, QUEUE])
def test_the_node_that_serves_it_may_be_killed(
    cluster: ThreeNodes, load: ClusterLoad, kept: str
) -> None:
    with load:
        node = cluster.node(load.server_of(kept))
        node.kill()
        load.wait_progress()
        node.restart()
        load.healed()
    prove(load)


@pytest.mark.parametrize("etcd", [False, True], ids=["with etcd", "without etcd"])
@pytest.mark.parametrize("kept", [SESSION, QUEUE])
def test_the_node_that_serves_it_may_be_cut_off(
    cluster: ThreeNodes, load: ClusterLoad, kept: str, *, etcd: bool
) -> None:
    with load:
        cluster.isolate(load.server_of(kept), etcd=etcd)
        time.sleep(FAULT_S)
        cluster.heal()
        load.healed()
    prove(load)


def test_each_node_may_be_stopped_in_turn(cluster: ThreeNodes, load: ClusterLoad) -> None:
    with load:
        for node in cluster.nodes:
            node.terminate()
            load.wait_progress()
            node.restart()
            cluster.until(lambda: cluster.is_synced("t"), SYNC_S, "not all copies are in sync")
            load.healed()
    prove(load)
