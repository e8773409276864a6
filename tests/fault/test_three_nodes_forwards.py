"""Is what MQTT and AMQP clients publish at any of three nodes kept, while leaders go and come?

Beside Kafka's clients an MQTT client publishes, for some seconds at each node that takes it, and an
AMQP client at the node that has the queues.
"""

from __future__ import annotations

import time

import pytest

from tests.support.cluster_load import EVERYBODY, ClusterLoad
from tests.support.etcd import needs_etcd
from tests.support.three_nodes import ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault_long]

WORKS = EVERYBODY
FAULT_S = 6.0


def prove(load: ClusterLoad) -> None:
    """The history is whole, and both protocols were served, MQTT by several nodes."""
    history = load.prove()
    for protocol, least in (("mqtt", 2), ("amqp", 1)):
        told = {
            line.node for line in history.lines
            if line.call == "publish" and line.who.startswith(protocol) and line.result == "ok"
        }  # fmt: skip
        assert len(told) >= least, (protocol, told)


def test_leaders_may_be_killed_while_others_forward_to_them(
    cluster: ThreeNodes, load: ClusterLoad
) -> None:
    with load:
        for partition in cluster.rows("t"):
            leader = cluster.leader("t", partition)
            leader.kill()
            load.wait_progress()
            leader.restart()
            load.healed()
    prove(load)


def test_leaders_may_be_cut_off_while_others_forward_to_them(
    cluster: ThreeNodes, load: ClusterLoad
) -> None:
    with load:
        for partition in cluster.rows("t"):
            cluster.isolate(cluster.leader("t", partition).number)
            time.sleep(FAULT_S)
            cluster.heal()
            load.healed()
    prove(load)


def test_each_node_may_be_stopped_while_others_forward_to_it(
    cluster: ThreeNodes, load: ClusterLoad
) -> None:
    with load:
        for node in cluster.nodes:
            node.terminate()
            load.wait_progress()
            node.restart()
            cluster.until(lambda: cluster.is_synced("t"), 30, "not all copies are in sync")
            load.healed()
    prove(load)
