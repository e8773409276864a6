"""The index files of one segment: loaded when needed, checked, and rebuilt from the log.

Rules: the active segment's entries live in memory (`live`); a sealed one's are mapped. Files count
only if they match the segment's row (bytes and CRC). New files are new inodes, so that existing
maps do not change. The callers hold the partition's lock where a method says so. A
reader touches a map only if the file is in memory, and never checks a large file: `NotHere` says
that somebody has to `bring` it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import CorruptBatch
from onelog.kernel import check_topic_chunks, crc32c, lookup_topic_chunks
from onelog.storage.engine import LogSettings
from onelog.storage.files import (
    PASSING,
    FileCache,
    MappedFile,
    OpenFile,
    ShortFile,
    remove,
    sync_file,
)
from onelog.storage.residence import Map
from onelog.storage.segment.checkpoint import UNKNOWN, SegmentRow
from onelog.storage.segment.index import INDEX, TIMES, SparseIndex
from onelog.storage.segment.scan import Walk
from onelog.storage.segment.topics import TOPICS, TopicTail, derive_entries

INDEX_EXTENSIONS = (INDEX, TIMES, TOPICS)


CHECKED_BYTES: Final = 1024 * 1024
"""A larger file is checked by who brings it, not by who reads."""
ASK_EVERY_S: Final = 1.0
"""How often it is asked whether a file is in memory: a topic index may have many pages."""
_PIECE_BYTES: Final = 1024 * 1024


class BadIndex(Exception):
    """An index file is missing or does not match the row: all of them are to be rebuilt."""

    extension = ""


class NotHere(Exception):
    """An index file is not in memory, or was not checked yet."""

    def __init__(self, extension: str) -> None:
        super().__init__(extension)
        self.extension = extension


class Indexes:
    """Offset, time and topic index of a segment."""

    __slots__ = ("_cache", "_maps", "held", "live", "row", "stem", "tail")

    def __init__(self, stem: str, row: SegmentRow, cache: FileCache) -> None:
        self.stem = stem
        self.row = row
        """The expected sizes and CRCs of the files; `index_bytes` is UNKNOWN if none can be
        trusted."""
        self.live: SparseIndex | None = None
        self.tail: TopicTail | None = None
        self._cache = cache
        self._maps: dict[str, MappedFile] = {}
        """Files that were checked, by extension."""
        self.held: list[str] = []
        """Files that were brought and count as being in memory, each as often as it is held."""

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
        except BadIndex:
            return False
        if settings.topic_index and row.topics_bytes > 0 and not self.bring(TOPICS):
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
        mapped = self._map(INDEX, row.index_bytes)
        return memoryview(mapped)[: row.index_bytes].cast("Q")

    def times(self) -> Sequence[int]:
        """The time entries: timestamp, relative offset, timestamp, ..."""
        live = self.live
        if live is not None:
            return live.times
        row = self.row
        if row.index_bytes == UNKNOWN:
            raise BadIndex
        if row.times_bytes == 0:
            return ()
        mapped = self._map(TIMES, row.times_bytes)
        return memoryview(mapped)[: row.times_bytes].cast("q")

    def saved_topics(self, size: int, topic_hash: int, rel_min: int, limit: int) -> list[int]:
        """Relative offsets under `topic_hash` in the first `size` bytes of the topic file."""
        if size == 0:
            return []
        try:
            return lookup_topic_chunks(self._map(TOPICS, size), size, topic_hash, rel_min, limit)
        except CorruptBatch as error:
            raise BadIndex from error

    def sealed_topics(self) -> bytes | None:
        """The chunks in the topic file of a sealed segment; None: there is none that is whole.

        Waits for the disk.
        """
        row = self.row
        if self.live is not None or UNKNOWN in (row.index_bytes, row.topics_bytes):
            return None
        if row.topics_bytes == 0:
            return b""
        try:
            with Path(self.stem + TOPICS).open("rb") as file:
                data = file.read(row.topics_bytes)
        except OSError:
            return None
        if len(data) != row.topics_bytes or check_topic_chunks(data, len(data)) != len(data):
            return None
        return data

    def _map(self, extension: str, size: int) -> Map:
        """A file's map, of which so many bytes are in memory and were checked; or NotHere."""
        known = self._maps.get(extension)
        if known is None:
            return self._take_up(extension, size, may_wait=False)
        mapped = _open(known, size)
        now = time.monotonic()
        if now >= known.ask_at:
            if extension not in self.held and mapped.here_to(0, size) < size:
                raise NotHere(extension)
            known.ask_at = now + ASK_EVERY_S
        return mapped

    def _take_up(self, extension: str, size: int, *, may_wait: bool) -> Map:
        """Check a file before it is used; NotHere where that takes long and it may not wait."""
        found = MappedFile(self.stem + extension, self._cache)
        mapped = _open(found, size)
        is_large = self._expected(extension) > CHECKED_BYTES
        if not may_wait and (is_large or mapped.here_to(0, size) < size):
            self._cache.forget(found)
            raise NotHere(extension)
        try:
            self._check(extension, mapped)
        except BadIndex:
            self._cache.forget(found)
            raise
        found.ask_at = time.monotonic() + ASK_EVERY_S
        self._maps[extension] = found
        return mapped

    def _expected(self, extension: str) -> int:
        """Bytes that a file must have, of which the row knows the CRC or that are whole chunks."""
        row = self.row
        sizes = {INDEX: row.index_bytes, TIMES: row.times_bytes, TOPICS: row.topics_bytes}
        return sizes[extension]

    def _check(self, extension: str, mapped: Map) -> None:
        """See that a file is what the row says of it. Of the active segment, what it began with."""
        row = self.row
        if extension == TOPICS:
            size = row.topics_bytes
            good = size <= 0 or check_topic_chunks(mapped, size) == size
        elif extension == INDEX:
            good = crc32c(memoryview(mapped)[: row.index_bytes]) == row.index_crc
        else:
            good = crc32c(memoryview(mapped)[: row.times_bytes]) == row.times_crc
        if not good:
            raise BadIndex

    def bring(self, extension: str) -> bool:
        """Have a file in memory, and checked; waits for the disk. False: it is no good.

        Raises OSError only where that says nothing about the file.
        """
        try:
            self._bring(extension)
        except BadIndex:
            return False
        except OSError as error:
            if error.errno in PASSING:
                raise
            return False
        return True

    def _bring(self, extension: str) -> None:
        file = OpenFile(self.stem + extension, os.O_RDONLY)
        position = 0
        while got := len(os.pread(file.fd, _PIECE_BYTES, position)):
            position += got
        if extension not in self._maps:
            self._take_up(extension, max(self._expected(extension), 1), may_wait=True)

    @contextlib.contextmanager
    def brought(self) -> Iterator[None]:
        """In a thread: the offset and the time entries are at hand. Raises BadIndex."""
        wanted = (INDEX, TIMES) if self.live is None else ()
        if not all(map(self.bring, wanted)):
            raise BadIndex
        self.held += wanted
        try:
            yield
        finally:
            for extension in wanted:
                self.held.remove(extension)

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

    @property
    def failed(self) -> bool:
        """Whether a page of a file could not be read."""
        return any(mapped.failed for mapped in self._maps.values())

    def sync(self) -> None:
        """Make the files durable."""
        for extension in INDEX_EXTENSIONS:
            sync_file(self.stem + extension)

    def let_go(self) -> None:
        """Close every file."""
        maps, self._maps = self._maps, {}
        for mapped in maps.values():
            self._cache.forget(mapped)

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
