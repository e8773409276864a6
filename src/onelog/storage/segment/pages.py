"""How much of the log stays in the system's page cache: the newest bytes, when there is a bound.

Why: without a bound every byte of the log takes a new page until memory is full. On a virtual
machine whose host takes free memory back, each new page costs several times as much as the write; a
container pays for them too. With a bound the same pages are used again and again.

Rules: only bytes that are on the disk leave the cache, so that no write waits for it. A later
reader gets them from the disk. A bound of 0 leaves everything to the system.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Final

from onelog.storage.files import OpenFile

NOTED_BYTES_MIN: Final = 1024 * 1024
"""Shorter ranges wait until more bytes follow, so that the list stays short."""
NEVER: Final = 1 << 60
"""More bytes than a file has."""


class Edge:
    """A position in a file: bytes below it may have left the page cache."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class PageBudget:
    """The ranges of synced bytes that may still be in the page cache, oldest first."""

    __slots__ = ("_bytes", "_limit_bytes", "_lock", "_runs")

    def __init__(self, limit_bytes: int = 0) -> None:
        self._limit_bytes = limit_bytes
        self._runs: deque[tuple[str, int, int, Edge]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def due_bytes(self) -> int:
        """How large a range is that is noted."""
        return NOTED_BYTES_MIN if self._limit_bytes else NEVER

    def is_due(self, size_bytes: int) -> bool:
        """Whether a range of this size is noted at all."""
        return self._limit_bytes != 0 and size_bytes >= NOTED_BYTES_MIN

    def note(self, path: str, start: int, end: int, edge: Edge) -> int:
        """Bytes of a file are on the disk: older ones may have to leave. Returns where the next
        range starts.

        The file's `edge` moves before they leave. May wait for the disk: the syncing thread calls
        it, never the loop.
        """
        if not self.is_due(end - start):
            return start
        gone = []
        with self._lock:
            self._runs.append((path, start, end, edge))
            self._bytes += end - start
            while self._bytes > self._limit_bytes:
                run = self._runs.popleft()
                self._bytes -= run[2] - run[1]
                gone.append(run)
        for old, first, last, behind in gone:
            behind.at = max(behind.at, last)
            with contextlib.suppress(OSError):  # deleted meanwhile, or not supported by the system
                file = OpenFile(old, os.O_RDONLY)
                os.posix_fadvise(file.fd, first, last - first, os.POSIX_FADV_DONTNEED)
        return end
