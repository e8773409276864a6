"""DescribeTopicPartitions: topics and their partitions, some at a time (KIP-966).

Rules: topics come in the order of their names. An answer holds as many partitions as the client
asks for, one at least and `PARTITIONS_MAX` at most; the cursor says where the next one begins. A
topic that is asked for by name is in the answer, also when it does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.broker import NO_NODE
from onelog.protocols.kafka.admin.resources import topic_for
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.nodes import Nodes, places_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import topic_operations
from onelog.protocols.kafka.topics import KafkaTopic
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

PARTITIONS_MAX: Final = 2000
"""Partitions of one answer, as Kafka has it by default."""


async def describe_topic_partitions(hub: Hub, request: Request) -> Body:
    """Partitions from the cursor on."""
    body, cursor = request.body, request.body.cursor
    if cursor is not None and cursor.partition_index < 0:
        refused = ErrorCode.invalid_request
        return {"topics": [{"error_code": refused, "name": row.name} for row in body.topics]}
    left = max(1, min(body.response_partition_limit, PARTITIONS_MAX))
    topics: list[Body] = []
    nodes = Nodes(hub, request.connection)
    await hub.elsewhere.learn([row.name for row in body.topics])
    wanted = _wanted(hub, request, "" if cursor is None else cursor.topic_name)
    async for name, topic in RequestTurns().over(wanted):
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if isinstance(topic, ErrorCode):
            topics.append({"error_code": topic, "name": name, "partitions": []})
            continue
        if not left:
            return {"topics": topics, "next_cursor": _cursor(name, first)}
        stop = min(topic.partition_count, first + left)
        operations = topic_operations(hub, request.connection.principal, topic)
        topics.append(_topic(hub, nodes, topic, range(first, stop), operations))
        left -= max(stop - first, 0)
        if stop < topic.partition_count:
            return {"topics": topics, "next_cursor": _cursor(name, stop)}
    return {"topics": topics, "next_cursor": None}


def _cursor(name: str, number: int) -> Body:
    return {"topic_name": name, "partition_index": number}


def _wanted(hub: Hub, request: Request, start: str) -> Iterator[tuple[str, KafkaTopic | ErrorCode]]:
    """The requested topics from a name on, or the error of one that does not exist."""
    asked = {row.name for row in request.body.topics}
    names = asked or {topic.name for topic in hub.topics.listed()}
    for name in sorted(name for name in names if name >= start):
        try:
            yield name, topic_for(hub, request, None, name)
        except OnelogError as error:
            if asked:
                yield name, code_of(error)


def _topic(hub: Hub, nodes: Nodes, topic: KafkaTopic, numbers: range, operations: int) -> Body:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": False,
        "partitions": [_partition(hub, nodes, topic, number) for number in numbers],
        "topic_authorized_operations": operations,
    }


def _partition(hub: Hub, nodes: Nodes, topic: KafkaTopic, number: int) -> Body:
    log = topic.partition(number).log
    places = places_of(hub, log)
    leader, error = nodes.leader(places, log)
    runs = leader != NO_NODE or not nodes.is_alone  # a node on its own has only what runs
    return {
        "error_code": error,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": places.epoch,
        "replica_nodes": list(places.replicas),
        "isr_nodes": list(places.isr) if runs else [],
        "eligible_leader_replicas": list(places.elr),
        "last_known_elr": [],
        "offline_replicas": [node for node in places.replicas if not runs or not nodes.is_up(node)],
    }
