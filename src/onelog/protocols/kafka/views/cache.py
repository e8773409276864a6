"""The results of looks through views, kept for the next consumer of the same view.

Rules: bounded in bytes, the least used goes first; safe in threads. Stored records never change,
and a look never goes beyond the last stable offset, so nothing here becomes wrong. Stored bytes
that go out as they are are not kept: a look finds them again, and a copy would hold the map of a
dropped segment.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

CACHE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of rewritten batches that are kept, over all views."""
RUN_BYTES_MAX: Final = 256 * 1024
"""A larger finding is not kept."""
_ENTRY_BYTES: Final = 300

Key = tuple[str, int, bytes, int]
"""Stream id, partition, filter, offset that the look began at."""


class Finding(NamedTuple):
    """The result of one look."""

    pieces: tuple[tuple[int, bytes], ...]
    """(base offset, batch) in order."""
    reached: int
    """Everything from the beginning of the look up to here is in it."""


class FindingCache:
    """Findings by the offset where they began."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._runs: OrderedDict[Key, tuple[Finding, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Key) -> Finding | None:
        """The finding of an earlier look."""
        with self._lock:
            found = self._runs.get(key)
            if found is None:
                self.misses += 1
                return None
            self._runs.move_to_end(key)
            self.hits += 1
            return found[0]

    def put(self, key: Key, run: Finding) -> None:
        """Keep a finding, if it is small."""
        size = sum(len(batch) for _base, batch in run.pieces)
        if size > RUN_BYTES_MAX:
            return
        size += _ENTRY_BYTES
        with self._lock:
            old = self._runs.pop(key, None)
            if old is not None:
                self.size_bytes -= old[1]
            self._runs[key] = (run, size)
            self.size_bytes += size
            while self.size_bytes > self._max_bytes:
                _key, (_run, gone) = self._runs.popitem(last=False)
                self.size_bytes -= gone
