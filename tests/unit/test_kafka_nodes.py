"""What a Kafka client hears of a cluster of three nodes: addresses, leaders, owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.base.errors import Conflict, InvalidRequest, PartitionStopped, Unavailable
from onelog.broker import NO_NODE
from onelog.config.listeners import KafkaListener, Listeners, reached_urls
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_admin import Desk, desk
from tests.support.kafka_nodes import FakeCluster, clustered, place

E, K = ErrorCode, ApiKey


def versions(key: ApiKey) -> range:
    return range(APIS[key].first, APIS[key].last + 1)


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        await made.create("t", 3)
        yield made


@pytest.fixture
def cluster(admin: Desk) -> AsyncIterator[FakeCluster]:
    with clustered(admin.broker) as made:
        yield made


def log(admin: Desk, number: int = 0, topic: str = "t"):
    return admin.hub.topics.get(topic).partition(number).log


@pytest.mark.parametrize("version", versions(K.METADATA))
async def test_metadata_names_every_node_and_the_leader_of_each_partition(
    admin, cluster, version
) -> None:
    cluster.lead(log(admin, 1), 2, 7, isr=(2, 0))
    cluster.lead(log(admin, 2), NO_NODE, 8, isr=())
    told = await admin.ask(K.METADATA, version, topics=[{"name": "t", "topic_id": None}])
    nodes = {(row.node_id, row.host, row.port) for row in told.brokers}
    assert nodes == {(0, "h0", 9000), (1, "h1", 9000), (2, "h2", 9000)}
    if version >= 1:
        assert [row.rack for row in told.brokers] == ["east", "west", "west"]
        assert told.controller_id == 2
    (topic,) = told.topics
    assert [row.leader_id for row in topic.partitions] == [0, 2, -1]
    codes = [row.error_code for row in topic.partitions]
    assert codes == [E.none, E.none, E.leader_not_available]
    assert [row.isr_nodes for row in topic.partitions] == [(0, 1, 2), (2, 0), ()]
    assert {row.replica_nodes for row in topic.partitions} == {(0, 1, 2)}
    if version >= 7:
        assert [row.leader_epoch for row in topic.partitions] == [0, 7, 8]


async def test_a_node_that_is_gone_is_offline_and_its_partitions_have_no_leader(
    admin, cluster
) -> None:
    cluster.places.pop(1)
    cluster.lead(log(admin), 1, 3)
    told = await admin.ask(K.METADATA, topics=[{"name": "t", "topic_id": None}])
    first = told.topics[0].partitions[0]
    assert (first.error_code, first.leader_id) == (E.leader_not_available, -1)
    assert first.offline_replicas == (1,)
    old = await admin.ask(K.METADATA, 0, topics=[{"name": "t"}])
    second = old.topics[0].partitions[1]
    assert (second.error_code, second.replica_nodes) == (E.replica_not_available, (0, 2))


@pytest.mark.parametrize(
    ("version", "code"), [(5, E.leader_not_available), (6, E.listener_not_found)]
)
async def test_a_leader_without_the_listener_of_the_client_is_not_found(
    admin, cluster, version, code
) -> None:
    cluster.places[2] = cluster.places[2]._replace(listeners={"kafka_tls": "kafkas://x:1"})
    cluster.lead(log(admin), 2, 3)
    told = await admin.ask(K.METADATA, version, topics=[{"name": "t"}])
    assert (told.topics[0].partitions[0].error_code) == code
    assert {row.node_id for row in told.brokers} == {0, 1}
    assert told.controller_id == 0, "the controller is not reached, and every node takes commands"


async def test_the_address_of_a_node_is_that_of_the_listener_by_which_the_client_came(
    admin, cluster
) -> None:
    cluster.places[1] = place(1, kafka="kafka://[::1]:7", kafka_tls="kafkas://secret:8")
    told = await admin.ask(K.DESCRIBE_CLUSTER, include_cluster_authorized_operations=False)
    assert (told.brokers[1].host, told.brokers[1].port) == ("::1", 7)
    assert (told.controller_id, told.brokers[1].rack) == (2, None)


def test_a_node_registers_the_addresses_that_it_advertises() -> None:
    listeners = Listeners(kafka=KafkaListener(advertised="outside:1"))
    bound = {"kafka": "kafka://127.0.0.1:9092", "mqtt": "mqtt://127.0.0.1:1883"}
    assert reached_urls(listeners, bound) == {**bound, "kafka": "kafka://outside:1"}


async def test_partitions_are_described_with_their_eligible_replicas(admin, cluster) -> None:
    cluster.lead(log(admin, 1), NO_NODE, 4, isr=(), elr=(2,))
    cluster.places.pop(1)
    told = await admin.ask(
        K.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "t"}], response_partition_limit=9
    )
    first, second, _third = told.topics[0].partitions
    assert (first.leader_id, first.offline_replicas, first.error_code) == (0, (1,), E.none)
    assert (second.leader_id, second.leader_epoch) == (-1, 4)
    assert second.error_code is E.leader_not_available
    assert second.eligible_leader_replicas == (2,)


async def test_a_leader_whose_log_is_stopped_does_not_lead(admin, cluster) -> None:
    log(admin).stop(PartitionStopped("broken"))
    told = await admin.ask(K.METADATA, topics=[{"name": "t", "topic_id": None}])
    first = told.topics[0].partitions[0]
    assert (first.error_code, first.leader_id) == (E.leader_not_available, -1)


async def test_a_view_has_the_leader_of_the_partition_that_holds_its_records(
    admin, cluster
) -> None:
    main = admin.broker.streams.get("main")
    for partition in main.partitions:
        cluster.lead(partition, 1, 9)
    created = await admin.create("view", onelog__filter="plant/#")
    assert created.error_code is E.none, created
    told = await admin.ask(K.METADATA, topics=[{"name": "view", "topic_id": None}])
    assert {(row.leader_id, row.leader_epoch) for row in told.topics[0].partitions} == {(1, 9)}


# -- coordinators


@pytest.mark.parametrize("version", versions(K.FIND_COORDINATOR))
@pytest.mark.parametrize("kind", [0, 1])
async def test_the_owner_of_a_name_coordinates_it(admin, cluster, version, kind) -> None:
    if kind and not version:
        return  # that version knows only groups
    cluster.owners = {b"one": 1, b"two": 2}
    for name, node in (("one", 1), ("two", 2), ("mine", 0)):
        told = await admin.ask(
            K.FIND_COORDINATOR, version, key=name, key_type=kind, coordinator_keys=[name]
        )
        row = told.coordinators[0] if version >= 4 else told
        assert (row.error_code, row.node_id, row.host) == (E.none, node, f"h{node}")


@pytest.mark.parametrize("version", range(4, APIS[K.FIND_COORDINATOR].last + 1))
async def test_a_name_that_nobody_owns_has_no_coordinator_and_others_have(
    admin, cluster, version
) -> None:
    cluster.owners = {b"lost": NO_NODE, b"far": 9, b"one": 1}
    told = await admin.ask(
        K.FIND_COORDINATOR, version, key_type=0, coordinator_keys=["lost", "one", "far"]
    )
    lost, one, far = told.coordinators
    assert (lost.error_code, lost.node_id) == (E.coordinator_not_available, -1)
    assert (far.error_code, far.node_id) == (E.coordinator_not_available, -1)
    assert (one.error_code, one.node_id) == (E.none, 1)


# -- elections, moves, new topics


async def elected(admin: Desk, kind: int, *numbers: int, topic: str = "t"):
    told = await admin.ask(
        K.ELECT_LEADERS,
        election_type=kind,
        topic_partitions=[{"topic": topic, "partitions": numbers}] if numbers else None,
        timeout=1000,
    )
    return {
        (row.topic, one.partition_id): one.error_code
        for row in told.replica_election_results
        for one in row.partition_result
    }


async def test_an_election_is_asked_of_the_cluster(admin, cluster) -> None:
    assert await elected(admin, 0, 0, 2) == {("t", 0): E.none, ("t", 2): E.none}
    assert cluster.asked == [("elect", 0, False), ("elect", 2, False)]
    assert await elected(admin, 0, 9) == {("t", 9): E.unknown_topic_or_partition}
    cluster.changes = False
    assert await elected(admin, 1, 1) == {("t", 1): E.election_not_needed}
    assert cluster.asked[-1] == ("elect", 1, True)
    cluster.error = Conflict("not in sync")
    assert await elected(admin, 0, 1) == {("t", 1): E.preferred_leader_not_available}
    assert await elected(admin, 1, 1) == {("t", 1): E.eligible_leaders_not_available}
    cluster.error = Unavailable("no etcd")
    assert await elected(admin, 0, 1) == {("t", 1): E.not_controller}


async def test_an_election_for_all_is_for_those_that_need_one(admin, cluster) -> None:
    cluster.lead(log(admin, 1), 2, 4)
    cluster.lead(log(admin, 2), NO_NODE, 4)
    assert await elected(admin, 0) == {("t", 1): E.none, ("t", 2): E.none}
    assert await elected(admin, 1) == {("t", 2): E.none}


async def moved(admin: Desk, replicas, version=1, **more):
    row = {"partition_index": 1, "replicas": replicas}
    topics = [{"name": "t", "partitions": [row]}]
    told = await admin.ask(
        K.ALTER_PARTITION_REASSIGNMENTS, version, timeout=1000, topics=topics, **more
    )
    return told.responses[0].partitions[0].error_code


async def test_a_reassignment_is_asked_of_the_cluster_and_shown(admin, cluster) -> None:
    assert await moved(admin, (2, 1)) is E.none
    assert await moved(admin, None) is E.none
    assert cluster.asked == [("reassign", 1, (2, 1)), ("reassign", 1, None)]
    code = await moved(admin, (2, 1), allow_replication_factor_change=False)
    assert code is E.invalid_replication_factor
    cluster.error = Conflict("nothing moves")
    assert await moved(admin, None) is E.no_reassignment_in_progress
    cluster.error = InvalidRequest("no node 9")
    assert await moved(admin, (9,)) is E.invalid_replica_assignment
    cluster.lead(log(admin, 1), 0, 1, replicas=(2, 1, 0), adding=(2,), removing=(0,))
    for asked in (None, [{"name": "t", "partition_indexes": (1, 2)}]):
        told = await admin.ask(K.LIST_PARTITION_REASSIGNMENTS, topics=asked, timeout=1000)
        ((row,),) = [topic.partitions for topic in told.topics]
        assert (row.partition_index, row.replicas) == (1, (2, 1, 0))
        assert (row.adding_replicas, row.removing_replicas) == ((2,), (0,))
    asked = [{"name": "t", "partition_indexes": (0,)}]
    told = await admin.ask(K.LIST_PARTITION_REASSIGNMENTS, topics=asked, timeout=1000)
    assert not told.topics


async def test_a_new_topic_has_the_replicas_that_are_asked_for(admin, cluster) -> None:
    made = await admin.create("three", 2, 3)
    assert (made.error_code, made.replication_factor) == (E.none, 3)
    streams = admin.broker.streams
    assert streams.get("three").config.replication.factor == 3
    made = await admin.create("given", 1)
    assert (made.error_code, made.replication_factor) == (E.none, cluster.factor)
    assert streams.get("given").config.replication.factor == 0
    assert (await admin.create("four", 1, 4)).error_code is E.invalid_replication_factor
    for nodes in ((0, 0), (0, 9), ()):
        made = await admin.create("bad", assignments=[(0, nodes)])
        assert made.error_code is E.invalid_replica_assignment
    made = await admin.create("bad", assignments=[(0, (0, 1)), (1, (2,))])
    assert made.error_code is E.invalid_replica_assignment
    made = await admin.create("placed", assignments=[(1, (2, 1)), (0, (0, 1))])
    assert (made.error_code, made.num_partitions, made.replication_factor) == (E.none, 2, 2)
    asked = {"name": "t", "count": 4, "assignments": [{"broker_ids": (0, 1)}]}
    told = await admin.ask(K.CREATE_PARTITIONS, topics=[asked], timeout=1000, validate_only=False)
    assert told.results[0].error_code is E.invalid_replica_assignment
