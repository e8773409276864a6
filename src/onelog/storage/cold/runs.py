"""A run: record batches of one piece on this machine, in a file of the cache or in memory.

Rules: a run is written once, and every batch of it was checked before anybody sees it. It answers
for the offsets [first, end): a batch with such an offset lies in it, or there is none. Views of it
are whole batches and outlive the run. Before its map is touched, the system is asked whether the
bytes are in memory, unless a courier has just read them.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from onelog.kernel import HEADER_BYTES, find_batch, fit_batches, scan_batches
from onelog.storage.engine import Buffer, Cold
from onelog.storage.files import FileCache, MappedFile, OpenFile, remove

_WARM_BYTES: Final = 1024 * 1024
"""Bytes that are read from the cache's disk at once."""


class PieceKey(NamedTuple):
    """Which piece of which object."""

    object: str
    position: int


class Marks:
    """Where batches of a run begin: offsets and positions of some of them, the first one too."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("I")

    def extend(self, offsets: bytes, positions: bytes) -> None:
        """Note batches that begin behind the ones noted, as `mark_batches` says them."""
        self.offsets.frombytes(offsets)
        self.positions.frombytes(positions)


class ColdPages(Cold):
    """Bytes of a run are on the cache's disk, and not in memory."""

    def __init__(self, run: Run) -> None:
        super().__init__(("pages", run.piece, run.first), run.size_bytes)
        self.run = run


class Run:
    """Batches of a piece that are here."""

    __slots__ = (
        "_bytes", "_file", "_files", "again", "continued", "end", "first", "fresh", "gone",
        "leases", "level", "marks", "next_asked", "passed", "piece", "size_bytes",
    )  # fmt: skip

    def __init__(
        self, piece: PieceKey, first: int, end: int, marks: Marks, size_bytes: int, level: int
    ) -> None:
        self.piece = piece
        self.first = first
        self.end = end
        self.marks = marks
        self.size_bytes = size_bytes
        self.level = level
        """How far its reader's read-ahead has grown."""
        self._bytes: Buffer | None = None
        self._file: MappedFile | None = None
        self._files: FileCache | None = None
        self.leases = 0
        self.fresh = True
        """Nobody has read it since it was brought."""
        self.gone = False
        """It left the cache; its file is unlinked."""
        self.passed = marks.positions[1] if len(marks.positions) > 1 else 0
        """How far it was read from its beginning on, without a gap."""
        self.again = False
        """It was read from its beginning more than once."""
        self.continued = False
        """A reader went on where its last read of this run ended."""
        self.next_asked = False
        """The run behind it was asked for."""

    def in_file(self, path: str, files: FileCache) -> None:
        """Its bytes are in a file."""
        self._files = files
        self._file = MappedFile(path, files)

    def in_memory(self, data: Buffer) -> None:
        """Its bytes are here."""
        self._bytes = data

    @property
    def is_in_memory(self) -> bool:
        """Whether it takes memory instead of a file."""
        return self._file is None

    @property
    def was_read_whole(self) -> bool:
        """Whether a reader has come to its end."""
        return not self.fresh and self.passed >= self.size_bytes

    @property
    def failed(self) -> bool:
        """Whether a page could not be read, and zeros lie there now."""
        return self._file is not None and self._file.failed

    def read(self, offset: int, max_bytes: int, below: int) -> memoryview | None:
        """Whole batches from the one that holds `offset` (or the next) on, below the offset
        `below`; None: no batch here reaches `offset`. Raises ColdPages, and OSError."""
        start = self._mark(offset)
        buffer = self._buffer(start, max_bytes)
        position = find_batch(buffer, start, self.size_bytes, offset)
        if position < 0:
            self.fresh = False  # its reader goes on behind it
            return None
        stop = fit_batches(buffer, position, self.size_bytes, max_bytes, below)
        self._note_read(position, stop)
        return memoryview(buffer)[position:stop]

    def offset_for_time(self, timestamp_ms: int, offset: int) -> int | None:
        """Base offset of the first batch from `offset` on that reaches `timestamp_ms`; None: it
        lies behind this run. Raises ColdPages, and OSError."""
        start = self._mark(offset)
        buffer = self._buffer(start, self.size_bytes)
        self.fresh = False
        position = find_batch(buffer, start, self.size_bytes, offset)
        view = memoryview(buffer)[: self.size_bytes]
        while 0 <= position < self.size_bytes:
            info = scan_batches(view, position, False, 1)[0]
            if info.max_timestamp_ms >= timestamp_ms:
                return info.base_offset
            position += info.size_bytes
        return None

    def _mark(self, offset: int) -> int:
        at = bisect_right(self.marks.offsets, offset) - 1
        return self.marks.positions[at] if at >= 0 else 0

    def _buffer(self, start: int, max_bytes: int) -> Buffer:
        """The bytes; those that a read of `max_bytes` from the mark at `start` on may touch are in
        memory."""
        file = self._file
        if file is None:
            assert self._bytes is not None
            return self._bytes
        found = file.open(self.size_bytes)
        if self.leases == 0:
            # The batch that holds the offset begins before the next mark, or at it.
            positions = self.marks.positions
            after = bisect_right(positions, start)
            behind = positions[after] if after < len(positions) else self.size_bytes
            last = bisect_left(positions, behind + max_bytes + HEADER_BYTES)
            needed = positions[last] if last < len(positions) else self.size_bytes
            if found.here_to(start, needed) < needed:
                raise ColdPages(self)
        return memoryview(found)

    def _note_read(self, start: int, stop: int) -> None:
        self.fresh = False
        if start > self.passed:
            return
        if self.passed >= self.size_bytes > stop:
            self.again = True
        elif start and start == self.passed:
            self.continued = True
        self.passed = max(self.passed, stop)

    @property
    def is_half_read(self) -> bool:
        """Whether a reader has passed its middle, coming from its beginning."""
        return not self.fresh and self.passed * 2 >= self.size_bytes

    def warm(self) -> None:
        """Read the file, so that the system has it in memory. Blocks. Raises OSError."""
        if self._file is None:
            return
        file = OpenFile(self._file.path, os.O_RDONLY)
        room = bytearray(min(_WARM_BYTES, self.size_bytes))
        position = 0
        while position < self.size_bytes:
            got = os.preadv(file.fd, [room], position)
            if got == 0:
                raise OSError(f"{self._file.path} was cut short")
            position += got

    def discard(self) -> None:
        """Unlink the file. Views keep its bytes."""
        file = self._file
        if file is not None and self._files is not None:
            self._files.forget(file)
            remove(file.path)
