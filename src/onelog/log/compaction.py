"""Compaction: rewrite the sealed segments of one partition so that each key keeps its last record.

Rules:
- Never the active segment, never at or past `upto` (the last stable offset).
- A copy compacts what it holds by itself, up to where its leader lets it: there everybody who needs
  a record has seen to it. That is below the high watermark, so that no cut reaches it.
- First the keys of what was appended since the last cleaning are mapped, at most `keys_max`; then
  the log is rewritten up to where the map reaches. Records beyond that are copied as they are; the
  next pass cleans them.
- Segments are rewritten in groups, oldest first, each by one atomic swap of the engine. So a crash
  never leaves a tombstone gone while an older record of its key is still there.
- Small neighbouring segments become one.
- It blocks, so it runs in a thread (`log/rewriting.py`). A large log is judged in a process of its
  own (`log/judge_process.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

import msgspec

from onelog.base.ids import Offset
from onelog.log.cleaning import LastBatch, last_batches
from onelog.log.config import LONG_MAX, Compaction
from onelog.log.judging import FindJudge, Judge, JudgeJob, ThreadJudge
from onelog.log.partition import Partition
from onelog.log.producers import AbortedTxn
from onelog.log.progress import Told
from onelog.log.rewriting import Pace, Rewriting, advanced, neighbours, read_slice
from onelog.storage.engine import PartitionLog, SegmentInfo

KEYS_MAX: Final = 1_000_000
"""Keys that one pass maps: about 150 bytes of memory each."""
STATE_NAME: Final = "compaction"

LeaveTurn = Callable[[], AbstractContextManager[None]]
"""Files are swapped inside of the block that it makes."""


class CompactionResult(NamedTuple):
    """What a pass did."""

    bytes_before: int
    bytes_after: int
    records_dropped: int
    cleaned_upto: Offset
    complete: bool
    """False: the map was full before the end, and the next pass goes on from there."""


class Scope(NamedTuple):
    """What a pass needs of the partition, taken on the loop when the pass begins."""

    upto: Offset
    aborted: Sequence[AbortedTxn]
    producers_last: Mapping[int, LastBatch]
    leaving: LeaveTurn = nullcontext


def compactable(partition: Partition) -> Offset:
    """Up to where this replica may be compacted now."""
    progress, upto = partition.progress, partition.last_stable_offset
    return min(upto, progress.compact_bound) if isinstance(progress, Told) else upto


def scope_of(partition: Partition) -> Scope:
    """The scope of a pass over this partition now."""
    upto = compactable(partition)
    aborted = partition.aborted_between(partition.start_offset, upto)
    return Scope(upto, aborted, last_batches(partition.producers), partition.shared.hold.leaving)


class _CleaningProgress(msgspec.Struct, array_like=True):
    cleaned_upto: int = 0
    next_horizon_ms: int = -1
    complete: bool = True


_decoder: Final = msgspec.msgpack.Decoder(_CleaningProgress)
"""Made once, here: msgspec breaks when threads use a type for the first time together."""


def cleanable(
    segments: Sequence[SegmentInfo], upto: int, young_ms: int = LONG_MAX
) -> list[SegmentInfo]:
    """The segments that compaction may touch: none with a record newer than `young_ms`."""
    found = []
    for row in segments[:-1]:
        if not row.sealed or row.end_offset > upto or row.max_timestamp_ms > young_ms:
            break
        found.append(row)
    return found


def _young_ms(now_ms: int, config: Compaction) -> int:
    # Without a lag, a record with a time in the future is cleaned like any other.
    return now_ms - config.min_lag_ms if config.min_lag_ms else LONG_MAX


def dirty_ratio(log: PartitionLog, upto: int) -> float:
    """Share of the cleanable bytes that were appended since the last cleaning."""
    return _dirty_ratio(cleanable(log.segments(), upto), _load(log))


def compaction_due(log: PartitionLog, *, upto: int, now_ms: int, config: Compaction) -> bool:
    """Whether a pass has enough to do: dirty bytes, an unfinished pass, or an overdue record."""
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


def _dirty_ratio(sealed: Sequence[SegmentInfo], progress: _CleaningProgress) -> float:
    total = sum(row.size_bytes for row in sealed)
    dirty = sum(row.size_bytes for row in sealed if row.end_offset > progress.cleaned_upto)
    return dirty / total if total else 0.0


def _in_thread(job: JudgeJob, pace: Pace, _size_bytes: int) -> Judge:
    return ThreadJudge(job, pace)


def compact(
    log: PartitionLog,
    scope: Scope,
    *,
    now_ms: int,
    config: Compaction,
    segment_bytes: int,
    pace: Pace,
    keys_max: int = KEYS_MAX,
    find_judge: FindJudge = _in_thread,
) -> CompactionResult:
    """Clean one partition's sealed segments below `scope.upto`. Blocks: run it in a thread.

    Raises CorruptBatch when stored bytes are damaged, OffsetOutOfRange or Conflict when the log was
    trimmed meanwhile, Closed when `pace` was asked to stop. In each case the segments at hand stay
    as they were.
    """
    progress = _load(log)
    sealed = cleanable(log.segments(), scope.upto, _young_ms(now_ms, config))
    if not sealed:
        return CompactionResult(0, 0, 0, Offset(progress.cleaned_upto), complete=True)
    job = JudgeJob(scope.aborted, scope.producers_last, now_ms, config.tombstone_ms, keys_max)
    size_bytes = sum(row.size_bytes for row in sealed)
    judge = find_judge(job, pace, size_bytes)
    try:
        return _judged(log, judge, sealed, progress.cleaned_upto, segment_bytes, scope.leaving)
    finally:
        judge.close()


def _judged(
    log: PartitionLog,
    judge: Judge,
    sealed: Sequence[SegmentInfo],
    cleaned_upto: int,
    segment_bytes: int,
    leaving: LeaveTurn,
) -> CompactionResult:
    end = sealed[-1].end_offset
    covered = judge.covered = _map_keys(log, cleaned_upto, end, judge)
    before = after = 0
    for group in neighbours([row for row in sealed if row.base_offset < covered], segment_bytes):
        rewriting = Rewriting.write(log, group, judge.clean, judge.read_bytes)
        with leaving():
            rewriting.commit()
        before += rewriting.bytes_before
        after += rewriting.bytes_after
    progress = _CleaningProgress(covered, judge.next_horizon_ms, covered >= end)
    log.save_state(STATE_NAME, covered, msgspec.msgpack.encode(progress))
    return CompactionResult(before, after, judge.records_dropped, covered, progress.complete)


def _load(log: PartitionLog) -> _CleaningProgress:
    saved = log.load_state(STATE_NAME)
    return _CleaningProgress() if saved is None else _decoder.decode(saved[1])


def _map_keys(log: PartitionLog, start: int, end: Offset, judge: Judge) -> Offset:
    """Map keys from `start` on. Returns the offset up to which every key is known."""
    offset = max(start, log.start_offset)
    while offset < end and len(data := read_slice(log, offset, judge.read_bytes, end)):
        mapped = judge.map(data)
        if mapped.full:
            return Offset(mapped.next_offset)
        offset = advanced(offset, mapped.next_offset)
    return end
