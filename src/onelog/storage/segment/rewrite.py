"""Replaces sealed segments by fewer, smaller ones, for compaction and thinning; and puts segments
in front of the first one, for batches that come back from an object store.

Rules: the new segments grow beside the old ones as `.cleaned` files. The checkpoint that names them
decides: a crash before it leaves the old batches, a crash after it the new ones. Small segments are
merged up to the segment size. Offsets never move.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from onelog.base import faults
from onelog.base.errors import Closed, Conflict, InvalidRequest, OnelogError, PartitionStopped
from onelog.base.ids import Offset
from onelog.kernel import REL_MAX, BatchInfo
from onelog.storage.engine import Buffer
from onelog.storage.files import sync_directory
from onelog.storage.segment.checkpoint import SegmentRow
from onelog.storage.segment.durability import PartitionSync
from onelog.storage.segment.held import PartitionState, bury, drop
from onelog.storage.segment.recovery import CLEANED, stem_of
from onelog.storage.segment.segment import Segment


def begin_rewrite(
    held: PartitionState, durability: PartitionSync, start: int, end: int
) -> SegmentRewrite:
    """Begin to replace the sealed batches in [start, end); both are segment boundaries."""
    with held.maintenance:
        with held.lock:
            held.check_running()
            bases, segments = held.segments
            first, after = bisect_left(bases, start), bisect_left(bases, end)
            if not first < after < len(bases) or bases[first] != start or bases[after] != end:
                raise InvalidRequest(
                    f"[{start}, {end}) of {held.directory} is not a run of sealed segments"
                )
        if durability.saved.swap:  # a crash must not take the new files for those of the last swap
            durability.save(durability.next())
        return SegmentRewrite(held, durability, segments[first:after], start, end)


def begin_prepend(
    held: PartitionState, durability: PartitionSync, start: int, log_start: int, created_ms: int
) -> SegmentRewrite:
    """Begin to put batches from `start` on in front of the first segment.

    The log then begins at `log_start`, which is not below `start`.
    """
    with held.maintenance:
        with held.lock:
            held.check_running()
            first = held.segments[0][0]
            if not 0 <= start <= log_start <= held.start or start > first:
                raise InvalidRequest(
                    f"[{start}, {first}) of {held.directory} does not lie before its first segment"
                )
        if durability.saved.swap:
            durability.save(durability.next())
        return SegmentRewrite(
            held, durability, [], start, first, log_start=log_start, created_ms=created_ms
        )


class SegmentRewrite:
    """One replacement of the segments in [start, end), of which there may be none yet."""

    __slots__ = (
        "_created_ms", "_done", "_durability", "_end", "_held", "_log_start", "_next", "_old",
        "_start", "_written",
    )  # fmt: skip

    def __init__(
        self,
        held: PartitionState,
        durability: PartitionSync,
        old: list[Segment],
        start: int,
        end: int,
        *,
        log_start: int | None = None,
        created_ms: int = -1,
    ) -> None:
        self._held = held
        self._log_start = log_start
        """Where the log begins afterwards; None: where it does."""
        self._created_ms = min((segment.created_ms for segment in old), default=created_ms)
        self._durability = durability
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
            self._held.full_or_error("rewrite", error)
        segment.note(batches, size, entries)
        self._next = last + 1

    def _segment(self, first: int, last: int, size: int) -> Segment:
        """The segment for the next batches."""
        settings = self._held.settings
        if self._written:
            current = self._written[-1]
            full = current.size_bytes + size > settings.segment_bytes
            if not full and last - current.base_offset <= REL_MAX:
                return current
            current.seal()
        base = first if self._written else self._start
        if last - base > REL_MAX:
            base = first
        stem = stem_of(self._held.directory, base) + CLEANED
        row = SegmentRow(base, 0, created_ms=self._created_ms)
        segment = Segment(stem, row, self._held.shared, self._held.lock, settings)
        segment.dead = True  # no reader sees it before it is in the list of segments
        self._written.append(segment)
        return segment

    def commit(self) -> None:
        """Make the replacement durable and visible."""
        if self._done:
            raise Closed("the rewrite was committed or aborted")
        held = self._held
        try:
            if self._written:
                self._written[-1].seal()
            for segment in self._written:
                segment.sync()
                segment.close_writer()
            faults.hit("segment.swap")
            sync_directory(held.directory)
        except OSError as error:
            self.abort()
            held.full_or_error("rewrite", error)
        with held.maintenance:
            try:
                self._check_front()
                self._swap(self._old, self._written)
            except PartitionStopped:
                self._done = True  # the files stay: recovery knows whether they are needed
                raise
            except OnelogError:
                self.abort()
                raise
            self._done = True

    def _check_front(self) -> None:
        """Batches that were to lie before the first segment still do. Maintenance is held."""
        held = self._held
        if self._log_start is not None and held.segments[0][0] != self._end:
            raise Conflict(f"the first segments of {held.directory} were dropped meanwhile")

    def _swap(self, old: list[Segment], new: list[Segment]) -> None:
        """Put `new` in place of `old`. Maintenance is held."""
        held, durability = self._held, self._durability
        held.check_running()
        if any(segment.dead for segment in old):
            raise Conflict(f"segments of {held.directory} were dropped during the rewrite")
        if old and old[-1].base_offset >= durability.saved.tail.base_offset:
            durability.sync_and_save()
        gone = {segment.base_offset for segment in old}
        rows = [row for row in durability.saved.sealed if row.base_offset not in gone]
        rows += [segment.row() for segment in new]
        rows.sort(key=lambda row: row.base_offset)
        bases = tuple(segment.base_offset for segment in new)
        try:
            faults.hit("segment.swap")
        except OSError as error:
            held.full_or_error("rewrite", error)
        start = durability.saved.start_offset if self._log_start is None else self._log_start
        durability.save(durability.next(start_offset=start, sealed=tuple(rows), swap=bases))
        try:
            with held.lock:
                held.start = Offset(start)
                drop(old)
                for segment in new:
                    segment.move(stem_of(held.directory, segment.base_offset))
                    segment.dead = False
                kept = [*(row for row in held.segments[1] if not row.dead), *new]
                held.publish(sorted(kept, key=lambda segment: segment.base_offset))
            for segment in old:
                segment.let_go()
            bury(segment for segment in old if segment.base_offset not in bases)
            sync_directory(held.directory)
        except OSError as error:
            held.give_up("rewrite", error)
        durability.save(durability.next(), required=False)

    def abort(self) -> None:
        """Throw the replacement away."""
        if not self._done:
            self._done = True
            for segment in self._written:
                segment.unlink()
            self._written = []
