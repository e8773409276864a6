"""DeleteTopics and DeleteRecords: what an administrator deletes from the log.

Rules: a topic is gone for everybody when the answer goes out; requests that wait for one of its
partitions get UNKNOWN_TOPIC_OR_PARTITION. A view holds no records: only its name can be deleted.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError, again
from onelog.broker import Action, Cleanup
from onelog.protocols.kafka.admin.resources import need_stream, topic_for
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.nodes import check_fresh, check_led
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.rights import topic_of_id
from onelog.protocols.kafka.topics import KafkaTopic
from onelog.protocols.kafka.turns import Asked, RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_BY_ID_VERSION: Final = 6
_END: Final = -1
_NO_OFFSET: Final = -1


async def delete_topics(hub: Hub, request: Request) -> Body:
    """Topics by name, or by id."""
    if request.version < _BY_ID_VERSION:
        wanted: list[tuple[str | None, uuid.UUID | None]] = [
            (name, None) for name in request.body.topic_names
        ]
    else:
        wanted = [(row.name, row.topic_id) for row in request.body.topics]
    times = Counter(wanted)
    return {
        "responses": [
            await _delete(hub, request, *row, times=times[row])
            async for row in RequestTurns().over(times)
        ],
    }


async def _delete(
    hub: Hub, request: Request, name: str | None, wanted: uuid.UUID | None, *, times: int
) -> Body:
    answer: Body = {
        "name": name,
        "topic_id": wanted,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    try:
        if times > 1:
            raise KafkaError(ErrorCode.invalid_request, "the request names a topic more than once")
        topic = _find(hub, request, name, wanted)
        answer |= {"name": topic.name, "topic_id": topic.id}
        if topic.stream is not None:
            _ = hub.groups  # its committed offsets go, too: a new topic must not have them
            await hub.broker.streams.delete(topic.stream.name)
        else:
            await hub.views.delete(topic.name)
    except OnelogError as error:
        answer |= {"error_code": code_of(error), "error_message": str(error)}
    return answer


def _find(hub: Hub, request: Request, name: str | None, wanted: uuid.UUID | None) -> KafkaTopic:
    if (name is None) == (wanted is None):
        raise KafkaError(ErrorCode.invalid_request, "a topic is deleted by its name or by its id")
    if name is not None:
        return topic_for(hub, request, Action.DELETE, name)
    assert wanted is not None
    return topic_of_id(hub, request.connection.principal, Action.DELETE, wanted)


async def delete_records(hub: Hub, request: Request) -> Body:
    """Delete the records below an offset of partitions."""
    asked, turns = Asked(hub, request, Action.DELETE), RequestTurns()
    topics = []
    for topic in request.body.topics:
        rows = [
            await _trim(hub, asked, topic.name, row) async for row in turns.over(topic.partitions)
        ]
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


async def _trim(hub: Hub, asked: Asked, name: str, row: Any) -> Body:
    answer: Body = {
        "partition_index": row.partition_index,
        "low_watermark": _NO_OFFSET,
        "error_code": ErrorCode.none,
    }
    try:
        topic = asked.get(name)
        need_stream(topic, "holds no records")
        assert topic.stream is not None
        log = topic.partition(row.partition_index).log
        check_led(log)
        check_fresh(log)
        if log.stopped is not None:
            raise again(log.stopped)
        if topic.stream.config.cleanup is Cleanup.COMPACT:
            raise KafkaError(
                ErrorCode.policy_violation, f"the records of {name} leave by compaction only"
            )
        start, _stable, end = log.ends()
        before = end if row.offset == _END else row.offset
        if not 0 <= before <= end:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{name}/{row.partition_index} ends at {end}: {before} is beyond it",
            )
        if before > start:
            await hub.broker.delete_records(topic.stream.name, row.partition_index, before)
        answer["low_watermark"] = int(log.start_offset)
    except OnelogError as error:
        answer["error_code"] = code_of(error)
    return answer
