"""CreateTopics and CreatePartitions: topics with streams of their own, and views with a name.

Rules: the error of one topic does not affect the others. On a node on its own everything has one
replica; a request for more is refused, not silently served with less (I9). On several nodes, a
request gets the factor and the nodes that it names, and its answer waits for leaders.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onelog.base.errors import AlreadyExists, Conflict, InvalidRequest, OnelogError
from onelog.base.limits import PARTITIONS_PER_STREAM_MAX
from onelog.base.topics import is_exact
from onelog.broker import Action
from onelog.protocols.kafka.admin.answers import Shown, answer, created_row, element
from onelog.protocols.kafka.admin.choosing import chosen_config, default_config, with_partitions
from onelog.protocols.kafka.admin.describing import config_rows, topic_rows
from onelog.protocols.kafka.admin.moving import ReplicaChoice, chosen_replicas
from onelog.protocols.kafka.admin.resources import named_twice, need_stream, topic_for
from onelog.protocols.kafka.admin.topic_settings import FILTER
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.nodes import places_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.room import FULL, AnswerRoom
from onelog.protocols.kafka.topics import KafkaTopic, check_name

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_Made = tuple[Body, list[Shown]]
"""The row of a topic in the answer, and its settings."""

_DEFAULT: Final = -1
_SETTINGS_VERSION: Final = 5
"""From this version on, an answer has the settings of the new topic."""
_REPLICAS: Final = 1


async def create_topics(hub: Hub, request: Request) -> bytes:
    """Create topics, each with its own stream, or views, if a filter is given."""
    named, room = Counter(row.name for row in request.body.topics), AnswerRoom()
    await hub.elsewhere.learn(named)
    answers = []
    for row in {row.name: row for row in request.body.topics}.values():
        body: Body
        rows: list[Shown] = []
        try:
            if named[row.name] > 1:
                raise named_twice(row.name)
            body, rows = await _create(hub, request, row)
        except OnelogError as error:
            body = {"name": row.name, "error_code": code_of(error), "error_message": str(error)}
        request.codes.append(body.get("error_code", ErrorCode.none))
        answers.append(_told(request.version, body, rows, room))
        await asyncio.sleep(0)  # there may be thousands: others have their turn
    return answer(ApiKey.CREATE_TOPICS, request.version, answers)


def _told(version: int, body: Body, rows: list[Shown], room: AnswerRoom) -> bytes:
    """A topic in the answer, with its settings if the version and the room allow it."""
    written: list[bytes] = []
    if rows and version >= _SETTINGS_VERSION:
        if room.is_left:
            written = [created_row(version, each) for each in rows]
            room.take(sum(map(len, written)))
        else:
            body |= {"topic_config_error_code": FULL}
    return element(ApiKey.CREATE_TOPICS, version, "topics", body, written)


async def _create(hub: Hub, request: Request, row: Any) -> _Made:
    address = check_name(row.name)
    principal = request.connection.principal
    assert principal is not None
    if not hub.broker.authorizer.allows(principal, Action.CREATE, address):
        raise KafkaError(
            ErrorCode.topic_authorization_failed, f"{principal.name} may not make {row.name}"
        )
    values = _values(row)
    if hub.topics.find(row.name) is not None:
        raise KafkaError(ErrorCode.topic_already_exists, f"the topic {row.name} exists already")
    if values.get(FILTER, "").strip():
        return await _create_view(hub, request, row, values)
    if not is_exact(address):
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"{row.name} stands for the filter {address!r}, which is a view and needs no creation",
        )
    if address.startswith("$"):
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"{row.name} stands for {address!r}: topics that begin with $ are not made by Kafka",
        )
    return await _create_stream(hub, request, row, address, values)


def _values(row: Any) -> dict[str, str]:
    values: dict[str, str] = {}
    for config in row.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.invalid_config, f"{config.name[:100]!r} needs a value")
        if config.name in values:
            raise KafkaError(
                ErrorCode.invalid_request, f"{config.name[:100]!r} is named more than once"
            )
        values[config.name] = config.value
    return values


async def _create_stream(
    hub: Hub, request: Request, row: Any, address: str, values: dict[str, str]
) -> _Made:
    partitions, replicas = _partitions(hub, row)
    stream_name = hub.stream_name(row.name)
    config = chosen_config(
        default_config(hub.config.defaults.stream, stream_name, address, partitions), values
    )
    if replicas.factor:
        replication = msgspec.structs.replace(config.replication, factor=replicas.factor)
        config = msgspec.structs.replace(config, replication=replication)
    hub.check_room(partitions)
    body = _described(row.name, partitions, _factor(hub, replicas))
    rows = config_rows(hub.config, config)
    try:
        if request.body.validate_only:
            hub.broker.streams.check_new(config)
            return body, rows
        await hub.broker.streams.create(config, replicas.assigned)
    except (AlreadyExists, Conflict) as error:
        raise KafkaError(ErrorCode.topic_already_exists, str(error)) from None
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None
    return body | {"topic_id": hub.topics.get(row.name).id}, rows


async def _create_view(hub: Hub, request: Request, row: Any, values: dict[str, str]) -> _Made:
    others = sorted(values.keys() - {FILTER})
    if others:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"a view holds no records: beside {FILTER} it takes no setting, not {others[0][:100]}",
        )
    if row.assignments or row.num_partitions not in (_DEFAULT, 1):
        raise KafkaError(
            ErrorCode.invalid_partitions,
            "a view has the partitions of what it shows: ask for -1 (or 1, which is ignored)",
        )
    if hub.broker.cluster.nodes():
        chosen_replicas(hub, row.replication_factor, ())
    else:
        _check_replicas(row.replication_factor)
    text = values[FILTER]
    try:
        if request.body.validate_only:
            await hub.broker.views.check_new(row.name, text)
            return _described(row.name, _DEFAULT), []
        made = await hub.views.create(row.name, text)
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.invalid_config, f"{FILTER}: {error}") from None
    body = _described(row.name, made.partition_count) | {"topic_id": made.id}
    return body, topic_rows(hub, made)


def _factor(hub: Hub, replicas: ReplicaChoice) -> int:
    """How many replicas new partitions have."""
    nodes = hub.broker.cluster.nodes()
    if not nodes:
        return _REPLICAS
    return replicas.factor or min(hub.broker.cluster.factor, len(nodes))


def _described(name: str, partitions: int, replicas: int = _REPLICAS) -> Body:
    return {
        "name": name,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "configs": [],
    }


# -- how many, and where


def _partitions(hub: Hub, row: Any) -> tuple[int, ReplicaChoice]:
    assigned = [part.broker_ids for part in sorted(row.assignments, key=_index)]
    is_alone = not hub.broker.cluster.nodes()
    if row.assignments:
        if (row.num_partitions, row.replication_factor) != (_DEFAULT, _DEFAULT):
            raise KafkaError(
                ErrorCode.invalid_request,
                "where replicas are assigned, partitions and replication factor are -1",
            )
        numbers = sorted(part.partition_index for part in row.assignments)
        if numbers != list(range(len(numbers))):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                "partitions are assigned from 0 on, without a gap and once each",
            )
        partitions = len(numbers)
    else:
        partitions = row.num_partitions
        if partitions == _DEFAULT:
            partitions = hub.settings.topics.partitions
    if not is_alone:
        replicas = chosen_replicas(hub, row.replication_factor, assigned)
    else:
        replicas = ReplicaChoice(0)
        _check_assigned(hub, assigned)
        if not assigned:
            _check_replicas(row.replication_factor)
    _check_count(partitions)
    return partitions, replicas


def _index(part: Any) -> int:
    return int(part.partition_index)


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_PER_STREAM_MAX:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"a topic has 1 to {PARTITIONS_PER_STREAM_MAX} partitions, not {partitions}",
        )


def _check_replicas(factor: int) -> None:
    if factor not in (_DEFAULT, _REPLICAS):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"this cluster has one node: a replication factor is 1, or -1, not {factor}",
        )


def _check_assigned(hub: Hub, assigned: Sequence[Sequence[int]]) -> None:
    for nodes in assigned:
        if tuple(nodes) != (hub.node_id,):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"a partition has one replica, on node {hub.node_id}, not {list(nodes)[:10]}",
            )


# -- more partitions


async def create_partitions(hub: Hub, request: Request) -> Body:
    """More partitions for topics."""
    named = Counter(row.name for row in request.body.topics)
    answers = []
    for row in {row.name: row for row in request.body.topics}.values():
        result: Body = {"name": row.name, "error_code": ErrorCode.none, "error_message": None}
        try:
            if named[row.name] > 1:
                raise named_twice(row.name)
            await _grow(hub, request, row)
        except OnelogError as error:
            result |= {"error_code": code_of(error), "error_message": str(error)}
        answers.append(result)
        await asyncio.sleep(0)
    return {"results": answers}


async def _grow(hub: Hub, request: Request, row: Any) -> None:
    topic: KafkaTopic = topic_for(hub, request, Action.CONFIGURE, row.name)
    need_stream(topic, "has the partitions of what it shows")
    assert topic.stream is not None
    held = len(topic.stream.partitions)
    _check_count(row.count)
    if row.count <= held:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"{row.name} has {held} partitions: it can have more, and not {row.count}",
        )
    if row.assignments is not None and len(row.assignments) != row.count - held:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"{row.count - held} partitions are new, {len(row.assignments)} are assigned",
        )
    assigned = _assigned_more(hub, topic, row)
    hub.check_room(row.count - held)
    config = with_partitions(topic.stream.config, row.count)
    if request.body.validate_only:
        hub.broker.streams.check_altered(config)
    else:
        await hub.broker.streams.alter(config, assigned)


def _assigned_more(hub: Hub, topic: KafkaTopic, row: Any) -> Sequence[tuple[int, ...]]:
    """The nodes of new partitions; empty: the cluster chooses."""
    if not row.assignments:
        return ()
    assigned = [part.broker_ids for part in row.assignments]
    if not hub.broker.cluster.nodes():
        _check_assigned(hub, assigned)
        return ()
    places = places_of(hub, topic.partition(0).log)
    return chosen_replicas(hub, _DEFAULT, assigned, held=len(places.replicas)).assigned
