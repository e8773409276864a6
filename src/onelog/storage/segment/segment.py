"""One segment: a `.log` file of batches with its index files, the active one or a sealed one.

Rules: the partition's lock guards every change; reading needs it only to open a file. Bytes beyond
`size_bytes` in the file mean nothing: they are reserved zeros. Before the map is touched, the
system is asked whether the bytes are in memory, except for the newest bytes of the active segment.
An index entry is checked against the log before it is used; a damaged index never leads to a wrong
answer.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from onelog.base import faults
from onelog.base.clock import Clock
from onelog.base.errors import CorruptBatch
from onelog.kernel import (
    HEADER_BYTES,
    BatchInfo,
    FileEnd,
    find_batch,
    fit_batches,
    scan_batches,
)
from onelog.storage.engine import Buffer, Lease, LogSettings
from onelog.storage.files import FileCache, MappedFile, ShortFile, remove
from onelog.storage.residence import Map
from onelog.storage.segment.checkpoint import UNKNOWN, SegmentRow
from onelog.storage.segment.cold import ColdBytes, ColdIndex, HeldIndex, Stretches
from onelog.storage.segment.files import WriteHandle
from onelog.storage.segment.index import POSITION_MASK, time_floor
from onelog.storage.segment.indexes import INDEX_EXTENSIONS, BadIndex, Indexes, NotHere
from onelog.storage.segment.pages import Edge, PageBudget
from onelog.storage.segment.space import reserve
from onelog.storage.segment.topics import Entries, derive_entries

LOG: Final = ".log"
EXTENSIONS: Final = (LOG, *INDEX_EXTENSIONS)
MAPPED_BYTES: Final = 8 * 1024 * 1024
"""How far behind a reader the log stays mapped."""
HOT_BYTES: Final = 16 * 1024 * 1024
"""The newest bytes of the active segment, which this process wrote: they count as in memory."""
_CAN_UNMAP: Final = hasattr(mmap, "MADV_DONTNEED")
_BASE_OFFSET: Final = struct.Struct(">q")


class SegmentGone(Exception):
    """The segment was dropped or replaced while it was being read: look again."""


class EngineShared:
    """The objects that the partitions of an engine share."""

    __slots__ = ("allocate", "cache", "clock", "pages", "rebuild_lock")

    def __init__(self, clock: Clock, cache: FileCache, pages: PageBudget) -> None:
        self.clock = clock
        self.cache = cache
        self.pages = pages
        self.allocate = True
        """Whether the file system can reserve space."""
        self.rebuild_lock = threading.Lock()
        """One index is rebuilt at a time; taken before a partition's lock, never inside it."""


class Segment(FileEnd):
    """A run of batches in one file."""

    __slots__ = (
        "_brought", "_edge", "_lock", "_log", "_mapped_from", "_noted_bytes", "_shared", "dead",
        "exists", "sealed", "stem",
    )  # fmt: skip

    indexes: Indexes
    settings: LogSettings
    writer: WriteHandle | None

    def __init__(
        self,
        stem: str,
        row: SegmentRow,
        shared: EngineShared,
        lock: threading.RLock,
        settings: LogSettings,
        *,
        sealed: bool = False,
    ) -> None:
        self.stem = stem
        self.base_offset = row.base_offset
        self.size_bytes = row.size_bytes
        self.last_batch_at = row.last_batch_at
        self.max_timestamp_ms = row.max_timestamp_ms
        self.created_ms = row.created_ms
        self.settings = settings
        self.sealed = sealed
        self.dead = False
        """Dropped or replaced: its path may belong to another file."""
        self.exists = row.size_bytes > 0
        self.reserved_bytes = row.size_bytes
        self.indexes = Indexes(stem, row, shared.cache)
        self.writer = None
        self._log: MappedFile | None = None
        self._mapped_from = 0
        self._edge = Edge(row.size_bytes)
        """Bytes above it were written by this process."""
        self._brought = Stretches(self)
        self._shared = shared
        self._noted(row.size_bytes)
        self._lock = lock

    # Writing. The partition's lock is held.

    def prepare(self) -> None:
        """Load the index into memory, so that batches can be noted."""
        indexes = self.indexes
        if indexes.live is not None:
            return
        if self.size_bytes == 0:
            indexes.start(self.settings)
        elif not indexes.resume(self.settings):
            log = self.buffer(self.size_bytes)
            indexes.discard()
            indexes.rebuild(log, self.size_bytes, self.base_offset, self.settings)

    def topic_entries(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None
    ) -> list[Entries]:
        """The entries for the topic index that belong to these batches."""
        if self.indexes.tail is None:
            return []
        if topics is None:
            return derive_entries(data, batches, self.base_offset)
        return [(topics, batches[0].base_offset - self.base_offset)] if topics else []

    def write(self, data: Buffer, size: int) -> None:
        """Write bytes behind the last batch; OSError leaves the segment as it was."""
        if not self.exists:
            self.create()
        self._put(self._handle(), data, size)

    def create(self) -> None:
        """Make the log's file, empty."""
        faults.hit("segment.create")
        self._handle().open(create=True)
        self.exists = True

    def _handle(self) -> WriteHandle:
        if self.writer is None:
            self.writer = WriteHandle(self.stem + LOG, self._shared.cache)
        return self.writer

    def _put(self, writer: WriteHandle, data: Buffer, size: int) -> None:
        file = writer.open()
        at = self.size_bytes
        try:
            if at + size > self.reserved_bytes:
                most = self.settings.segment_bytes
                self.reserved_bytes = reserve(
                    file.fd, self.reserved_bytes, at + size, most, self._shared
                )
            faults.hit("segment.write")
            writer.dirty = True
            file.write(data, at)
        except OSError:
            # Recovery must not find half of a failed append behind a later, shorter one.
            file.cut(at)
            self.reserved_bytes = at
            raise

    def note(self, batches: Sequence[BatchInfo], size: int, entries: list[Entries]) -> None:
        """Note batches that now lie behind the last one, `size` bytes in all."""
        indexes, at = self.indexes, self.size_bytes
        live, tail = indexes.live, indexes.tail
        assert live is not None
        highest = self.max_timestamp_ms
        for info in batches:
            highest = max(highest, info.max_timestamp_ms)
            position = at + info.position
            if position >= live.next_at and live.add(
                info.base_offset - self.base_offset,
                position,
                highest,
                self.settings.index_interval_bytes,
            ):
                indexes.save()
        if entries and tail is not None and tail.add(entries):
            indexes.save()
        self.max_timestamp_ms = highest
        self.last_batch_at = at + batches[-1].position
        self.size_bytes = at + size

    def plain_row(self) -> SegmentRow:
        """The segment as it is now, without its index files."""
        return SegmentRow(
            self.base_offset, self.size_bytes, self.last_batch_at,
            self.max_timestamp_ms, self.created_ms,
        )  # fmt: skip

    def row(self) -> SegmentRow:
        """The segment as it is now, its index files written (not synced)."""
        plain = self.plain_row()
        return self.indexes.describe(plain) if self.size_bytes else plain

    def shrink(self) -> None:
        """Give reserved space back to the file system."""
        if self.reserved_bytes > self.size_bytes and self.exists:
            assert self.writer is not None
            self.writer.open().cut(self.size_bytes)
            self.reserved_bytes = self.size_bytes

    def seal(self) -> None:
        """Close the segment for appends."""
        with contextlib.suppress(OSError):  # zeros behind the end do no harm
            self.shrink()
        self.indexes.settle(self.plain_row())
        self.sealed = True

    def sync(self) -> None:
        """Make the log and the index files durable; no lock is held."""
        writer = self.writer
        if writer is not None and writer.dirty:
            writer.open().sync()
        self.indexes.sync()
        self.note_synced(self.size_bytes)

    def note_synced(self, size: int) -> None:
        """The first `size` bytes of the log are on the disk; maintenance is held."""
        pages = self._shared.pages
        self._noted(pages.note(self.stem + LOG, self._noted_bytes, size, self._edge))

    def _noted(self, size: int) -> None:
        self._noted_bytes = size
        self.note_at = size + self._shared.pages.due_bytes

    @property
    def is_note_due(self) -> bool:
        """Whether `note_synced` may have to wait for the disk."""
        return self._shared.pages.is_due(self.size_bytes - self._noted_bytes)

    # Reading.

    def buffer(self, limit: int) -> Map:
        """The mapped log, at least `limit` bytes of it (more than 0)."""
        log = self._log
        found = None if log is None else log.peek(limit)
        if found is not None:
            return found
        with self._lock:
            if self.dead:
                raise SegmentGone
            log = self._log
            if log is None:
                log = self._log = MappedFile(self.stem + LOG, self._shared.cache)
            try:
                return log.open(limit)
            except (ShortFile, FileNotFoundError) as error:
                raise CorruptBatch(str(error)) from error

    def passed(self, buffer: mmap.mmap, position: int) -> None:
        """A reader has reached this position: unmap the pages that it has long passed.

        Why: pages that were read once would count as this process's memory for ever. A reader that
        comes back maps them again.
        """
        if position < self._mapped_from:
            self._mapped_from = position - position % mmap.PAGESIZE
        elif position - self._mapped_from >= MAPPED_BYTES and _CAN_UNMAP:
            stop = position - position % mmap.PAGESIZE
            buffer.madvise(mmap.MADV_DONTNEED, self._mapped_from, stop - self._mapped_from)
            self._mapped_from = stop

    def read(self, offset: int, limit: int, max_bytes: int, below: int) -> memoryview | None:
        """Whole batches below `limit` from the one that holds `offset` on; None: it is not here."""
        buffer = self.buffer(limit)
        position, here = self._locate(buffer, offset, limit, max_bytes)
        if position < 0:
            return None
        if here < limit:
            max_bytes = min(max_bytes, self._brought.room(buffer, position, here, limit))
        # Each head is looked at: damage that is read must stop the partition.
        stop = fit_batches(buffer, position, limit, max_bytes, below)
        self.passed(buffer, position)
        return memoryview(buffer)[position:stop]

    def locate(self, offset: int, limit: int) -> int:
        """Position of the first batch below `limit` whose last offset is >= `offset`, or -1."""
        return self._locate(self.buffer(limit), offset, limit, 0)[0]

    def _locate(self, buffer: Map, offset: int, limit: int, max_bytes: int) -> tuple[int, int]:
        """As `locate`, and the end of the bytes in memory (of `max_bytes` from there on)."""
        try:
            start, here = self._floor(buffer, offset, limit, max_bytes)
        except (NotHere, BadIndex) as missing:
            raise ColdIndex(self, missing.extension) from None
        return find_batch(buffer, start, limit, offset), here

    def bring(self, cold: ColdBytes | ColdIndex) -> Lease:
        """Have a stretch of the log, or an index file, in memory; waits for the disk."""
        if self.dead:
            raise SegmentGone
        if isinstance(cold, ColdBytes):
            return self._bring_log(cold)
        if not cold.extension or not self.indexes.bring(cold.extension):
            size = self.size_bytes
            with self._bring_log(ColdBytes(self, 0, size)):
                self._repair(self.buffer(size))
        return HeldIndex(self.indexes.held, cold.extension)

    @property
    def failed(self) -> bool:
        """Whether a page of a file could not be read through its map."""
        return self.indexes.failed or (self._log is not None and self._log.failed)

    def _bring_log(self, cold: ColdBytes) -> Lease:
        return self._brought.bring(self.stem + LOG, self.size_bytes, cold, lambda: self.dead)

    def _floor(self, buffer: Map, offset: int, limit: int, max_bytes: int) -> tuple[int, int]:
        """Position of the last indexed batch that starts at or before `offset`, and the end of the
        bytes in memory: at least to the next indexed batch, and `max_bytes` behind it if needed."""
        entries = self.indexes.offsets()
        rel = offset - self.base_offset
        at = bisect_right(entries, rel << 32 | POSITION_MASK) - 1 if rel >= 0 else -1
        position = entries[at] & POSITION_MASK if at >= 0 else 0
        if position + HEADER_BYTES > limit:
            raise BadIndex
        here = limit
        if self.sealed or position < self._edge.at or position < self.size_bytes - HOT_BYTES:
            following = entries[at + 1] & POSITION_MASK if at + 1 < len(entries) else limit
            needed = min(max(following, position) + HEADER_BYTES, limit)
            here = self._brought.here_to(buffer, position, needed, min(needed + max_bytes, limit))
        if at < 0:
            return 0, here
        if _BASE_OFFSET.unpack_from(buffer, position)[0] != self.base_offset + (entries[at] >> 32):
            raise BadIndex
        return position, here

    def offset_for_time(self, timestamp_ms: int, start: int, limit: int) -> int | None:
        """Base offset of the first batch from `start` on that reaches `timestamp_ms`."""
        if self.max_timestamp_ms < timestamp_ms or limit == 0:
            return None
        buffer = self.buffer(limit)
        try:
            floor = time_floor(self.indexes.offsets(), self.indexes.times(), timestamp_ms)
        except (NotHere, BadIndex) as missing:
            raise ColdIndex(self, missing.extension) from None
        first = self.locate(start, limit)
        position = limit if first < 0 else max(floor, first)
        view = memoryview(buffer)[:limit]
        while position < limit:
            stop = min(position + HEADER_BYTES, limit)
            self._brought.here_to(buffer, position, stop, stop)
            info = scan_batches(view, position, False, 1)[0]
            if info.max_timestamp_ms >= timestamp_ms:
                return info.base_offset
            position += info.size_bytes
        return None

    def offsets_of_topic(self, topic_hash: int, start: int, limit: int) -> list[int]:
        """At most `limit` offsets from `start` on under `topic_hash`, ascending."""
        if self.size_bytes == 0:
            return []
        rel_min = max(0, start - self.base_offset)
        try:
            found = self._topic_rels(topic_hash, rel_min, limit)
        except (NotHere, BadIndex) as missing:
            raise ColdIndex(self, missing.extension) from None
        return [self.base_offset + rel for rel in found]

    def _topic_rels(self, topic_hash: int, rel_min: int, limit: int) -> list[int]:
        indexes = self.indexes
        waiting: list[int] = []
        with self._lock:
            if self.dead:
                raise SegmentGone
            if not self.sealed:
                self.prepare()
            if indexes.tail is not None:
                size = indexes.tail.saved_bytes
                waiting = indexes.tail.lookup(topic_hash, rel_min, limit)
            elif indexes.live is not None or indexes.row.index_bytes == UNKNOWN:
                raise BadIndex
            else:
                size = indexes.row.topics_bytes
        if size == UNKNOWN:
            raise BadIndex
        found = indexes.saved_topics(size, topic_hash, rel_min, limit)
        return sorted({*found, *waiting})[:limit] if waiting else found

    def _repair(self, log: mmap.mmap) -> None:
        """Rebuild the index files of a segment from its log."""
        with self._shared.rebuild_lock:
            size = self.size_bytes
            fresh = Indexes(self.stem, self.indexes.row, self._shared.cache)
            fresh.rebuild(log, size, self.base_offset, self.settings)
            with self._lock:
                if self.dead:
                    raise SegmentGone
                if self.size_bytes != size:  # it grew meanwhile: rare enough to hold appends up
                    fresh.rebuild(
                        self.buffer(self.size_bytes), self.size_bytes, self.base_offset,
                        self.settings,
                    )  # fmt: skip
                self.indexes.discard()
                self.indexes = fresh
                if self.sealed:
                    self.seal()

    # The file as a whole.

    def move(self, stem: str) -> None:
        """Move the files to another name; index files first, the log last."""
        for extension in (*INDEX_EXTENSIONS, LOG):
            faults.hit("segment.swap")
            try:
                os.replace(self.stem + extension, stem + extension)  # noqa: PTH105
            except FileNotFoundError:
                remove(stem + extension)
        self.let_go()
        self.stem = self.indexes.stem = stem

    def close_writer(self) -> None:
        """Close the file for writing: nothing is added any more."""
        writer, self.writer = self.writer, None
        if writer is not None:
            self._shared.cache.forget(writer)

    def let_go(self) -> None:
        """Close every file that is open for it."""
        self.close_writer()
        if self._log is not None:
            self._shared.cache.forget(self._log)
            self._log = None
        self.indexes.let_go()

    def unlink(self) -> None:
        """Delete the files, the log first."""
        self.let_go()
        for extension in EXTENSIONS:
            remove(self.stem + extension)
