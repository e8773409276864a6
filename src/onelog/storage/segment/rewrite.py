"""Replaces sealed segments by fewer, smaller ones, for compaction and thinning.

Rules: the new segments grow beside the old ones as `.cleaned` files. The checkpoint that names
them is the moment that counts: before it a crash leaves the old batches, after it the new ones.
Small segments are merged up to the segment size. Offsets never move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onelog.base import faults
from onelog.base.errors import Closed, InvalidRequest, OnelogError, PartitionStopped
from onelog.kernel import BatchInfo
from onelog.storage.engine import Buffer
from onelog.storage.segment.checkpoint import Row
from onelog.storage.segment.files import sync_directory
from onelog.storage.segment.index import REL_MAX
from onelog.storage.segment.recovery import CLEANED, stem_of
from onelog.storage.segment.segment import Segment

if TYPE_CHECKING:
    from onelog.storage.segment.partition import SegmentLog


class SegmentRewrite:
    """One replacement of the segments in [start, end)."""

    __slots__ = ("_done", "_end", "_log", "_next", "_old", "_start", "_written")

    def __init__(self, log: SegmentLog, old: list[Segment], start: int, end: int) -> None:
        self._log = log
        self._old = old
        self._start = start
        self._end = end
        self._next = start
        self._written: list[Segment] = []
        self._done = False

    def append(self, data: Buffer, batches: Sequence[BatchInfo]) -> None:
        """Add batches, offsets ascending, all inside [start, end)."""
        if self._done:
            raise Closed("the rewrite was committed or aborted")
        if not batches:
            return
        first, last = batches[0].base_offset, batches[-1].last_offset
        if first < self._next or last >= self._end:
            raise InvalidRequest(
                f"offsets {first} to {last} are not inside [{self._next}, {self._end})"
            )
        size = len(data)
        segment = self._segment(first, last, size)
        try:
            segment.prepare()
            entries = segment.topic_entries(data, batches, None)
            segment.write(data, size)
        except OSError as error:
            self.abort()
            self._log.storage_failed("rewrite", error)
        segment.note(batches, size, entries)
        self._next = last + 1

    def _segment(self, first: int, last: int, size: int) -> Segment:
        """The segment that takes the next batches."""
        settings = self._log.settings
        if self._written:
            current = self._written[-1]
            full = current.size_bytes + size > settings.segment_bytes
            if not full and last - current.base_offset <= REL_MAX:
                return current
            current.seal()
        base = first if self._written else self._start
        if last - base > REL_MAX:
            base = first
        created_ms = min(segment.created_ms for segment in self._old)
        stem = stem_of(self._log.directory, base) + CLEANED
        row = Row(base, 0, created_ms=created_ms)
        segment = Segment(stem, row, self._log.shared, self._log.lock, settings)
        segment.dead = True  # no reader sees it before it is in the list of segments
        self._written.append(segment)
        return segment

    def commit(self) -> None:
        """Make the replacement durable and visible."""
        if self._done:
            raise Closed("the rewrite was committed or aborted")
        log = self._log
        try:
            if self._written:
                self._written[-1].seal()
            for segment in self._written:
                segment.sync()
                segment.close_writer()
            faults.hit("segment.swap")
            sync_directory(log.directory)
        except OSError as error:
            self.abort()
            log.storage_failed("rewrite", error)
        with log.maintenance:
            try:
                log.swap(self._old, self._written)
            except PartitionStopped:
                self._done = True  # the files stay: recovery knows whether they are needed
                raise
            except OnelogError:
                self.abort()
                raise
            self._done = True

    def abort(self) -> None:
        """Throw the replacement away."""
        if not self._done:
            self._done = True
            for segment in self._written:
                segment.unlink()
            self._written = []
