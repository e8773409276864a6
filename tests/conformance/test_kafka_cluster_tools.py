"""Kafka's own tools on three nodes, as their calls of Java's AdminClient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.kafka_jars import jars
from tests.conformance.kafka_brokers import lacks_java, unique
from tests.conformance.kafka_clients import LineClient, Refused, eventually
from tests.conformance.kafka_cluster import KafkaCluster
from tests.support.etcd import needs_etcd

pytestmark = [needs_etcd, pytest.mark.kafka_cluster]

SOURCE = Path(__file__).parent / "kafka_java_cluster.java"
KIND = "client-4"
INVALID_PARTITIONS_OF_REPLICAS, INVALID_ASSIGNMENT, NO_REASSIGNMENT = 38, 39, 85
NOT_ENOUGH_REPLICAS = 19


class Tools:
    """The calls, by name."""

    def __init__(self, port: int) -> None:
        heap = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        command = ["java", *heap, "-cp", f"{jars(KIND)}/*", str(SOURCE), str(port)]
        self.client = LineClient(command)
        self.ask = self.client.ask

    def create(self, partitions: int = 1, replicas: int = -1, **more: Any) -> str:
        """A topic that the node asked about topics knows."""
        topic = unique("tools.")
        rows = {"configs": {}, "assigned": None, **more}
        self.ask("create", topic=topic, partitions=partitions, replicas=replicas, **rows)
        return topic

    def describe(self, topic: str) -> list[dict[str, Any]]:
        """The partitions; none while the node asked does not know the topic."""
        try:
            return self.ask("describe", topic=topic)
        except Refused as refused:
            assert refused.code == 3
            return []

    def synced(self, topic: str) -> list[dict[str, Any]]:
        """The partitions, once all replicas are in sync."""
        return eventually(
            lambda: self.describe(topic),
            lambda rows: bool(rows) and all(set(r["isr"]) == set(r["replicas"]) for r in rows),
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("tools") / "nodes", every_s=0) as made:
        yield made


@pytest.fixture(scope="module")
def tools(cluster: KafkaCluster) -> Iterator[Tools]:
    missing = lacks_java(KIND)
    if missing is not None:
        pytest.skip(missing)
    made = Tools(cluster.port)
    yield made
    made.client.close()


def test_the_cluster_is_described_with_its_racks_and_its_controller(tools):
    found = tools.ask("cluster")
    assert found["racks"] == {"1": "r1", "2": "r2", "3": "r3"}
    assert found["controller"] in {1, 2, 3}
    assert found["id"]


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_new_topic_has_the_replication_factor_that_is_asked_for(tools, factor):
    for row in tools.synced(tools.create(3, factor)):
        assert len(set(row["replicas"])) == factor
        assert row["leader"] in row["replicas"]
        assert row["elr"] == []


def test_a_factor_that_the_cluster_cannot_give_is_refused(tools):
    with pytest.raises(Refused) as refused:
        tools.create(1, 4)
    assert refused.value.code == INVALID_PARTITIONS_OF_REPLICAS


def test_a_new_topic_lies_on_the_nodes_that_are_named(tools):
    assigned = [[3, 1], [2, 3]]
    rows = tools.synced(tools.create(2, -1, assigned=assigned))
    assert [row["replicas"] for row in rows] == assigned
    assert [row["leader"] for row in rows] == [3, 2]


def test_preferred_leaders_are_elected_one_by_one_and_all_together(tools):
    topic = tools.create(2, -1, assigned=[[1, 2, 3], [2, 3, 1]])
    tools.synced(topic)
    place = f"{topic}-0"
    assert tools.ask("elect", kind="PREFERRED", topic=topic, partition=0) == {
        place: "ELECTION_NOT_NEEDED"
    }
    tools.ask("reassign", topic=topic, partition=0, to=[3, 1, 2])
    assert tools.ask("elect", kind="PREFERRED", topic=topic, partition=0) == {place: ""}
    eventually(lambda: tools.describe(topic)[0]["leader"], lambda leader: leader == 3)

    for partition, first in enumerate((2, 1)):
        to = [first, *(node for node in (1, 2, 3) if node != first)]
        tools.ask("reassign", topic=topic, partition=partition, to=to)
    held = tools.ask("elect", kind="PREFERRED")
    assert {name: error for name, error in held.items() if name.startswith(topic)} == {
        f"{topic}-0": "",
        f"{topic}-1": "",
    }
    eventually(
        lambda: [row["leader"] for row in tools.describe(topic)], lambda found: found == [2, 1]
    )


def test_an_unclean_election_is_for_partitions_without_a_leader(tools):
    topic = tools.create()
    tools.synced(topic)
    assert tools.ask("elect", kind="UNCLEAN", topic=topic, partition=0) == {
        f"{topic}-0": "ELECTION_NOT_NEEDED"
    }


def test_a_partition_is_moved_to_other_nodes_and_keeps_its_records(tools):
    topic = tools.create(1, -1, assigned=[[1, 2]])
    tools.synced(topic)
    assert tools.ask("produce", topic=topic, retries=3) == 0
    tools.ask("reassign", topic=topic, partition=0, to=[3, 2])
    eventually(lambda: tools.describe(topic)[0], lambda row: sorted(row["replicas"]) == [2, 3], 30)
    eventually(lambda: tools.ask("reassignments"), lambda rows: f"{topic}-0" not in rows)
    assert tools.describe(topic)[0]["leader"] in (2, 3)
    assert tools.ask("produce", topic=topic, retries=3) == 1
    with pytest.raises(Refused) as refused:
        tools.ask("reassign", topic=topic, partition=0, to=None)
    assert refused.value.code == NO_REASSIGNMENT
    with pytest.raises(Refused) as refused:
        tools.ask("reassign", topic=topic, partition=0, to=[2, 9])
    assert refused.value.code == INVALID_ASSIGNMENT


def test_a_move_that_waits_for_a_node_is_listed_and_stopped_and_too_few_replicas_refuse(
    tools, cluster
):
    """One node is away: its copy of a partition is awaited, and three in sync are not there."""
    moved = tools.create(1, -1, assigned=[[1, 2]])
    strict = tools.create(1, 3, configs={"min.insync.replicas": "3"})
    tools.synced(moved)
    tools.synced(strict)
    assert tools.ask("produce", topic=strict, retries=3) == 0
    cluster.nodes.node(3).kill()
    try:
        row = eventually(lambda: tools.describe(strict)[0], lambda row: 3 not in row["isr"])
        assert row["leader"] in (1, 2)
        with pytest.raises(Refused) as refused:
            tools.ask("produce", topic=strict, retries=0)
        assert refused.value.code == NOT_ENOUGH_REPLICAS
        tools.ask("configure", topic=strict, name="min.insync.replicas", value="2")
        assert tools.ask("produce", topic=strict, retries=100) == 1

        tools.ask("reassign", topic=moved, partition=0, to=[1, 3])
        assert tools.ask("reassignments")[f"{moved}-0"] == [3]
        tools.ask("reassign", topic=moved, partition=0, to=None)
        eventually(lambda: tools.ask("reassignments"), lambda rows: f"{moved}-0" not in rows)
        assert sorted(tools.describe(moved)[0]["replicas"]) == [1, 2]
    finally:
        cluster.nodes.node(3).restart()
    tools.synced(strict)
