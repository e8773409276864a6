"""The sections of a piece behind its batches, gathered batch by batch.

Rules: batches come in order. Whether they lie in the piece as they are, or are rebuilt from rows
later, positions are those of the log that they make. Topics come as the engines keep them, so no
record is decoded.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from onelog.base.errors import CorruptBatch, InvalidRequest
from onelog.kernel import (
    REL_MAX,
    BatchInfo,
    check_topic_chunks,
    crc32c,
    move_topic_entries,
    sort_topic_entries,
)
from onelog.objects.piece import (
    EVERY_HASH,
    INDEX_INTERVAL_BYTES,
    STATE_PACKED,
    TOPICS_INDEXED,
    AbortedSpan,
    Footer,
    FrameSizes,
    PieceSection,
    encode_footer,
)
from onelog.objects.postings import Buffer, Postings, encode_postings
from onelog.objects.rows import FOOTER_BYTES
from onelog.record import compression

STATE_PLAIN_BYTES: Final = 64 * 1024
"""A larger state is compressed."""
_CHUNK: Final = struct.Struct("<IIII")  # magic, CRC, entries, lowest relative offset
_PAIR_BYTES: Final = 8


class FinishedIndex(NamedTuple):
    """All sections behind the batches, and the footer."""

    postings: bytes
    state: bytes
    tail: bytes
    """The index part."""
    footer: Footer


class PieceIndex:
    """Gathers what the index of a piece says, which begins at `base`."""

    def __init__(
        self, base: int, *, index_topics: bool, pause: Callable[[], None] | None = None
    ) -> None:
        """`pause` is called now and then by what takes long."""
        self._base = base
        self._index_topics = index_topics
        self._pause = pause
        self.log_bytes = 0
        """Bytes of batches so far."""
        self._records = 0
        self._next = base
        """The next batch begins here or behind it."""
        self._entry_at = 0
        """A batch at this position or behind it gets an entry."""
        self._offsets = array("Q")
        self._times = array("q")
        self._lowest: int | None = None
        self._highest = -1
        self._pairs = bytearray()
        self.leader_epoch = 0
        """The epoch of the last batch."""

    def note(self, info: BatchInfo) -> None:
        """The next batch; where it lies in its buffer does not matter."""
        rel = info.base_offset - self._base
        if info.base_offset < self._next or info.last_offset - self._base > REL_MAX:
            raise InvalidRequest(
                f"a batch of offsets {info.base_offset} to {info.last_offset} does not fit behind"
                f" offset {self._next} of a piece that begins at {self._base}"
            )
        self._next = info.last_offset + 1
        self._records += info.count
        self.leader_epoch = info.leader_epoch
        self._highest = max(self._highest, info.max_timestamp_ms)
        if info.count:
            first = min(info.base_timestamp_ms, info.max_timestamp_ms)
            self._lowest = first if self._lowest is None else min(self._lowest, first)
        position = self.log_bytes
        self.log_bytes += info.size_bytes
        if position >= self._entry_at:
            self._entry_at = position + INDEX_INTERVAL_BYTES
            self._offsets.append(rel << 32 | position)
            if not self._times or self._highest > self._times[-2]:
                self._times.extend((self._highest, rel))

    def add_pairs(self, topics: Buffer, base: int) -> None:
        """Add u32 pairs (topic hash, offset - `base`)."""
        self._pairs += move_topic_entries(topics, base - self._base)

    def add_topic_chunks(self, chunks: Buffer, size: int, base: int) -> None:
        """Add the first `size` bytes of a segment's `.topics` file; `base` is the segment's base.

        Raises CorruptBatch when they are not whole chunks.
        """
        if check_topic_chunks(chunks, size) != size:
            raise CorruptBatch("a topic index is not made of whole chunks")
        view = memoryview(chunks).cast("B")
        position = 0
        while position < size:
            count = _CHUNK.unpack_from(view, position)[2]
            position += _CHUNK.size
            end = position + count * _PAIR_BYTES
            self.add_pairs(view[position:end], base)
            position = end

    def finish(
        self,
        end: int,
        log_crc: int,
        state: bytes,
        aborted: Iterable[AbortedSpan],
        frames: FrameSizes | None = None,
        file: bytes = b"",
    ) -> FinishedIndex:
        """The sections of a piece with the offsets from `base` to `end`.

        `log_crc` is that of the batches that lie in the piece. `frames` are the sizes of what only
        frames have, and `file` is their last section.
        """
        if not max(self._next, self._base + 1) <= end <= self._base + REL_MAX + 1:
            raise InvalidRequest(f"a piece from {self._base} cannot end at offset {end}")
        flags = TOPICS_INDEXED if self._index_topics else 0
        postings = Postings(b"", b"", is_full=True)
        if self._index_topics:
            postings = encode_postings(sort_topic_entries(self._pairs), self._pause)
        if postings.is_full:
            flags |= EVERY_HASH
        if len(state) > STATE_PLAIN_BYTES:
            state = compression.deflate(compression.ZSTD, state)
            flags |= STATE_PACKED
        parts = [
            postings.data,
            state,
            self._offsets.tobytes(),
            self._times.tobytes(),
            postings.directory,
            msgspec.msgpack.encode(tuple(aborted)),
        ]
        sections = []
        position = self.log_bytes if frames is None else frames.raw_bytes + frames.batches_bytes
        for part in parts:
            sections.append(PieceSection(position, len(part), crc32c(part)))
            position += len(part)
        footer = Footer(
            flags,
            self._records,
            self._base,
            end,
            self.log_bytes,
            position + len(file) + FOOTER_BYTES,
            -1 if self._lowest is None else self._lowest,
            self._highest,
            log_crc,
            frames,
            *sections,
        )
        index = b"".join((*parts[2:], file, encode_footer(footer)))
        return FinishedIndex(postings.data, state, index, footer)
