"""A segment in memory: batches in offset order, their times and their topics.

Rules: batches leave at the front (the ring is full, the log is trimmed) or at the back (truncate).
A batch that left at the front stays as an empty slot until half of the segment is empty, so leaving
is cheap. Topic entries of batches that left stay until the segment is dropped: a lookup filters by
offset.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from onelog.kernel import (
    BatchInfo,
    lookup_topic_chunks,
    make_topic_chunk,
    move_topic_entries,
    sort_topic_entries,
)

_PENDING_BYTES: Final = 1024 * 8
"""Bytes of unsorted topic entries that a lookup sorts by itself; each has 8."""


class MemorySegment:
    """Batches between two segment boundaries."""

    __slots__ = (
        "_bases", "_chunks", "_data", "_head", "_highs", "_lasts", "_pending", "_times",
        "base_offset", "created_ms", "end_offset", "indexed", "size_bytes",
    )  # fmt: skip

    def __init__(self, base_offset: int, created_ms: int, indexed: bool) -> None:
        self.base_offset = base_offset
        self.indexed = indexed
        self.end_offset = base_offset
        self.created_ms = created_ms
        self.size_bytes = 0
        self._head = 0
        self._bases: list[int] = []
        self._lasts: list[int] = []
        self._times: list[int] = []
        self._highs: list[int] = []  # the highest timestamp up to each batch: ascending
        self._data: list[bytes | memoryview] = []
        self._chunks = bytearray()
        self._pending = bytearray()

    def __len__(self) -> int:
        return len(self._data) - self._head

    @property
    def max_timestamp_ms(self) -> int:
        """The highest timestamp of the batches held; -1 without any."""
        return max(self._times[self._head :], default=-1)

    # ---- growing and shrinking ----

    def add(self, info: BatchInfo, data: bytes | memoryview) -> None:
        """Add a batch at the end."""
        self._bases.append(info.base_offset)
        self._lasts.append(info.last_offset)
        self._times.append(info.max_timestamp_ms)
        high = self._highs[-1] if self._highs else -1
        self._highs.append(max(high, info.max_timestamp_ms))
        self._data.append(data)
        self.size_bytes += len(data)
        self.end_offset = info.last_offset + 1

    def add_topics(self, pairs: bytes, first_offset: int) -> None:
        """Add the topic entries of batches, relative to `first_offset`."""
        self._pending += move_topic_entries(pairs, first_offset - self.base_offset)
        if len(self._pending) >= _PENDING_BYTES:
            self._chunks += make_topic_chunk(sort_topic_entries(self._pending))
            self._pending.clear()

    def drop_first(self) -> int:
        """Drop the oldest batch. Returns its last offset."""
        head = self._head
        last = self._lasts[head]
        self.size_bytes -= len(self._data[head])
        self._data[head] = b""
        self._head = head + 1
        if self._head * 2 > len(self._data):
            for column in (self._bases, self._lasts, self._times, self._highs, self._data):
                del column[: self._head]
            self._head = 0
            self._highs = list(accumulate(self._times, max))
        return last

    def first_last_offset(self) -> int:
        """Last offset of the oldest batch held."""
        return self._lasts[self._head]

    def cut(self, end: int) -> int:
        """Drop every batch that reaches `end`. Returns where the segment ends then."""
        at = max(self._head, bisect_left(self._lasts, end))
        if at < len(self._lasts):
            end = min(end, self._bases[at])
        self.size_bytes -= sum(map(len, self._data[at:]))
        for column in (self._bases, self._lasts, self._times, self._highs, self._data):
            del column[at:]
        self.end_offset = min(self.end_offset, end)
        return self.end_offset

    # ---- asking ----

    def batches(self) -> list[bytes | memoryview]:
        """The batches held, in order."""
        return self._data[self._head :]

    def topic_chunks(self) -> bytes:
        """The topic entries, as a `.topics` file has them; those of dropped batches, too."""
        if not self._pending:
            return bytes(self._chunks)
        return bytes(self._chunks + make_topic_chunk(sort_topic_entries(self._pending)))

    def read(self, offset: int, max_bytes: int, upto: int) -> list[bytes | memoryview]:
        """Batches from the one that holds `offset` or follows it, at least one below `upto`."""
        at = max(self._head, bisect_left(self._lasts, offset))
        found: list[bytes | memoryview] = []
        size = 0
        while at < len(self._lasts) and self._lasts[at] < upto:
            data = self._data[at]
            size += len(data)
            if found and size > max_bytes:
                break
            found.append(data)
            at += 1
        return found

    def base_at_time(self, timestamp_ms: int) -> int | None:
        """Base offset of the first batch whose highest timestamp is not before `timestamp_ms`."""
        at = bisect_left(self._highs, timestamp_ms)
        if at < self._head:  # the maximum is that of a dropped batch: look at each that stayed
            times = self._times
            at = self._head
            while at < len(times) and times[at] < timestamp_ms:
                at += 1
        return self._bases[at] if at < len(self._bases) else None

    def offsets_of_topic(self, topic_hash: int, start: int, upto: int, limit: int) -> list[int]:
        """Ascending offsets in [start, upto) under a topic's hash."""
        low = max(0, start - self.base_offset)
        chunks = self._chunks
        if self._pending:
            chunks = chunks + make_topic_chunk(sort_topic_entries(self._pending))
        found = lookup_topic_chunks(chunks, len(chunks), topic_hash, low, limit)
        high = min(upto, self.end_offset) - self.base_offset
        return [self.base_offset + rel for rel in found if rel < high]
