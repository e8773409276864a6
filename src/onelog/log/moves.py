"""Moves: when topics change their home, which partitions must be read before which (DESIGN §3).

Rules:
- A stream (the new home) takes over topics of another stream (the old home). A cursor reads the new
  home beyond the offset where it ended at that moment only after it has read the old home up to
  where the old home ended. So a topic that moved is read in order, by exact and wildcard cursors,
  opened before the move or after it.
- The same holds inside a stream whose number of partitions grew.
- A move is kept in the record of the new home, so that it holds over restarts. It is written with
  the change, and once more with its offsets when the change took effect. If the process ends in
  between, the next start lets everything that the old homes hold then be read first, including
  records from after the change was written; that is why the first row names every partition of the
  old homes. A new stream that nobody has written to yet is examined anew at each start instead.
- The index of a partition says whether the partition holds a topic. `bring` has the index at hand
  before a change. Where it is not at hand after all, the partition counts as holding the topic:
  cursors then read it first, for nothing.
- One moment is not covered: a stream grew, the new partitions are in use, and the process ends
  before that is written. A topic that went from one old partition to another may then lose its
  order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from onelog.base.errors import Conflict, OnelogError
from onelog.base.limits import MOVES_PER_STREAM_MAX
from onelog.base.topics import is_exact, overlap
from onelog.storage.engine import Cold

if TYPE_CHECKING:
    from onelog.base.ids import Offset
    from onelog.log.config import StreamConfig
    from onelog.log.handle import PartitionHandle
    from onelog.log.partition import Partition
    from onelog.log.stream import Stream

SourceKey = tuple[str, int]
"""A partition: the id of its stream, which is never used again, and its number."""


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One change of home, as the stream that gained topics sees it."""

    ends: tuple[int, ...]
    """Where its own partitions ended at that moment. Partitions that came later began empty."""
    after: tuple[tuple[SourceKey, int], ...]
    """Partitions of the old homes, and up to which offsets they are read first."""
    is_exact: bool = True
    """Whether these are the offsets of the moment of the change, and not of a moment before it."""

    def end_of(self, partition: int) -> int:
        """Up to where a partition may be read while the old homes are not read to their ends."""
        return self.ends[partition] if partition < len(self.ends) else 0


def moves_by(
    stream: Stream,
    old: StreamConfig | None,
    new: StreamConfig,
    streams: Sequence[Stream],
    *,
    is_plan: bool = False,
) -> dict[str, Move]:
    """The streams that gain topics by a change of a stream now, by name. `old` is None for a new
    stream.

    A plan also names partitions that are empty: records may come before it is carried out.
    """
    others = [other for other in streams if other.name != new.name]
    was, now = set(() if old is None else old.captures), set(new.captures)
    found: dict[str, Move] = {}
    rows = _ends(others, now - was, is_plan)
    if old is not None and new.partitions > old.partitions:
        rows += _all_ends(stream, stream.partitions, is_plan)
    if rows:
        found[new.name] = Move(_own_ends(stream), tuple(rows))
    for other in others:
        gained = {text for text in was - now if _touches(other.config.captures, text)}
        left = _ends([stream], gained, is_plan)
        if left:
            found[other.name] = Move(_own_ends(other), tuple(left))
    return found


def is_covered(found: Mapping[str, Move], kept: Mapping[str, Move]) -> bool:
    """Whether the kept moves name every partition that has to be read first."""
    return all(
        name in kept and {key for key, _end in move.after} <= {key for key, _ in kept[name].after}
        for name, move in found.items()
    )


def settle(
    moves: tuple[Move, ...], ends: Mapping[SourceKey, int], stream_id: str
) -> tuple[Move, ...]:
    """The moves of a stream after a start. `ends` has all partitions that could be opened.

    A move whose moment is not known waits for all records that there are now. No move waits for
    more than there is: where a log lost its end, the next records there came after the move.
    """
    return tuple(
        _cut(move if move.is_exact else _settled(move, ends, stream_id), ends, stream_id)
        for move in moves
    )


def _settled(move: Move, ends: Mapping[SourceKey, int], stream_id: str) -> Move:
    after = tuple((key, max(end, ends.get(key, 0))) for key, end in move.after)
    # Where a stream grew, its own old partitions come first, and none of them waits for itself.
    first = {number: end for (holder, number), end in after if holder == stream_id}
    own = tuple(max(end, first.get(number, end)) for number, end in enumerate(move.ends))
    return Move(own, after)


def _cut(move: Move, ends: Mapping[SourceKey, int], stream_id: str) -> Move:
    own = cut_off(move.ends, ends, stream_id)
    return Move(own, tuple((key, min(end, ends.get(key, end))) for key, end in move.after))


def cut_off(
    offsets: tuple[int, ...], ends: Mapping[SourceKey, int], stream_id: str
) -> tuple[int, ...]:
    """Remembered offsets of a stream's partitions, reduced to where the partitions end now."""
    return tuple(
        min(offset, ends.get((stream_id, number), offset)) for number, offset in enumerate(offsets)
    )


def with_move(
    moves: tuple[Move, ...], move: Move, partitions: Mapping[SourceKey, PartitionHandle], name: str
) -> tuple[Move, ...]:
    """The moves of a stream and one more, without moves whose old homes hold no records of them."""
    kept = [
        known
        for known in moves
        if any(key in partitions and partitions[key].start_offset < end for key, end in known.after)
    ]
    if len(kept) >= MOVES_PER_STREAM_MAX:
        raise Conflict(
            f"stream {name} took over topics {len(kept)} times, and their earlier streams still"
            " hold records of them: try again after retention has removed these records"
        )
    return (*kept, move)


def _touches(captures: Iterable[str], text: str) -> bool:
    return any(overlap(capture, text) for capture in captures)


def _own_ends(stream: Stream) -> tuple[int, ...]:
    return tuple(int(partition.end_offset) for partition in stream.partitions)


def _ends(
    streams: Iterable[Stream], filters: set[str], is_plan: bool
) -> list[tuple[SourceKey, int]]:
    """Where partitions end that may hold records of these filters."""
    found: list[tuple[SourceKey, int]] = []
    for stream in streams:
        captures = (*stream.config.captures, *stream.record.past_captures)
        shared = {text for text in filters if _touches(captures, text)}
        if shared:
            holding = stream.local if is_plan else _holding(stream, shared)
            found += _all_ends(stream, holding, is_plan)
    return found


def _holding(stream: Stream, filters: set[str]) -> list[Partition]:
    """The partitions of a stream that may hold records of filters which it captures."""
    # Records of a stream that was made for one topic are not in its index.
    if stream.record.fixed_topic is not None or not all(map(is_exact, filters)):
        return stream.local
    found: dict[Partition, None] = {}
    for partition, topic in _homes(stream, filters):
        if partition not in found and _may_hold(partition, topic):
            found[partition] = None
    return list(found)


def _homes(stream: Stream, filters: set[str]) -> Iterator[tuple[Partition, bytes]]:
    """Where exact topics may lie in a stream."""
    topics = [text.encode() for text in filters]
    for partition in stream.local:
        for topic in topics:
            if stream.record.grown or stream.partition_of(topic).id == partition.id:
                yield partition, topic


def _may_hold(partition: Partition, topic: bytes) -> bool:
    if partition.stopped is not None:
        return True
    try:
        offsets = _first_offset(partition, topic)
    except Cold:
        return True
    return offsets is None or bool(offsets)


def _first_offset(partition: Partition, topic: bytes) -> list[Offset] | None:
    return partition.topic_offsets_now(topic, partition.start_offset, partition.end_offset, 1)


async def bring(old: StreamConfig | None, new: StreamConfig, streams: Sequence[Stream]) -> None:
    """Have at hand what `moves_by` asks the indexes of streams, so that it need not guess."""
    changed = set(new.captures).symmetric_difference(() if old is None else old.captures)
    for stream in streams:
        captures = (*stream.config.captures, *stream.record.past_captures)
        shared = {text for text in changed if is_exact(text) and _touches(captures, text)}
        for partition, topic in _homes(stream, shared):
            if partition.stopped is None:
                with contextlib.suppress(OnelogError):  # `moves_by` does without
                    await partition.until_here(partial(_first_offset, partition, topic))


def _all_ends(
    stream: Stream, partitions: Iterable[PartitionHandle], is_plan: bool
) -> list[tuple[SourceKey, int]]:
    """Every one of these partitions that holds something, and where it ends."""
    return [
        ((stream.record.id, int(partition.id)), int(partition.end_offset))
        for partition in partitions
        if is_plan or partition.end_offset > partition.start_offset
    ]
