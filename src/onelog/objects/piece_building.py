"""Building a piece from neighbouring batches of a partition, with their topics and their state.

Rules: batches come in order, whole, from one or several segments. Their bytes are not copied: a
piece is a list of parts, of which the first ones are the buffers that were added. Topics come as
the engines keep them, so no record is decoded.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
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
    PieceSection,
    encode_footer,
)
from onelog.objects.postings import Buffer, Postings, encode_postings
from onelog.objects.rows import FOOTER_BYTES, LOG_BYTES_MAX, Row
from onelog.record import compression

STATE_PLAIN_BYTES: Final = 64 * 1024
"""A larger state is compressed."""
_CHUNK: Final = struct.Struct("<IIII")  # magic, CRC, entries, lowest relative offset
_PAIR_BYTES: Final = 8


class BuiltPiece(NamedTuple):
    """A piece, ready for a store."""

    parts: list[Buffer]
    footer: Footer
    index_crc: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return self.footer.piece_bytes

    def row(self, name: str, *, created_ms: int, leader_epoch: int, position: int = 0) -> Row:
        """What a manifest says of the piece, once it lies in the object `name`."""
        footer = self.footer
        return Row(
            base=footer.base,
            end=footer.end,
            log_bytes=footer.log_bytes,
            records=footer.records,
            min_timestamp_ms=footer.min_timestamp_ms,
            max_timestamp_ms=footer.max_timestamp_ms,
            created_ms=created_ms,
            kind="log",
            object=name,
            position=position,
            piece_bytes=footer.piece_bytes,
            index_bytes=footer.index_bytes,
            index_crc=self.index_crc,
            leader_epoch=leader_epoch,
        )


class PieceBuilder:
    """Collects the batches of one piece, which begins at `base`."""

    def __init__(self, base: int, *, index_topics: bool) -> None:
        self._base = base
        self._index_topics = index_topics
        self._parts: list[Buffer] = []
        self._log_bytes = self._log_crc = self._records = 0
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

    @property
    def log_bytes(self) -> int:
        """Bytes of batches so far."""
        return self._log_bytes

    def add(self, data: Buffer, batches: Sequence[BatchInfo], topics: Buffer | None = None) -> None:
        """Add batches that fill `data`, as the kernel scanned them.

        `topics` are u32 pairs (topic hash, offset - first batch's base offset), if they were not
        and will not be added by `add_topic_chunks`. The buffer stays in use until the piece is
        written.
        """
        view = memoryview(data).cast("B")
        if self._log_bytes + len(view) > LOG_BYTES_MAX:
            raise InvalidRequest(f"a piece holds at most {LOG_BYTES_MAX} bytes of batches")
        if sum(info.size_bytes for info in batches) != len(view):
            raise InvalidRequest(f"the batches do not fill the {len(view)} bytes they come in")
        for info in batches:
            self._note(info)
        if topics:
            self._pairs += move_topic_entries(topics, batches[0].base_offset - self._base)
        self._log_crc = crc32c(view, self._log_crc)
        self._log_bytes += len(view)
        self._parts.append(view)

    def _note(self, info: BatchInfo) -> None:
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
        position = self._log_bytes + info.position
        if position >= self._entry_at:
            self._entry_at = position + INDEX_INTERVAL_BYTES
            self._offsets.append(rel << 32 | position)
            if not self._times or self._highest > self._times[-2]:
                self._times.extend((self._highest, rel))

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
            self._pairs += move_topic_entries(view[position:end], base - self._base)
            position = end

    def finish(
        self, end: int, *, state: bytes = b"", aborted: Iterable[AbortedSpan] = ()
    ) -> BuiltPiece:
        """The piece with the offsets from `base` to `end`, which is where the next one begins.

        `state` is the derived state as of `end`. `aborted` are transactions with records here.
        """
        if not max(self._next, self._base + 1) <= end <= self._base + REL_MAX + 1:
            raise InvalidRequest(f"a piece from {self._base} cannot end at offset {end}")
        flags = TOPICS_INDEXED if self._index_topics else 0
        postings = Postings(b"", b"", is_full=True)
        if self._index_topics:
            postings = encode_postings(sort_topic_entries(self._pairs))
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
        sections, position = [], self._log_bytes
        for part in parts:
            sections.append(PieceSection(position, len(part), crc32c(part)))
            position += len(part)
        footer = Footer(
            flags,
            self._records,
            self._base,
            end,
            self._log_bytes,
            position + FOOTER_BYTES,
            -1 if self._lowest is None else self._lowest,
            self._highest,
            self._log_crc,
            *sections,
        )
        index = b"".join((*parts[2:], encode_footer(footer)))
        body: list[Buffer] = [*self._parts, *filter(None, parts[:2]), index]
        return BuiltPiece(body, footer, crc32c(index))


def build_piece(
    base: int,
    end: int,
    batches: Iterable[tuple[Buffer, Sequence[BatchInfo], Buffer | None]],
    *,
    index_topics: bool,
    state: bytes = b"",
    aborted: Iterable[AbortedSpan] = (),
) -> BuiltPiece:
    """A piece of batches with their topic pairs, as `PieceBuilder.add` takes them."""
    builder = PieceBuilder(base, index_topics=index_topics)
    for data, infos, topics in batches:
        builder.add(data, infos, topics)
    return builder.finish(end, state=state, aborted=aborted)
