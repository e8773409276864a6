"""A segment's topic index: which offsets belong to a topic's hash.

Rules: entries wait in memory, unsorted; a full chunk, a roll or a checkpoint sorts them into a
chunk of the `.topics` file. If that cannot be written they stay in memory: no append fails by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onelog.kernel import (
    ATTR_CONTROL,
    RAW_TOPIC_BYTES_MAX,
    RAW_TOPICS_MAX,
    BatchInfo,
    batch_topics,
    lookup_topic_chunks,
    make_topic_chunk,
    pack_topic_entries,
    sort_topic_entries,
)
from onelog.record.batch import inflated_records
from onelog.storage.engine import Buffer
from onelog.storage.segment.files import write_at

TOPICS: Final = ".topics"
CHUNK_ENTRIES: Final = 16384
"""Packed entries that wait in memory at most."""
_ENTRY_BYTES: Final = 8
_LONG_RUN_ENTRIES: Final = 256
_RUNS_MAX: Final = 32

Entries = tuple[bytes, int]
"""u32 pairs (topic hash, relative offset) and what to add to each relative offset."""


def derive_entries(data: Buffer, batches: Sequence[BatchInfo], base_offset: int) -> list[Entries]:
    """The entries of batches whose writer gave none."""
    found: list[Entries] = []
    for info in batches:
        if info.count and not info.attributes & ATTR_CONTROL:
            pairs = batch_topics(data, info.position, inflated_records(data, info))
            if pairs:
                found.append((pairs, info.base_offset - base_offset))
    return found


class TopicTail:
    """The entries of one segment that are not in its file yet."""

    __slots__ = (
        "_chunks",
        "_count",
        "_entries",
        "_fresh_at",
        "_run_count",
        "_runs",
        "raw",
        "saved_bytes",
    )

    def __init__(self, saved_bytes: int = 0) -> None:
        self.saved_bytes = saved_bytes
        """Bytes of whole chunks in the file."""
        self.raw: list[Entries] = []
        """The entries of the last appends, to which the kernel adds (`FileEnd`)."""
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        """Entries that wait, without the raw ones."""
        self._chunks = bytearray()
        """Chunks ready for the file: long runs are sorted once, each as a chunk of its own."""
        self._entries = bytearray()
        """Entries of short runs, to be sorted together."""
        self._fresh_at = 0
        """Where the entries begin that are in no run yet."""
        self._runs = bytearray()
        self._run_count = 0

    def add(self, entries: list[Entries]) -> bool:
        """Keep entries. Returns whether a chunk is full."""
        self.raw += entries
        is_much = len(self.raw) >= RAW_TOPICS_MAX or any(
            len(pairs) > RAW_TOPIC_BYTES_MAX // RAW_TOPICS_MAX for pairs, _ in entries
        )
        return is_much and self.absorb()

    def absorb(self) -> bool:
        """Give the raw entries their final relative offsets, packed. Returns whether a chunk is
        full."""
        raw, self.raw = self.raw, []
        packed, longer = pack_topic_entries(raw, _LONG_RUN_ENTRIES * _ENTRY_BYTES)
        self._entries += packed
        self._count += len(packed) // _ENTRY_BYTES
        for pairs, add in longer:
            self._count += len(pairs) // _ENTRY_BYTES
            self._chunks += make_topic_chunk(sort_topic_entries(pairs, add))
        return self._count >= CHUNK_ENTRIES

    def save(self, stem: str) -> None:
        """Write everything into the file as chunks."""
        self.absorb()
        if self._entries:
            self._chunks += make_topic_chunk(sort_topic_entries(self._entries))
            self._entries, self._fresh_at = bytearray(), 0
            self._runs, self._run_count = bytearray(), 0
        if self._chunks:
            write_at(stem + TOPICS, self._chunks, self.saved_bytes)
            self.saved_bytes += len(self._chunks)
        self._clear()

    def lookup(self, topic_hash: int, rel_min: int, limit: int) -> list[int]:
        """Relative offsets from `rel_min` on that wait in memory under `topic_hash`, ascending."""
        self.absorb()
        if self._fresh_at < len(self._entries):
            # Entries since the last lookup become a sorted run of their own, so that a reader that
            # asks after each append does not sort everything each time.
            self._run_count += 1
            if self._run_count > _RUNS_MAX:
                self._runs, self._run_count, self._fresh_at = bytearray(), 1, 0
            self._runs += make_topic_chunk(sort_topic_entries(self._entries[self._fresh_at :]))
            self._fresh_at = len(self._entries)
        found = lookup_topic_chunks(self._runs, len(self._runs), topic_hash, rel_min, limit)
        more = lookup_topic_chunks(self._chunks, len(self._chunks), topic_hash, rel_min, limit)
        return sorted({*found, *more})[:limit] if found and more else found or more
