"""Compaction: rewrite the sealed segments of one partition so that each key keeps its last record.

Rules:
- Never the active segment, never at or past `upto` (the last stable offset).
- First the keys of what was appended since the last cleaning are mapped, at most `keys_max`; then
  the log is rewritten up to where the map reaches. What lies beyond is copied as it is and is the
  next pass's.
- Segments are rewritten in groups, oldest first, each by one atomic swap of the engine. So a crash
  never leaves a tombstone gone while an older record of its key is still there.
- Small neighbours become one segment.
- It blocks, so it runs in a thread (`log/rewriting.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from onelog.base.ids import Offset
from onelog.kernel import ATTR_CONTROL, BatchInfo
from onelog.log.cleaning import AbortedRanges, Cleaner, KeyMap, LastBatch, last_batches
from onelog.log.config import LONG_MAX, Compaction
from onelog.log.partition import Partition
from onelog.log.producers import AbortedTxn
from onelog.log.rewriting import Kept, Pace, Rewriting, neighbours, read_batches, whole
from onelog.record.batch import decode
from onelog.storage.engine import PartitionLog, SegmentInfo

KEYS_MAX: Final = 1_000_000
"""Keys that one pass maps: about 150 bytes of memory each."""
STATE_NAME: Final = "compaction"


class CompactionResult(NamedTuple):
    """What a pass did."""

    bytes_before: int
    bytes_after: int
    records_dropped: int
    cleaned_upto: Offset
    complete: bool
    """False when the map was full before the end: the next pass goes on."""


class Scope(NamedTuple):
    """What the partition knows at the moment a pass begins; taken on the loop."""

    upto: Offset
    aborted: Sequence[AbortedTxn]
    producers_last: Mapping[int, LastBatch]


def scope_of(partition: Partition) -> Scope:
    """The scope of a pass over this partition now."""
    upto = partition.last_stable_offset
    aborted = partition.aborted_between(partition.start_offset, upto)
    return Scope(upto, aborted, last_batches(partition.producers))


class _Progress(msgspec.Struct, array_like=True):
    cleaned_upto: int = 0
    next_horizon_ms: int = -1
    complete: bool = True


_decoder: Final = msgspec.msgpack.Decoder(_Progress)
"""Made here: threads that use a type for the first time together break msgspec."""


def cleanable(
    segments: Sequence[SegmentInfo], upto: int, young_ms: int = LONG_MAX
) -> list[SegmentInfo]:
    """The segments that compaction may touch: what has a record after `young_ms` has to wait."""
    found = []
    for row in segments[:-1]:
        if not row.sealed or row.end_offset > upto or row.max_timestamp_ms > young_ms:
            break
        found.append(row)
    return found


def _young_ms(now_ms: int, config: Compaction) -> int:
    # Without a lag a record from the future does not wait for its time either.
    return now_ms - config.min_lag_ms if config.min_lag_ms else LONG_MAX


def dirty_ratio(log: PartitionLog, upto: int) -> float:
    """Share of the cleanable bytes that were appended since the last cleaning."""
    return _dirty_ratio(cleanable(log.segments(), upto), _load(log))


def compaction_due(log: PartitionLog, *, upto: int, now_ms: int, config: Compaction) -> bool:
    """Whether a pass has enough to do: dirty bytes, an unfinished pass, or something overdue."""
    sealed = cleanable(log.segments(), upto, _young_ms(now_ms, config))
    if not sealed:
        return False
    progress = _load(log)
    ratio = _dirty_ratio(sealed, progress)
    if ratio > 0 and (ratio >= config.min_dirty_ratio or not progress.complete):
        return True
    dirty = (row for row in sealed if row.end_offset > progress.cleaned_upto)
    if any(now_ms - row.created_ms >= config.max_lag_ms for row in dirty):
        return True
    return 0 <= progress.next_horizon_ms <= now_ms


def _dirty_ratio(sealed: Sequence[SegmentInfo], progress: _Progress) -> float:
    total = sum(row.size_bytes for row in sealed)
    dirty = sum(row.size_bytes for row in sealed if row.end_offset > progress.cleaned_upto)
    return dirty / total if total else 0.0


def compact(
    log: PartitionLog,
    scope: Scope,
    *,
    now_ms: int,
    config: Compaction,
    segment_bytes: int,
    pace: Pace,
    keys_max: int = KEYS_MAX,
) -> CompactionResult:
    """Clean one partition's sealed segments below `scope.upto`. Blocks: run it in a thread.

    Raises CorruptBatch when stored bytes are damaged, OffsetOutOfRange or Conflict when the log was
    trimmed meanwhile, Closed when `pace` was told to stop; in each case the group at hand stays as
    it was.
    """
    progress = _load(log)
    sealed = cleanable(log.segments(), scope.upto, _young_ms(now_ms, config))
    if not sealed:
        return CompactionResult(0, 0, 0, Offset(progress.cleaned_upto), complete=True)
    ranges = AbortedRanges(scope.aborted)
    keys = KeyMap(keys_max)
    end = sealed[-1].end_offset
    covered = _map_keys(log, progress.cleaned_upto, end, keys, ranges, pace)
    cleaner = Cleaner(
        keys,
        ranges,
        scope.producers_last,
        now_ms=now_ms,
        tombstone_ms=config.tombstone_ms,
        pace=pace,
    )
    before = after = 0

    def clean(data: memoryview, info: BatchInfo) -> Kept:
        return cleaner.clean(data, info) if info.last_offset < covered else whole(data, info)

    for group in neighbours([row for row in sealed if row.base_offset < covered], segment_bytes):
        rewriting = Rewriting.write(log, group, clean, pace)
        rewriting.commit()
        before += rewriting.bytes_before
        after += rewriting.bytes_after
    progress = _Progress(covered, cleaner.next_horizon_ms, covered >= end)
    log.save_state(STATE_NAME, covered, msgspec.msgpack.encode(progress))
    return CompactionResult(before, after, cleaner.records_dropped, covered, progress.complete)


def _load(log: PartitionLog) -> _Progress:
    saved = log.load_state(STATE_NAME)
    return _Progress() if saved is None else _decoder.decode(saved[1])


def _map_keys(
    log: PartitionLog,
    start: int,
    end: Offset,
    keys: KeyMap,
    aborted: AbortedRanges,
    pace: Pace,
) -> Offset:
    """Fill the map from `start` on; the offset up to which it knows every key."""
    for data, infos in read_batches(log, max(start, log.start_offset), end):
        for info in infos:
            pace()
            if keys.full:
                return Offset(info.base_offset)
            if not info.attributes & ATTR_CONTROL and not aborted.holds(info):
                keys.note(decode(data, info, check_crc=False), pace)
    return end
