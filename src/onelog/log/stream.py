"""A stream: its configuration, handles to its partitions, and which topic a record of it has.

Rules:
- `partitions` are handles, for everybody. `local` are the same partitions for the log itself.
- A stream that captures one exact topic, and is the first to hold it, does not write the topic
  beside each record; its records have that topic (`fixed_topic`). Once it captures more, new
  records carry their topic. The old ones, up to the offsets in `fixed_until`, keep the fixed topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.base.ids import PartitionId
from onelog.kernel import topic_hash
from onelog.log.config import StreamConfig
from onelog.log.handle import PartitionHandle
from onelog.log.moves import Move, SourceKey, bring, cut_off, moves_by, settle
from onelog.log.partition import Partition
from onelog.storage.engine import PartitionKey

_SYNCS_AT_ONCE: Final = 256

Assigned = Sequence[tuple[int, ...]]
"""The nodes of each partition, in order."""


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a stream in the metadata store."""

    id: str
    config: StreamConfig
    created_ms: int
    fixed_topic: str | None = None
    fixed_until: tuple[int, ...] | None = None
    """Per partition, the offset from which records carry their topic; None: no record carries
    it."""
    grown: bool = False
    """Whether partitions were added, so that a topic's older records may lie in another one."""
    growth: tuple[tuple[int, int], ...] = ()
    """For each time that partitions were added: when, and how many there were before."""
    past_captures: tuple[str, ...] = ()
    """Filters that it captured once: their records may still be here."""
    moves: tuple[Move, ...] = ()
    """How it took over topics of other streams, in order."""
    assigned: tuple[tuple[int, ...], ...] = ()
    """The nodes on which its creator wants each partition, when it is made; where nothing is said,
    the controller chooses."""

    def births(self) -> list[tuple[int, int]]:
        """(since when, how many partitions) for each time that their number changed."""
        starts = (self.created_ms, *(when_ms for when_ms, _before in self.growth))
        counts = (*(before for _when_ms, before in self.growth), self.config.partitions)
        return list(zip(starts, counts, strict=True))


def begun_anew(record: StreamRecord, new_id: str) -> StreamRecord:
    """The record of a stream that has lost its data and begins again at offset 0."""
    # The offsets of `fixed_until` belong to data that is gone: all records carry their topic now.
    fixed = record.fixed_topic if record.fixed_until is None else None
    moves = tuple(msgspec.structs.replace(move, ends=()) for move in record.moves)
    return msgspec.structs.replace(
        record, id=new_id, moves=moves, fixed_topic=fixed, fixed_until=None, past_captures=()
    )


def changed_record(
    stream: Stream, config: StreamConfig, at_ms: int, assigned: Assigned = ()
) -> StreamRecord:
    """The record of a stream that gets another configuration, and new partitions on these nodes."""
    old = stream.record
    if assigned:
        unsaid = ((),) * (old.config.partitions - len(old.assigned))
        assigned = (*old.assigned, *unsaid, *assigned)
    growth = old.growth
    if config.partitions > old.config.partitions:
        growth = (*growth, (at_ms, old.config.partitions))
    fixed_until = old.fixed_until
    if fixed_until is None and old.fixed_topic not in (None, config.single_topic):
        fixed_until = tuple(int(partition.end_offset) for partition in stream.partitions)
    past = set(old.past_captures) | (set(old.config.captures) - set(config.captures))
    return msgspec.structs.replace(
        old,
        config=config,
        fixed_until=fixed_until,
        grown=old.grown or config.partitions > old.config.partitions,
        growth=growth,
        assigned=tuple(assigned) or old.assigned,
        past_captures=tuple(sorted(past - set(config.captures))),
    )


class Stream:
    """A stream that is open on this node."""

    __slots__ = ("is_hidden", "is_internal", "local", "partitions", "record")

    def __init__(self, record: StreamRecord, partitions: list[Partition]) -> None:
        self.record = record
        self.is_internal = record.config.internal
        """Whether it belongs to the broker itself: its name says so, and never changes."""
        self.is_hidden = record.config.hidden
        """Whether it is internal and no topic lives there; that never changes, either."""
        self.local = partitions
        """The partitions that lie on this node: all of them."""
        self.partitions: Sequence[PartitionHandle] = partitions

    @property
    def config(self) -> StreamConfig:
        """The configuration in force."""
        return self.record.config

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.record.config.name

    @property
    def tags_topics(self) -> bool:
        """Whether records written now carry their topic."""
        return self.record.fixed_topic is None or self.record.fixed_until is not None

    @property
    def record_count(self) -> int:
        """Offsets in use that are no markers. Compaction leaves gaps, which are counted too."""
        return sum(
            partition.end_offset - partition.start_offset - partition.producers.markers.count
            for partition in self.local
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of batches that it holds."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has ever written to it, as far as is known."""
        return all(row.stopped is None and not row.end_offset for row in self.partitions)

    def add_partitions(self, fresh: Iterable[Partition]) -> None:
        """Add partitions, all at once: a topic's partition depends on their number."""
        self.local += fresh

    async def make_durable(self) -> None:
        """Sync what is not durable: all visible records of a stream with `fsync` are durable (ADR
        2)."""
        unsynced = [
            row
            for row in self.local
            if row.stopped is None and row.log.durable_offset < row.end_offset
        ]
        for at in range(0, len(unsynced), _SYNCS_AT_ONCE):
            await asyncio.gather(*(row.flush() for row in unsynced[at : at + _SYNCS_AT_ONCE]))

    def key(self, partition: PartitionId) -> PartitionKey:
        """The storage key of one of its partitions."""
        return PartitionKey(self.record.id, partition)

    def partition(self, number: int) -> PartitionHandle:
        """A partition by number; InvalidRequest when there is none."""
        if not 0 <= number < len(self.partitions):
            raise InvalidRequest(
                f"stream {self.name} has partitions 0 to {len(self.partitions) - 1}, not {number}"
            )
        return self.partitions[number]

    def partition_of(self, topic: bytes) -> PartitionHandle:
        """The partition of a topic whose producer chose none."""
        return self.partitions[topic_hash(topic) % len(self.partitions)]

    def fixed_topic_at(self, partition: int, offset: int) -> str | None:
        """The topic of records at `offset` that do not carry it; None: they carry it."""
        until = self.record.fixed_until
        if until is None or (partition < len(until) and offset < until[partition]):
            return self.record.fixed_topic
        return None


async def settle_records(
    streams: Sequence[Stream], near: Callable[[StreamConfig], list[Stream]]
) -> list[StreamRecord]:
    """Let streams that were just opened remember no offsets beyond their ends. Returns what
    changed.

    `near` names the streams that may have held topics of a new one.
    """
    ends = {
        (stream.record.id, int(partition.id)): int(partition.end_offset)
        for stream in streams
        for partition in stream.partitions
        if partition.stopped is None
    }
    changed = []
    for stream in streams:
        if stream.is_untouched:
            await bring(None, stream.config, near(stream.config))
        record = _settled(stream, ends, near)
        if record != stream.record:
            stream.record = record
            changed.append(record)
    return changed


def _settled(
    stream: Stream,
    ends: Mapping[SourceKey, int],
    near: Callable[[StreamConfig], list[Stream]],
) -> StreamRecord:
    record, until = stream.record, stream.record.fixed_until
    record = msgspec.structs.replace(
        record,
        moves=settle(record.moves, ends, record.id),
        fixed_until=None if until is None else cut_off(until, ends, record.id),
    )
    if not stream.is_untouched:
        return record
    older = [row for row in near(record.config) if row.record.created_ms < record.created_ms]
    move = moves_by(stream, None, record.config, older).get(stream.name)
    if move is None:
        return record
    return msgspec.structs.replace(record, moves=(move,), fixed_topic=None)
