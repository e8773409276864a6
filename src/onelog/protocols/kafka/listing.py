"""ListOffsets and OffsetForLeaderEpoch: where a partition begins and ends, by time and by epoch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError, again
from onelog.base.ids import TimestampMs
from onelog.broker import PartitionHandle
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.epochs import UNKNOWN_EPOCH, check_leader
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.topics import TopicPartition
from onelog.protocols.kafka.turns import Asked, RequestTurns

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_KNOWN_FROM: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The version from which a kind of offset may be asked for (KIP-79, KIP-734, KIP-405, KIP-1005)."""

_NO_OFFSET: Final = -1
_NO_TIMESTAMP: Final = -1
_READ_COMMITTED: Final = 1
_NOT_AVAILABLE_FROM: Final = 5
"""The version from which clients know OFFSET_NOT_AVAILABLE."""


async def list_offsets(hub: Hub, request: Request) -> Body:
    """Offsets by kind or by time."""
    committed = given(request.body, "isolation_level", 0) == _READ_COMMITTED
    asked, turns = Asked(hub, request, None), RequestTurns()
    topics = []
    for topic in request.body.topics:
        rows = [
            await _list_one(asked, topic.name, row, request.version, committed=committed)
            async for row in turns.over(topic.partitions)
        ]
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


async def _list_one(asked: Asked, name: str, row: Any, version: int, *, committed: bool) -> Body:
    answer: Body = {
        "partition_index": row.partition_index,
        "error_code": ErrorCode.none,
        "timestamp": _NO_TIMESTAMP,
        "offset": _NO_OFFSET,
        "leader_epoch": UNKNOWN_EPOCH,
    }
    try:
        topic = asked.get(name)
        _check_kind(row.timestamp, version)
        target = topic.partition(row.partition_index)
        check_leader(target.log, given(row, "current_leader_epoch", UNKNOWN_EPOCH))
        found = await _find(target, row.timestamp, committed=committed)
    except OnelogError as error:
        answer["error_code"] = _listing_code(error, version)
        return answer
    if found is not None:
        answer["offset"], answer["timestamp"] = found
        answer["leader_epoch"] = target.log.epoch_at(found[0])
    return answer


def _check_kind(wanted: int, version: int) -> None:
    """Refuse a kind of offset that this version does not define. Raises KafkaError."""
    since = _KNOWN_FROM.get(wanted)
    if wanted < 0 and (since is None or version < since):
        raise KafkaError(
            ErrorCode.unsupported_version, f"version {version} lists no offset of kind {wanted}"
        )


async def _find(target: TopicPartition, wanted: int, *, committed: bool) -> tuple[int, int] | None:
    log = target.log
    if log.stopped is not None:
        raise again(log.stopped)
    if wanted == LATEST:
        check_settled(log)
        return target.end(committed=committed), _NO_TIMESTAMP
    if wanted == EARLIEST:
        return int(target.ends().start), _NO_TIMESTAMP
    if wanted == EARLIEST_LOCAL:
        return max(int(log.local_start_offset), int(target.ends().start)), _NO_TIMESTAMP
    if wanted == MAX_TIMESTAMP:
        check_settled(log)
        return await asyncio.to_thread(target.max_timestamp)
    if wanted == LATEST_TIERED:
        tier = log.tier_status()
        if tier is None or not tier.rows:
            return None
        return int(tier.cold_end_offset) - 1, _NO_TIMESTAMP
    found = await target.offset_for_time(TimestampMs(wanted))
    if found is None:
        check_settled(log)  # a record of this time may lie behind the end that is known
        return None
    return int(found[0]), int(found[1])


def check_settled(log: PartitionHandle) -> None:
    """Refuse to tell an end that an earlier leader may have shown further on (KIP-207). Raises
    KafkaError."""
    if not log.is_settled:
        raise KafkaError(
            ErrorCode.offset_not_available,
            f"{log.stream}/{log.id} has a new leader, which does not know yet how far the others"
            " are: try again",
        )


def _listing_code(error: OnelogError, version: int) -> ErrorCode:
    code = code_of(error)
    if code is ErrorCode.offset_not_available and version < _NOT_AVAILABLE_FROM:
        return ErrorCode.leader_not_available  # which older clients know, and try again after
    return code


async def offset_for_leader_epoch(hub: Hub, request: Request) -> Body:
    """The end of a leader epoch, so that consumers notice a log that was cut."""
    asked, turns = Asked(hub, request, None), RequestTurns()
    topics = []
    for topic in request.body.topics:
        rows = [
            _end_of_epoch(asked, topic.topic, row) async for row in turns.over(topic.partitions)
        ]
        topics.append({"topic": topic.topic, "partitions": rows})
    return {"topics": topics}


def _end_of_epoch(asked: Asked, name: str, row: Any) -> Body:
    answer: Body = {
        "error_code": ErrorCode.none,
        "partition": row.partition,
        "leader_epoch": UNKNOWN_EPOCH,
        "end_offset": _NO_OFFSET,
    }
    try:
        target = asked.get(name).partition(row.partition)
        check_leader(target.log, row.current_leader_epoch)
    except OnelogError as error:
        answer["error_code"] = code_of(error)
        return answer
    # The end of the log, not the one that readers see: after an election that one may be further
    # back than where a consumer is already, and nothing was cut.
    epoch, end = target.log.end_of_epoch(row.leader_epoch, target.log.end_offset)
    return answer | {"leader_epoch": epoch, "end_offset": end}
