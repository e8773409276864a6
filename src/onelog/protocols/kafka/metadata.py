"""Metadata and DescribeCluster: the nodes, the topics, and who leads their partitions.

Rules: an unknown topic is created when the client and the settings both allow it. The error of one
topic does not affect the others. A topic that is named several times is in the answer once, as in
Kafka. A partition without a leader has LEADER_NOT_AVAILABLE: clients ask again.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import AlreadyExists, OnelogError
from onelog.broker import Action
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.metadata_wire import (
    MetadataWriter,
    PartitionRow,
    PlacedRow,
    TopicRow,
)
from onelog.protocols.kafka.nodes import Nodes, places_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import (
    authorize,
    cluster_operations,
    may_see,
    topic_of_id,
    topic_operations,
)
from onelog.protocols.kafka.room import AnswerRoom
from onelog.protocols.kafka.topics import KafkaTopic, check_name
from onelog.protocols.kafka.turns import RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_ALL_TOPICS_VERSION: Final = 1
"""From this version on, an empty list asks for no topic; before, for all of them."""
_BY_ID_VERSION: Final = 12
"""From this version on, a topic may be asked for by its id; before, every answer needs a name."""
OPERATIONS_NOT_ASKED: Final = -(2**31)
_ENDPOINT_BROKERS: Final = 1
_LISTENER_VERSION: Final = 6
"""From this version on, a client may hear that a leader lacks the listener that it came by."""
_PARTITION_BYTES: Final = 34
"""Bytes of a partition in an answer, at most, on a node on its own."""
_NODE_BYTES: Final = 4
_ROWS_AT_ONCE: Final = 1000


class _MetadataAnswer:
    """An answer in progress."""

    __slots__ = ("_asker", "_hub", "_nodes", "_version", "room", "turns", "writer")

    def __init__(self, hub: Hub, request: Request) -> None:
        self._hub, self._version = hub, request.version
        nodes = self._nodes = Nodes(hub, request.connection)
        self.writer = MetadataWriter(request.version, list(nodes.by_id.values()), nodes.controller)
        self.turns, self.room = RequestTurns(), AnswerRoom()
        asked = given(request.body, "include_topic_authorized_operations", False)
        self._asker = (hub, request.connection.principal) if asked else None

    def operations(self, topic: KafkaTopic) -> int:
        """What the client may do to a topic, if it asked for that."""
        if self._asker is None:
            return OPERATIONS_NOT_ASKED
        return topic_operations(*self._asker, topic)

    def row_bytes(self, topic: KafkaTopic) -> int:
        """Bytes of a partition in the answer, at most."""
        if self._nodes.is_alone or not topic.partition_count:
            return _PARTITION_BYTES
        replicas = len(places_of(self._hub, topic.partition(0).log).replicas)
        return _PARTITION_BYTES + 3 * _NODE_BYTES * replicas

    def partitions(self, topic: KafkaTopic, numbers: range) -> bytes:
        """Some partitions of a topic."""
        if self._nodes.is_alone:
            return self.writer.partitions(_rows(topic, numbers))
        return self.writer.placed(self._placed(topic, numbers))

    def _placed(self, topic: KafkaTopic, numbers: range) -> Iterator[PlacedRow]:
        nodes, version = self._nodes, self._version
        for number in numbers:
            log = topic.partition(number).log
            places = places_of(self._hub, log)
            leader, error = nodes.leader(places, log)
            if error is ErrorCode.listener_not_found and version < _LISTENER_VERSION:
                error = ErrorCode.leader_not_available
            offline = [node for node in places.replicas if not nodes.is_up(node)]
            replicas, isr = places.replicas, places.isr
            if not version and offline:  # clients of that time know only nodes of the answer
                replicas = tuple(node for node in replicas if nodes.is_up(node))
                isr = tuple(node for node in isr if nodes.is_up(node))
                error = error or ErrorCode.replica_not_available
            yield int(error), number, leader, places.epoch, replicas, isr, offline


async def metadata(hub: Hub, request: Request) -> bytes:
    """Brokers and topics."""
    asked, answer = request.body.topics, _MetadataAnswer(hub, request)
    write, turns = answer.writer.topic, answer.turns
    if asked is None or (not asked and request.version < _ALL_TOPICS_VERSION):
        visible = turns.over(_visible(hub, request))
        rows = [write(await _describe(answer, topic)) async for topic in visible]
    elif request.version < _BY_ID_VERSION and any(_is_by_id(row) for row in asked):
        refused = int(ErrorCode.invalid_request)
        rows = [
            write(TopicRow(refused, row.name or "", None, OPERATIONS_NOT_ASKED))
            async for row in turns.timed(asked)
        ]
    else:
        create = given(request.body, "allow_auto_topic_creation", True)
        once = dict.fromkeys((row.name, given(row, "topic_id", None)) for row in asked)
        unsure = await hub.elsewhere.learn([one for row in once if (one := row[0] or row[1])])
        rows = [
            write(
                _missing(ErrorCode.leader_not_available, *row)
                if row[0] in unsure
                else await _one(hub, request, answer, *row, create=create)
            )
            async for row in turns.over(once)
        ]
    operations = (
        cluster_operations(hub, request)
        if given(request.body, "include_cluster_authorized_operations", False)
        else OPERATIONS_NOT_ASKED
    )
    return answer.writer.answer(hub.cluster_id, rows, operations)


def _is_by_id(row: Any) -> bool:
    return row.name is None or given(row, "topic_id", None) is not None


def _visible(hub: Hub, request: Request) -> list[KafkaTopic]:
    principal = request.connection.principal
    return [topic for topic in hub.topics.listed() if may_see(hub, principal, topic)]


async def _one(
    hub: Hub,
    request: Request,
    answer: _MetadataAnswer,
    name: str | None,
    wanted: uuid.UUID | None,
    *,
    create: bool,
) -> TopicRow:
    principal = request.connection.principal
    try:
        if name is None:
            if wanted is None:
                return _missing(ErrorCode.unknown_topic_id, None, None)
            return await _describe(answer, topic_of_id(hub, principal, None, wanted))
        topic = hub.topics.find(name)
        if topic is None and create and hub.settings.topics.auto_create:
            topic = await _create(hub, request, name)
        if topic is None:
            authorize(hub, principal, None, check_name(name))
            return _missing(ErrorCode.unknown_topic_or_partition, name, None)
        authorize(hub, principal, None, topic.address)
    except OnelogError as error:
        return _missing(code_of(error), name, wanted)
    return await _describe(answer, topic)


async def _create(hub: Hub, request: Request, name: str) -> KafkaTopic | None:
    principal = request.connection.principal
    address = check_name(name)
    assert principal is not None
    if address.startswith("$"):
        return None
    allows = hub.broker.authorizer.allows
    if not allows(principal, Action.CREATE, address):
        # A producer would ask until its message times out: Kafka refuses it here, too. A client
        # that only reads waits for a topic that somebody else makes.
        if allows(principal, Action.PUBLISH, address):
            authorize(hub, principal, Action.CREATE, address)
        return None
    with contextlib.suppress(AlreadyExists):  # another client was faster
        await hub.make_topic(name, hub.settings.topics.partitions)
    return hub.topics.find(name)


def _missing(code: ErrorCode, name: str | None, wanted: uuid.UUID | None) -> TopicRow:
    told = name if name is not None or wanted is not None else ""
    return TopicRow(int(code), told, wanted, OPERATIONS_NOT_ASKED)


async def _describe(answer: _MetadataAnswer, topic: KafkaTopic) -> TopicRow:
    count = topic.partition_count
    try:
        answer.room.take(count * answer.row_bytes(topic))
    except KafkaError as error:
        return _missing(error.code, topic.name, topic.id)
    try:
        pieces = [
            answer.partitions(topic, range(at, min(at + _ROWS_AT_ONCE, count)))
            async for at in answer.turns.timed(range(0, count, _ROWS_AT_ONCE))
        ]
    except KafkaError:  # others had their turn, and a view shows fewer partitions now: ask again
        return _missing(ErrorCode.leader_not_available, topic.name, topic.id)
    return TopicRow(
        int(ErrorCode.none), topic.name, topic.id, answer.operations(topic), count, b"".join(pieces)
    )


def _rows(topic: KafkaTopic, numbers: range) -> Iterator[PartitionRow]:
    stopped = int(ErrorCode.leader_not_available)
    for number in numbers:
        log = topic.partition(number).log
        yield 0 if log.stopped is None else stopped, number, log.leader_epoch


async def describe_cluster(hub: Hub, request: Request) -> Body:
    """The cluster and its nodes."""
    if given(request.body, "endpoint_type", _ENDPOINT_BROKERS) != _ENDPOINT_BROKERS:
        return {
            "error_code": ErrorCode.mismatched_endpoint_type,
            "error_message": "this is a broker, and there are no separate controllers",
        }
    nodes = Nodes(hub, request.connection)
    return {
        "error_code": ErrorCode.none,
        "cluster_id": hub.cluster_id,
        "controller_id": nodes.controller,
        "brokers": [
            {"broker_id": row.id, "host": row.host, "port": row.port, "rack": row.rack}
            for row in nodes.by_id.values()
        ],
        "endpoint_type": _ENDPOINT_BROKERS,
        "cluster_authorized_operations": cluster_operations(hub, request)
        if request.body.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    }
