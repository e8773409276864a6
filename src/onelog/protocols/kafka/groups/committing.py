"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError
from onelog.broker import Action
from onelog.protocols.kafka.codec import Body, given, millis
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.groups.coordinator import GROUP_ID_CHARS_MAX, check_group_id
from onelog.protocols.kafka.groups.offset_store import Wanted
from onelog.protocols.kafka.groups.offsets import GroupOffsets, Place
from onelog.protocols.kafka.groups.states import DELETE, State
from onelog.protocols.kafka.groups.subscription import CONSUMER, subscribed_topics
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import check_group, group_cursor, may_own
from onelog.protocols.kafka.room import FULL, AnswerRoom
from onelog.protocols.kafka.turns import Asked, RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_FETCH_BATCHED: Final = 8
_NO_OFFSET: Final = -1
_UNKNOWN: Final = ErrorCode.unknown_topic_or_partition
_STANDING_BYTES: Final = 24
"""Bytes of an offset in an answer, without the text beside it."""


async def offset_commit(hub: Hub, request: Request) -> Body:
    """Commit; answered when durable."""
    body = request.body
    if not may_own(hub, request, group_cursor(body.group_id)):
        refused_all = ErrorCode.group_authorization_failed
        return {"topics": await place_answers(body.topics, {}, refused_all)}
    wanted, errors = await wanted_offsets(hub, request)
    try:
        _check_commit_id(body.group_id)
        error = hub.groups.check_commit(
            body.group_id,
            body.member_id,
            given(body, "group_instance_id", None),
            body.generation_id_or_member_epoch,
        )
        if error is ErrorCode.none and wanted:
            retention_ms = millis(given(body, "retention_time", None))
            expires_ms = -1 if retention_ms < 0 else int(hub.clock.now_ms()) + retention_ms
            await hub.groups.offsets.commit(body.group_id, wanted, expires_ms=expires_ms)
    except OnelogError as refused:
        error = code_of(refused)
    return {"topics": await place_answers(body.topics, errors, error)}


async def check_places(hub: Hub, request: Request, topics: Sequence[Any]) -> dict[Place, ErrorCode]:
    """The partitions that cannot be committed to, because they do not exist or are not allowed."""
    asked, turns = Asked(hub, request, Action.DELIVER), RequestTurns()
    await hub.elsewhere.learn([topic.name for topic in topics])
    changes = hub.topics.changes
    errors: dict[Place, ErrorCode] = {}
    streams: set[str] = set()
    async for topic in turns.over(topics):
        count, error = 0, _UNKNOWN
        try:
            known = asked.get(topic.name)
            count = known.partition_count
            if known.stream is not None:
                streams.add(topic.name)
        except OnelogError as refused:
            error = code_of(refused)
        async for row in turns.timed(topic.partitions):
            if not 0 <= row.partition_index < count:
                errors[topic.name, row.partition_index] = error
    if hub.topics.changes == changes:
        return errors
    for topic in topics:
        # Others had their turn: no offset is kept for a topic that was deleted meanwhile.
        if topic.name in streams:
            found = hub.topics.find(topic.name)
            count = 0 if found is None else found.partition_count
            for row in topic.partitions:
                if row.partition_index >= count:
                    errors[topic.name, row.partition_index] = _UNKNOWN
    return errors


async def wanted_offsets(
    hub: Hub, request: Request
) -> tuple[dict[Place, Wanted], dict[Place, ErrorCode]]:
    """The offsets that a request wants to commit, and the errors of those that cannot be."""
    limit, turns = hub.settings.groups.metadata_bytes, RequestTurns()
    wanted: dict[Place, Wanted] = {}
    errors: dict[Place, ErrorCode] = {}
    async for topic in turns.timed(request.body.topics):
        async for row in turns.timed(topic.partitions):
            place = (str(topic.name), int(row.partition_index))
            text = row.committed_metadata or ""
            if len(text) > limit or len(text.encode()) > limit:
                errors[place] = ErrorCode.offset_metadata_too_large
            else:
                epoch = int(given(row, "committed_leader_epoch", -1))
                wanted[place] = (int(row.committed_offset), epoch, text)
    # Last: others have their turn until then, and no offset is kept for a topic that is gone.
    errors |= await check_places(hub, request, request.body.topics)
    for place in errors:
        wanted.pop(place, None)
    return wanted, errors


async def place_answers(
    topics: Iterable[Any], errors: dict[Place, ErrorCode], otherwise: ErrorCode
) -> list[Body]:
    """One answer per partition: its own error, or that of the whole request."""
    turns = RequestTurns()
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": row.partition_index,
                    "error_code": errors.get((topic.name, row.partition_index), otherwise),
                }
                async for row in turns.timed(topic.partitions)
            ],
        }
        async for topic in turns.timed(topics)
    ]


# -- OffsetFetch


async def offset_fetch(hub: Hub, request: Request) -> Body:
    """Committed offsets of groups; from version 8 on of several groups at once."""
    body = request.body
    stable = given(body, "require_stable", False)
    turns, room = RequestTurns(), AnswerRoom()
    if request.version >= _FETCH_BATCHED:
        return {
            "groups": [
                await _fetch_group(hub, request, row, turns, room, stable)
                async for row in turns.timed(body.groups)
            ]
        }
    check_group(hub, request, body.group_id)
    hub.groups.check(body.group_id)
    return {"topics": await _fetch(hub, body, turns, room, stable), "error_code": ErrorCode.none}


async def _fetch_group(
    hub: Hub, request: Request, row: Any, turns: RequestTurns, room: AnswerRoom, stable: bool
) -> Body:
    try:
        check_group(hub, request, row.group_id)
        hub.groups.check(row.group_id)
    except OnelogError as error:
        return {"group_id": row.group_id, "topics": [], "error_code": fetch_code(error)}
    return {"group_id": row.group_id, "topics": await _fetch(hub, row, turns, room, stable)}


def fetch_code(error: OnelogError) -> ErrorCode:
    """The code for a group whose offsets are not known here."""
    code = code_of(error)
    # Most clients fail on the first of these codes here, and all of them try again after the other.
    if code is ErrorCode.coordinator_not_available:
        return ErrorCode.coordinator_load_in_progress
    return code


async def _fetch(
    hub: Hub, asked: Any, turns: RequestTurns, room: AnswerRoom, stable: bool
) -> list[Body]:
    """The answer for one group; without room each partition is refused."""
    offsets = hub.groups.offsets.find(asked.group_id)
    if asked.topics is not None:
        wanted = [
            (str(row.name), [int(at) for at in row.partition_indexes]) for row in asked.topics
        ]
    elif offsets is None:
        wanted = []
    else:
        wanted = [(topic, sorted(rows)) for topic, rows in sorted(offsets.committed.items())]
    return [
        {
            "name": topic,
            "partitions": [
                _standing(offsets, topic, at, room, stable=stable)
                async for at in turns.timed(partitions)
            ],
        }
        async for topic, partitions in turns.timed(wanted)
    ]


def _standing(
    offsets: GroupOffsets | None, topic: str, partition: int, room: AnswerRoom, *, stable: bool
) -> Body:
    answer: Body = {
        "partition_index": partition,
        "committed_offset": _NO_OFFSET,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": ErrorCode.none,
    }
    if offsets is None:
        return answer
    if stable and offsets.is_unstable(topic, partition):
        answer["error_code"] = ErrorCode.unstable_offset_commit
        return answer
    found = offsets.find(topic, partition)
    if found is not None and not room.is_left:
        answer["error_code"] = FULL
    elif found is not None:
        room.take(_STANDING_BYTES + len(found.metadata))
        answer["committed_offset"] = found.offset
        answer["committed_leader_epoch"] = found.leader_epoch
        answer["metadata"] = found.metadata
    return answer


# -- OffsetDelete


async def offset_delete(hub: Hub, request: Request) -> Body:
    """Delete committed offsets of a group, in topics that none of its members reads."""
    body = request.body
    check_group_id(body.group_id)
    check_group(hub, request, body.group_id, Action.DELETE)
    errors = await check_places(hub, request, body.topics)  # first: others have their turn in it
    hub.groups.check(body.group_id)
    group = hub.groups.find(body.group_id)
    if group is None or group.state is State.DEAD:
        raise KafkaError(ErrorCode.group_id_not_found, f"there is no group {body.group_id!r}")
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
        raise KafkaError(
            DELETE[group.state], f"the group {body.group_id!r} has members; stop them first"
        )
    if group.state is not State.EMPTY:
        reads = subscribed_topics(group)
        for topic in body.topics:
            if reads is None or topic.name in reads:
                for row in topic.partitions:
                    place = (topic.name, row.partition_index)
                    errors.setdefault(place, ErrorCode.group_subscribed_to_topic)
    places = [
        (str(topic.name), int(row.partition_index))
        for topic in body.topics
        for row in topic.partitions
        if (topic.name, row.partition_index) not in errors
    ]
    if places:
        await hub.groups.offsets.delete(body.group_id, places)
    return {
        "error_code": ErrorCode.none,
        "topics": await place_answers(body.topics, errors, ErrorCode.none),
    }


def _check_commit_id(group: str) -> None:
    """The empty group id is allowed here, as in Kafka: old simple consumers have none."""
    if len(group) > GROUP_ID_CHARS_MAX:
        check_group_id(group)
