"""The index files of one segment: loaded when needed, checked, and rebuilt from the log.

Rules: the active segment's entries live in memory (`live`); a sealed one's are mapped. Files count
only if they match the segment's row (bytes and CRC). New files are new inodes, so that existing
maps do not change. The callers hold the partition's lock where a method says so.
"""

from __future__ import annotations

import contextlib
import mmap
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from onelog.base.errors import CorruptBatch
from onelog.kernel import check_topic_chunks, crc32c, lookup_topic_chunks
from onelog.storage.engine import LogSettings
from onelog.storage.segment.checkpoint import UNKNOWN, SegmentRow
from onelog.storage.segment.files import FileCache, MappedFile, ShortFile, remove, sync_file
from onelog.storage.segment.index import INDEX, TIMES, SparseIndex
from onelog.storage.segment.residence import Map
from onelog.storage.segment.scan import Walk
from onelog.storage.segment.topics import TOPICS, TopicTail, derive_entries

INDEX_EXTENSIONS = (INDEX, TIMES, TOPICS)


class BadIndex(Exception):
    """An index file is missing or does not match the row."""


class Indexes:
    """Offset, time and topic index of a segment."""

    __slots__ = ("_cache", "_offsets_map", "_topics_map", "live", "row", "stem", "tail")

    def __init__(self, stem: str, row: SegmentRow, cache: FileCache) -> None:
        self.stem = stem
        self.row = row
        """The expected sizes and CRCs of the files; `index_bytes` is UNKNOWN if none can be
        trusted."""
        self.live: SparseIndex | None = None
        self.tail: TopicTail | None = None
        self._cache = cache
        self._offsets_map: MappedFile | None = None
        self._topics_map: MappedFile | None = None

    # The active segment. The partition's lock is held.

    def start(self, settings: LogSettings) -> None:
        """Begin with no entries."""
        self.live = SparseIndex()
        self.tail = TopicTail() if settings.topic_index else None

    def resume(self, settings: LogSettings) -> bool:
        """Load a segment's entries into memory to add to them. Returns False if they cannot be
        used."""
        row = self.row
        if row.index_bytes == UNKNOWN or (settings.topic_index and row.topics_bytes == UNKNOWN):
            return False
        try:
            live = SparseIndex()
            live.restore(
                self._read(INDEX, row.index_bytes, row.index_crc),
                self._read(TIMES, row.times_bytes, row.times_crc),
                settings.index_interval_bytes,
            )
            if settings.topic_index:
                self._check_topics()
        except BadIndex:
            return False
        self.live = live
        self.tail = TopicTail(row.topics_bytes) if settings.topic_index else None
        return True

    def save(self) -> bool:
        """Write the entries to the files; if the disk is full or fails, they stay in memory."""
        assert self.live is not None
        try:
            self.live.save(self.stem)
            if self.tail is not None:
                self.tail.save(self.stem)
        except OSError:
            return False
        return True

    def describe(self, plain: SegmentRow) -> SegmentRow:
        """`plain` with the sizes and CRCs of the files, after they were written."""
        if self.live is None:
            return self.row
        if not self.save():
            return plain
        index_bytes, index_crc, times_bytes, times_crc = self.live.sums()
        return msgspec.structs.replace(
            plain,
            index_bytes=index_bytes,
            index_crc=index_crc,
            times_bytes=times_bytes,
            times_crc=times_crc,
            topics_bytes=UNKNOWN if self.tail is None else self.tail.saved_bytes,
        )

    def settle(self, plain: SegmentRow) -> None:
        """Write everything to the files and use maps: nothing is added any more."""
        self.row = self.describe(plain)
        if self.row.index_bytes != UNKNOWN:
            self.live = None
            self.tail = None

    def rebuild(self, log: mmap.mmap | None, size: int, base: int, settings: LogSettings) -> None:
        """Make the entries again, in memory, from the segment's batches."""
        live, tail = SparseIndex(), TopicTail() if settings.topic_index else None
        highest = -1
        walk = Walk(log, 0, size, -1, check_crc=False)
        for window, batches, at in walk.pieces():
            for info in batches:
                highest = max(highest, info.max_timestamp_ms)
                if at + info.position >= live.next_at:
                    live.add(
                        info.base_offset - base,
                        at + info.position,
                        highest,
                        settings.index_interval_bytes,
                    )
            if tail is not None:
                tail.add(derive_entries(window, batches, base))
        self.live, self.tail = live, tail

    # Reading. No lock is held.

    def offsets(self) -> Sequence[int]:
        """The offset entries, ascending."""
        live = self.live
        if live is not None:
            return live.offsets
        row = self.row
        if row.index_bytes == UNKNOWN:
            raise BadIndex
        if row.index_bytes == 0:
            return ()
        found = self._offsets_map
        if found is None:
            found = MappedFile(self.stem + INDEX, self._cache)
        mapped = found.peek(row.index_bytes)
        if mapped is None:
            mapped = _open(found, row.index_bytes)
            if crc32c(memoryview(mapped)[: row.index_bytes]) != row.index_crc:
                raise BadIndex
            self._offsets_map = found
        return memoryview(mapped)[: row.index_bytes].cast("Q")

    def times(self) -> Sequence[int]:
        """The time entries: timestamp, relative offset, timestamp, ..."""
        live = self.live
        if live is not None:
            return live.times
        row = self.row
        if row.index_bytes == UNKNOWN:
            raise BadIndex
        return array("q", self._read(TIMES, row.times_bytes, row.times_crc))

    def saved_topics(self, size: int, topic_hash: int, rel_min: int, limit: int) -> list[int]:
        """Relative offsets under `topic_hash` in the first `size` bytes of the topic file."""
        if size == 0:
            return []
        found = self._topics_map
        if found is None:
            found = self._check_topics()
        try:
            return lookup_topic_chunks(_open(found, size), size, topic_hash, rel_min, limit)
        except CorruptBatch as error:
            raise BadIndex from error

    def _check_topics(self) -> MappedFile:
        """The topic file's map, once every chunk of it was checked."""
        size = self.row.topics_bytes
        found = MappedFile(self.stem + TOPICS, self._cache)
        if size > 0 and check_topic_chunks(_open(found, size), size) != size:
            raise BadIndex
        self._topics_map = found
        return found

    def _read(self, extension: str, size: int, crc: int) -> bytes:
        try:
            with Path(self.stem + extension).open("rb") as file:
                data = file.read(size)
        except OSError as error:
            raise BadIndex from error
        if len(data) != size or crc32c(data) != crc:
            raise BadIndex
        return data

    # Files as a whole.

    def sync(self) -> None:
        """Make the files durable."""
        for extension in INDEX_EXTENSIONS:
            sync_file(self.stem + extension)

    def let_go(self) -> None:
        """Close every file."""
        for mapped in (self._offsets_map, self._topics_map):
            if mapped is not None:
                self._cache.forget(mapped)
        self._offsets_map = self._topics_map = None

    def discard(self) -> None:
        """Delete the files."""
        self.let_go()
        with contextlib.suppress(OSError):
            for extension in INDEX_EXTENSIONS:
                remove(self.stem + extension)


def _open(mapped: MappedFile, size: int) -> Map:
    try:
        return mapped.open(size)
    except (OSError, ShortFile) as error:
        raise BadIndex from error
