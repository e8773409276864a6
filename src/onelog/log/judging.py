"""A judge decides, for one pass of compaction, which records of a slice of the log stay.

Rules: first slices are mapped, from where the last pass ended. Then the log is cleaned from its
start up to where the map reaches (`covered`). A judge gets stored bytes and returns bytes to store.
It touches no file, so it may run in another process (`log/judge_process.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from onelog.kernel import ATTR_CONTROL, BatchInfo, scan_batches
from onelog.log.cleaning import AbortedRanges, Cleaner, KeyMap, LastBatch
from onelog.log.producers import AbortedTxn
from onelog.log.rewriting import READ_BYTES, Kept, Pace, Rewritten, batch_by_batch, whole
from onelog.record.batch import decode


class JudgeJob(msgspec.Struct, array_like=True, frozen=True):
    """What a judge needs to know before the first slice."""

    aborted: Sequence[AbortedTxn]
    producers_last: Mapping[int, LastBatch]
    now_ms: int
    tombstone_ms: int
    keys_max: int


class Mapped(NamedTuple):
    """How far a slice was mapped."""

    next_offset: int
    full: bool
    """There is no room for more keys: from `next_offset` on none is known."""


class Judge(Protocol):
    """Knows the last record of each key."""

    read_bytes: int
    """The best size of a slice."""
    covered: int
    """Records at or past this offset are not judged. Set between mapping and cleaning."""

    @property
    def records_dropped(self) -> int:
        """How many records were dropped."""
        ...

    @property
    def next_horizon_ms(self) -> int:
        """When the first tombstone or marker that stays may go; -1: none is waiting."""
        ...

    def map(self, data: memoryview) -> Mapped:
        """Note the keys of whole batches. Raises CorruptBatch."""
        ...

    def clean(self, data: memoryview) -> Rewritten:
        """What stays of whole batches. Raises CorruptBatch."""
        ...

    def close(self) -> None:
        """Release memory or processes."""
        ...


FindJudge = Callable[[JudgeJob, Pace, int], Judge]
"""Finds the judge for a pass over so many bytes."""


class ThreadJudge:
    """A judge in the calling thread. It calls `pace` at every batch."""

    __slots__ = ("_aborted", "_cleaner", "_keys", "_pace", "covered", "read_bytes")

    def __init__(self, job: JudgeJob, pace: Pace) -> None:
        self.read_bytes = READ_BYTES
        self.covered = 0
        self._pace = pace
        self._aborted = AbortedRanges(job.aborted)
        self._keys = KeyMap(job.keys_max)
        self._cleaner = Cleaner(
            self._keys,
            self._aborted,
            job.producers_last,
            now_ms=job.now_ms,
            tombstone_ms=job.tombstone_ms,
            pace=pace,
        )

    @property
    def records_dropped(self) -> int:
        """How many records were dropped."""
        return self._cleaner.records_dropped

    @property
    def next_horizon_ms(self) -> int:
        """When the first tombstone or marker that stays may go; -1: none is waiting."""
        return self._cleaner.next_horizon_ms

    def map(self, data: memoryview) -> Mapped:
        """Note the keys of whole batches. Raises CorruptBatch."""
        next_offset = -1
        for info in scan_batches(data):
            self._pace()
            if self._keys.full:
                return Mapped(info.base_offset, full=True)
            if not info.attributes & ATTR_CONTROL and not self._aborted.holds(info):
                self._keys.note(decode(data, info, check_crc=False), self._pace)
            next_offset = info.last_offset + 1
        return Mapped(next_offset, full=False)

    def clean(self, data: memoryview) -> Rewritten:
        """What stays of whole batches. Raises CorruptBatch."""
        return batch_by_batch(self._clean, self._pace)(data)

    def _clean(self, data: memoryview, info: BatchInfo) -> Kept:
        if info.last_offset < self.covered:
            return self._cleaner.clean(data, info)
        return whole(data, info)

    def close(self) -> None:
        """Nothing to release: it holds memory only."""
