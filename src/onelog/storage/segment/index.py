"""A segment's sparse index: offset to position, and time to offset.

Rules: entries are made for a segment's first batch and then for each batch that starts at least
`index_interval_bytes` after the last entry's. An offset entry is a little-endian u64, the relative
offset above the position, so that entries sort by offset. A time entry is two i64: the highest
timestamp up to and with a batch, and that batch's relative offset; there is one where it grew.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from onelog.kernel import crc32c
from onelog.storage.segment.files import write_at

INDEX: Final = ".index"
TIMES: Final = ".timeindex"
SAVE_BYTES: Final = 64 * 1024
"""Entries of so many bytes are written out together."""
POSITION_MASK: Final = 0xFFFF_FFFF

assert sys.byteorder == "little", "index files are mapped as they are: little endian only"


class SparseIndex:
    """The entries of one segment in memory, and how many of them are in the files."""

    __slots__ = ("_offsets_saved", "_times_saved", "next_at", "offsets", "times")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.times = array("q")
        self._offsets_saved = 0
        self._times_saved = 0
        self.next_at = 0
        """Position from which on a batch gets an entry."""

    def add(self, rel: int, position: int, max_timestamp_ms: int, interval_bytes: int) -> bool:
        """Add a batch's entry. Returns whether it is time to save."""
        offsets, times = self.offsets, self.times
        offsets.append(rel << 32 | position)
        if not times or max_timestamp_ms > times[-2]:
            times.append(max_timestamp_ms)
            times.append(rel)
        self.next_at = position + interval_bytes
        return (len(offsets) - self._offsets_saved) * 8 >= SAVE_BYTES

    def save(self, stem: str) -> None:
        """Write the entries that the files do not have yet."""
        if self._offsets_saved < len(self.offsets):
            pending = self.offsets[self._offsets_saved :].tobytes()
            write_at(stem + INDEX, pending, self._offsets_saved * 8)
            self._offsets_saved = len(self.offsets)
        if self._times_saved < len(self.times):
            pending = self.times[self._times_saved :].tobytes()
            write_at(stem + TIMES, pending, self._times_saved * 8)
            self._times_saved = len(self.times)

    def sums(self) -> tuple[int, int, int, int]:
        """Bytes and CRC of the offset file and of the time file."""
        offsets, times = self.offsets.tobytes(), self.times.tobytes()
        return len(offsets), crc32c(offsets), len(times), crc32c(times)

    def restore(self, offsets: bytes, times: bytes, interval_bytes: int) -> None:
        """Take over the content of the files."""
        self.offsets.frombytes(offsets)
        self.times.frombytes(times)
        self._offsets_saved = len(self.offsets)
        self._times_saved = len(self.times)
        if self.offsets:
            self.next_at = (self.offsets[-1] & POSITION_MASK) + interval_bytes


def time_floor(offsets: Sequence[int], times: Sequence[int], timestamp_ms: int) -> int:
    """Position of an indexed batch such that no batch before it reaches `timestamp_ms`."""
    found = bisect_left(range(len(times) // 2), timestamp_ms, key=lambda i: times[2 * i])
    # The batch lies at or before entry `found`, and behind the entry before it.
    entry = len(offsets)
    if 2 * found < len(times):
        entry = bisect_left(offsets, times[2 * found + 1] << 32)
    return offsets[entry - 1] & POSITION_MASK if entry else 0
