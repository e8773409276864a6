"""Elections and reassignments in a cluster of several nodes: from partitions of topics to the map
of the cluster.

Rules: the partition of a topic with its own stream is elected and moved, that of a view is not. An
answer says what the metadata store has taken; data moves afterwards, and ListPartitionReassignments
shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onelog.base.errors import Conflict, InvalidRequest, Unavailable
from onelog.base.ids import PartitionId
from onelog.broker import NO_NODE, ReplicaPlaces, Stream
from onelog.protocols.kafka.admin.resources import need_stream
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.topics import KafkaTopic, kafka_name

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


class PlacedPartition(NamedTuple):
    """A partition of a Kafka topic, and where it lies."""

    topic: str
    stream_id: str
    number: PartitionId
    places: ReplicaPlaces


async def elect_on(hub: Hub, topic: KafkaTopic, number: int, *, unclean: bool) -> None:
    """Let the preferred replica lead; `unclean`: any that is left. Raises OnelogError."""
    stream, partition = _of(topic, number)
    try:
        changed = await hub.broker.cluster.elect(stream.record.id, partition, unclean=unclean)
    except Conflict as error:
        code = (
            ErrorCode.eligible_leaders_not_available
            if unclean
            else ErrorCode.preferred_leader_not_available
        )
        raise KafkaError(code, str(error)) from None
    except Unavailable as error:
        raise KafkaError(ErrorCode.not_controller, str(error)) from None
    if not changed:
        raise KafkaError(
            ErrorCode.election_not_needed,
            f"{topic.name}/{number} has that leader already, or has one",
        )


async def reassign_on(
    hub: Hub,
    topic: KafkaTopic,
    number: int,
    replicas: Sequence[int] | None,
    *,
    keeps_factor: bool,
) -> None:
    """Move a partition to these nodes; None: stop a move. Raises OnelogError."""
    stream, partition = _of(topic, number)
    cluster = hub.broker.cluster
    if replicas is not None and keeps_factor:
        places = cluster.replicas(stream.record.id, topic.partition(number).log)
        factor = len(places.replicas) - len(places.adding)
        if len(replicas) != factor:
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"{topic.name}/{number} has {factor} replicas, and the request, which keeps their"
                f" number, names {len(replicas)}",
            )
    try:
        await cluster.reassign(stream.record.id, partition, replicas)
    except Conflict as error:
        raise KafkaError(ErrorCode.no_reassignment_in_progress, str(error)) from None
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.invalid_replica_assignment, str(error)) from None
    except Unavailable as error:
        raise KafkaError(ErrorCode.not_controller, str(error)) from None


def _of(topic: KafkaTopic, number: int) -> tuple[Stream, PartitionId]:
    need_stream(topic, "lies where the topic's records lie")
    assert topic.stream is not None
    return topic.stream, topic.partition(number).log.id


def partitions_shown(hub: Hub) -> Iterator[PlacedPartition]:
    """Every partition of every topic that has a stream of its own."""
    for stream in hub.broker.streams.streams():
        name = kafka_name(stream)
        if name is not None:
            for log in stream.partitions:
                places = hub.broker.cluster.replicas(stream.record.id, log)
                yield PlacedPartition(name, stream.record.id, log.id, places)


def wants_election(places: ReplicaPlaces, *, unclean: bool) -> bool:
    """Whether an election for all partitions is for this one, too."""
    if unclean:
        return places.leader == NO_NODE
    return bool(places.replicas) and places.leader != places.replicas[0]


def move_row(shown: PlacedPartition) -> Body | None:
    """A partition that is being moved, as ListPartitionReassignments shows it; None: it is not."""
    places = shown.places
    if not places.adding and not places.removing:
        return None
    return {
        "partition_index": int(shown.number),
        "replicas": list(places.replicas),
        "adding_replicas": list(places.adding),
        "removing_replicas": list(places.removing),
    }


class ReplicaChoice(NamedTuple):
    """Where the replicas of new partitions lie."""

    factor: int
    """0: as many as the cluster gives."""
    assigned: tuple[tuple[int, ...], ...] = ()
    """The nodes of each partition; empty: the cluster chooses."""


def chosen_replicas(
    hub: Hub, factor: int, assigned: Sequence[Sequence[int]], *, held: int = 0
) -> ReplicaChoice:
    """What a client asks for, if the cluster can do it. `held`: the replicas that the topic's
    partitions have. Raises KafkaError."""
    nodes = hub.broker.cluster.nodes()
    if not assigned:
        up = sum(not node.is_draining for node in nodes)
        if factor != -1 and not 1 <= factor <= up:
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"a replication factor is 1 to the number of nodes, {up}, or -1, not {factor}",
            )
        return ReplicaChoice(max(factor, 0))
    known = {node.id for node in nodes}
    wanted = held or len(assigned[0])
    for row in assigned:
        unknown = [node for node in row if node not in known]
        if not row or len(set(row)) < len(row) or len(row) != wanted or unknown:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"each partition has {wanted} different nodes of the cluster, not {list(row)[:10]}",
            )
    return ReplicaChoice(wanted, tuple(tuple(row) for row in assigned))
