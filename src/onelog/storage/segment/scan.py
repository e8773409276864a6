"""Walks over the batches of a segment in windows, so that memory stays bounded.

Rules: the walk reads mapped bytes and changes nothing. A window ends inside a batch more often than
not; the walk goes on from that batch with the next window.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Final

from onelog.base.limits import BATCH_BYTES_MAX
from onelog.kernel import BatchInfo, scan_valid

_WINDOW_BYTES: Final = 8 * 1024 * 1024
_ZERO_BLOCK: Final = bytes(64 * 1024)

Piece = tuple[memoryview, list[BatchInfo], int]
"""A window's bytes, its batches (positions are the window's), and where in the file it starts."""


class Walk:
    """One pass over the bytes [start, end) of a mapped file; `stop` and `why` say how it ended."""

    __slots__ = ("_check_crc", "_end", "_map", "offset", "stop", "why")

    def __init__(
        self, log: mmap.mmap | None, start: int, end: int, offset: int, check_crc: bool
    ) -> None:
        assert log is not None or start == end
        self._map = log
        self._end = end
        self._check_crc = check_crc
        self.stop = start
        """First byte that is not part of a good batch."""
        self.offset = offset
        """Offset after the last good batch."""
        self.why = ""
        """Why the batch at `stop` is bad; empty when all are good."""

    def pieces(self) -> Iterator[Piece]:
        """The good batches, window by window."""
        if self._map is None:
            return
        view = memoryview(self._map)
        window_bytes = _WINDOW_BYTES
        while self.stop < self._end:
            at = self.stop
            window = view[at : min(at + window_bytes, self._end)]
            batches, stop, self.why = scan_valid(window, 0, self._check_crc, self.offset)
            if batches:
                self.offset = batches[-1].last_offset + 1
                self.stop = at + stop
                yield window, batches, at
            elif window_bytes < BATCH_BYTES_MAX and at + len(window) < self._end:
                window_bytes = BATCH_BYTES_MAX  # one large batch may not fit a window
            else:
                return
        self.why = ""

    def torn_bytes(self) -> int:
        """Bytes from `stop` to the last one that is not zero: reserved space does not count."""
        if self._map is None:
            return 0
        end = self._end
        while end > self.stop:
            start = max(self.stop, end - len(_ZERO_BLOCK))
            block = self._map[start:end]
            if block != _ZERO_BLOCK[: len(block)]:
                return start + len(block.rstrip(b"\0")) - self.stop
            end = start
        return 0
