"""Pieces for data objects: from batches in memory, from rows that are joined, from a rewrite.

Rules: no batch is copied: a piece is a list of the buffers that it was made of. What is read from
the store is believed only if its checksums hold: an error would be in the new piece for good.
Nothing here is named by the chain yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from onelog.base.errors import ColdDamaged
from onelog.kernel import BatchInfo, crc32c, scan_batches
from onelog.objects.access import Buffer
from onelog.objects.piece import IndexPart
from onelog.objects.piece_building import BuiltPiece, PieceBuilder
from onelog.objects.postings import decode_postings
from onelog.objects.rows import Row
from onelog.objects.store import ObjectStore
from onelog.storage.batch_segment import MemorySegment
from onelog.storage.object.core import ObjectCore
from onelog.storage.topic_pairs import derive_pairs


class CutRow:
    """The batches that stay of a row which is cut."""

    def __init__(self, row: Row, is_indexed: bool, end: int) -> None:
        self.base = row.base
        self.row_end = row.end
        self.end = end
        """Where the log will end."""
        self.batches = 0
        self._row = row
        self._is_indexed = is_indexed
        self._builder = PieceBuilder(row.base, index_topics=is_indexed)
        self._object = ""
        self._built: BuiltPiece | None = None

    def add(self, data: bytes, infos: Sequence[BatchInfo]) -> None:
        """Add batches."""
        pairs = derive_pairs(data, infos) if self._is_indexed else None
        self._builder.add(data, infos, pairs)
        self.batches += len(infos)

    def put(self, core: ObjectCore) -> None:
        """Write the object, if anything stays. Blocks."""
        if self.batches:
            self._built = self._builder.finish(self.end)
            self._object = core.put_data(self._built.parts)

    def finish(self) -> Row:
        """The row."""
        assert self._built is not None, "the object was not written"
        return self._built.row(
            self._object,
            created_ms=self._row.created_ms,
            leader_epoch=self._builder.leader_epoch,
        )


def piece_of_segments(segments: Sequence[MemorySegment]) -> tuple[BuiltPiece, int]:
    """The piece of neighbouring segments, and the leader epoch of its last batch."""
    first, last = segments[0], segments[-1]
    builder = PieceBuilder(first.base_offset, index_topics=first.indexed)
    for segment in segments:
        for data in segment.batches():
            builder.add(data, scan_batches(data, 0, False))
        if segment.indexed:
            chunks = segment.topic_chunks()
            builder.add_topic_chunks(chunks, len(chunks), segment.base_offset)
    return builder.finish(last.end_offset), builder.leader_epoch


def piece_of_rows(store: ObjectStore, rows: Sequence[Row]) -> tuple[BuiltPiece, int] | None:
    """The piece of neighbouring rows; None: they do not fit together. Blocks."""
    builder: PieceBuilder | None = None
    is_indexed = False
    for row in rows:
        batches, postings, index = _whole_row(store, row)
        if builder is None:
            is_indexed = index.has_topics
            builder = PieceBuilder(row.base, index_topics=is_indexed)
        if index.has_topics != is_indexed:
            return None
        if len(batches):
            builder.add(batches, scan_batches(batches, 0, False))
        if is_indexed:
            builder.add_topic_pairs(decode_postings(postings), row.base)
    assert builder is not None
    return builder.finish(rows[-1].end), builder.leader_epoch


def _whole_row(store: ObjectStore, row: Row) -> tuple[Buffer, Buffer, IndexPart]:
    """Batches, postings and index part of a row; bytes that went bad on their way come again."""
    try:
        return _checked_row(store, row)
    except ColdDamaged:
        return _checked_row(store, row)


def _checked_row(store: ObjectStore, row: Row) -> tuple[Buffer, Buffer, IndexPart]:
    batches = store.get_range(row.object, row.position, row.log_bytes)
    rest = store.get_range(
        row.object, row.position + row.log_bytes, row.piece_bytes - row.log_bytes
    )
    index = IndexPart(rest[len(rest) - row.index_bytes :], row.object, row)
    section = index.footer.postings
    postings = rest[: section.size_bytes]
    for part, crc, what in (
        (batches, index.footer.log_crc, "batches"),
        (postings, section.crc, "topic index"),
    ):
        if crc32c(part) != crc:
            raise ColdDamaged(
                f"the {what} of {row.object} from byte {row.position} on are damaged: their"
                " checksum does not hold; restore the object from a copy of the bucket"
            )
    return batches, postings, index
