"""Reads a partition: whole batches, and the offsets of times and topics.

Rules: a reader works on the list of segments of the moment when it began; if one of them is dropped
or replaced meanwhile, it begins again. Views are slices of read-only maps and outlive every change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from onelog.base.errors import (
    Conflict,
    CorruptBatch,
    OffsetOutOfRange,
    PartitionCorrupt,
    PartitionStopped,
    StorageError,
    again,
)
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import bus_faults
from onelog.storage.engine import NO_LEASE, Cold, Lease, SegmentInfo
from onelog.storage.files import PASSING
from onelog.storage.segment.cold import ColdBytes, ColdIndex
from onelog.storage.segment.held import PartitionState
from onelog.storage.segment.segment import LOG, Segment, SegmentGone

_EMPTY = memoryview(b"")
_T = TypeVar("_T")


class LogReader:
    """Reads one partition, from any thread."""

    __slots__ = ("_held",)

    def __init__(self, held: PartitionState) -> None:
        self._held = held

    def _look(self, look: Callable[[list[int], list[Segment]], _T]) -> _T:
        """Run a lookup on the segments of this moment, and again if one was dropped meanwhile."""
        held = self._held
        while True:
            if held.closed or isinstance(held.stopped, PartitionCorrupt):
                held.check_running()
            try:
                found = look(*held.segments)
                if bus_faults() != held.bus_faults:
                    self._check_maps()
            except SegmentGone:
                continue
            except CorruptBatch as error:
                raise held.corrupt(error) from error
            except Cold:
                if held.unreadable is not None:
                    raise again(held.unreadable) from None
                raise
            except OSError as error:
                raise StorageError(f"reading {held.directory} failed: {error}") from error
            return found

    def _check_maps(self) -> None:
        """A page could not be read somewhere: if it was here, what was found is not believed."""
        held = self._held
        held.bus_faults = bus_faults()
        for segment in held.segments[1]:
            if segment.failed:
                raise CorruptBatch(
                    f"a page of {segment.stem} could not be read: the disk failed, or a file was"
                    " cut short"
                )

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset` (or the next), as one view."""
        held = self._held

        def look(bases: list[int], segments: list[Segment]) -> memoryview:
            first = bisect_right(bases, offset) - 1
            for number in range(first if first > 0 else 0, len(segments)):
                segment = segments[number]
                limit = segment.size_bytes
                found = segment.read(offset, limit, max_bytes, below) if limit else None
                if found is not None:
                    return found
            return _EMPTY

        end = held.end  # before the segments are read: they hold at least this
        if not held.start <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} of {held.directory}: the log holds {held.start} to {end}"
            )
        below = upto if upto < end else end
        if offset >= below:
            return _EMPTY
        return self._look(look)

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        held = self._held

        def look(_: list[int], segments: list[Segment]) -> Offset | None:
            for segment in segments:
                found = segment.offset_for_time(timestamp_ms, held.start, segment.size_bytes)
                if found is not None:
                    return Offset(found)
            return None

        return self._look(look)

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) whose record's topic has this hash."""
        held = self._held

        def look(bases: list[int], segments: list[Segment]) -> list[Offset]:
            found: list[int] = []
            for number in range(max(0, bisect_right(bases, first) - 1), len(segments)):
                if bases[number] >= below or len(found) >= limit:
                    break
                rows = segments[number].offsets_of_topic(topic_hash, first, limit - len(found))
                if number + 1 < len(bases):  # entries of truncated batches stay
                    del rows[bisect_left(rows, bases[number + 1]) :]
                found += rows
            return [Offset(offset) for offset in found[: bisect_left(found, below)]]

        if not held.settings.topic_index:
            return None
        first, below = max(start, held.start), min(upto, held.end)
        return self._look(look)

    def sealed_topics(self, base: int) -> bytes | None:
        """The chunks of a sealed segment's topic index; None: it has none that can be used."""
        bases, segments = self._held.segments
        at = bisect_left(bases, base)
        if at == len(bases) or bases[at] != base or not segments[at].sealed:
            return None
        return segments[at].indexes.sealed_topics()

    def sealed_log(self, base: int) -> Path:
        """The file of a sealed segment. Raises Conflict when it is gone."""
        bases, segments = self._held.segments
        at = bisect_left(bases, base)
        if at == len(bases) or bases[at] != base or not segments[at].sealed:
            raise Conflict(f"the segment at offset {base} left meanwhile")
        return Path(segments[at].stem + LOG)

    def bring(self, cold: Cold) -> Lease:
        """Read cold bytes from the disk."""
        assert isinstance(cold, ColdBytes | ColdIndex)
        held = self._held
        try:
            return cold.segment.bring(cold)
        except SegmentGone:
            return NO_LEASE  # the next read finds the new segments
        except CorruptBatch as error:
            raise held.corrupt(error) from error
        except OSError as error:
            if cold.segment.dead or held.closed:
                return NO_LEASE
            if error.errno in PASSING:
                raise StorageError(f"reading {held.directory} failed: {error}") from error
            reason = (
                f"reading {held.directory} failed ({error}); the partition is stopped: check the "
                "disk, then restart the broker"
            )
            with held.lock:
                held.unreadable = PartitionStopped(reason)
                stopped = held.stop(held.unreadable)
            raise stopped from error

    def segments(self) -> list[SegmentInfo]:
        """Segments in order; the last is the active one."""
        held = self._held
        with held.lock:
            bases, segments = held.segments
            ends = [*bases[1:], held.end]
            return [
                SegmentInfo(
                    Offset(segment.base_offset),
                    Offset(end),
                    segment.size_bytes,
                    TimestampMs(segment.max_timestamp_ms),
                    segment.sealed,
                    TimestampMs(segment.created_ms),
                )
                for segment, end in zip(segments, ends, strict=True)
            ]
