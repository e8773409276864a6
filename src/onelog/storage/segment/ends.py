"""The two ends of a partition: trim moves its start up, truncate cuts its end off.

Rules: every change writes the checkpoint first and deletes files after it. Recovery finishes a
change that was decided and not finished.
"""

from __future__ import annotations

from bisect import bisect_right

from onelog.base import faults
from onelog.base.errors import CorruptBatch, InvalidRequest, OffsetOutOfRange, StorageError
from onelog.base.ids import Offset
from onelog.storage.engine import in_place
from onelog.storage.files import sync_directory
from onelog.storage.segment import state, truncation
from onelog.storage.segment.durability import PartitionSync
from onelog.storage.segment.held import PartitionState, bury, drop
from onelog.storage.segment.reading import LogReader
from onelog.storage.segment.segment import Segment


class LogEnds:
    """Moves the ends of one partition."""

    __slots__ = ("_durability", "_held")

    def __init__(self, held: PartitionState, durability: PartitionSync) -> None:
        self._held = held
        self._durability = durability

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably, and drop segments that lie below it."""
        held, durability = self._held, self._durability
        with held.maintenance:
            with held.lock:
                held.check_running()
                if start > held.end:
                    raise OffsetOutOfRange(f"cannot trim to {start}: the log ends at {held.end}")
                if start <= held.start:
                    return
                if start == held.end:
                    durability.seal_active()
                bases, segments = held.segments
                keep = max(0, bisect_right(bases, start) - 1)
                gone = segments[:keep]
            saved = durability.saved
            if start > saved.end_offset or bases[keep] > saved.tail.base_offset:
                durability.sync_and_save()
            rows = tuple(row for row in durability.saved.sealed if row.base_offset >= bases[keep])
            durability.save(durability.next(start_offset=start, sealed=rows))
            with held.lock:
                held.start = start
                drop(gone)
                held.publish([kept for kept in held.segments[1] if not kept.dead])
            self._remove(gone)

    def _remove(self, gone: list[Segment]) -> None:
        """Delete files that the checkpoint no longer names; if that fails, the next open does
        it."""
        try:
            bury(gone)
        except OSError as error:
            raise StorageError(
                f"deleting old segments in {self._held.directory} failed: {error}"
            ) from error

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`, durably."""
        held = self._held
        with held.maintenance:
            with held.lock:
                held.check_running()
                if end >= held.end:
                    return
                if end < 0:
                    raise InvalidRequest(f"cannot truncate to {end}")
                held.frozen = True
            try:
                self._durability.sync_and_save()
                self._truncate(end)
            except CorruptBatch as error:
                raise held.corrupt(error) from error
            finally:
                held.frozen = False

    def _truncate(self, end: int) -> None:
        held, durability = self._held, self._durability
        segments = held.segments[1]
        cut = in_place(LogReader(held), lambda: truncation.find_cut(segments, end))
        start, new_end = held.start, max(cut.end_offset, min(held.start, end))
        if new_end <= start:  # no readable record is left
            cut, start = truncation.Cut([], None, 0, new_end), Offset(new_end)
        active = held.empty_segment(new_end)
        kept = list(cut.kept)
        rows = [segment.row() for segment in kept]
        if cut.split is not None:
            rows.append(truncation.shortened(cut.split, cut.size_bytes))
            kept.append(held.sealed_segment(rows[-1]))
        gone = [segment for segment in segments if segment not in cut.kept]
        intent = durability.next(
            start_offset=start,
            end_offset=new_end,
            sealed=tuple(rows),
            tail=active.row(),
            cut=True,
            high_watermark=min(durability.saved.high_watermark, new_end),
        )
        durability.save(intent)
        with held.lock:
            drop(gone)
            held.start, held.end, held.durable = start, new_end, new_end
            held.unsynced = []
            for segment in kept:
                if not segment.sealed:
                    segment.seal()
            held.publish([*kept, active])
        try:
            self._finish_cut(gone, cut.split, active)
        except (OSError, StorageError) as error:
            held.give_up("truncate", error)

    def _finish_cut(self, gone: list[Segment], split: Segment | None, active: Segment) -> None:
        """Bring the files to the state of the checkpoint. Nothing is appended before that."""
        held = self._held
        faults.hit("segment.truncate")
        if split is not None:
            split.let_go()  # its file is now that of the shorter segment
        bury(segment for segment in gone if segment is not split)
        if split is not None:
            active.create()  # if both checkpoints are lost, its name says where the log was cut
        state.drop_states(held.directory, held.end)
        sync_directory(held.directory)
        self._durability.save(self._durability.next())
