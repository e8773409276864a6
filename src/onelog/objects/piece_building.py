"""Building a piece from neighbouring batches of a partition, with their topics and their state.

Rules: batches come in order, whole, from one or several segments. Their bytes are not copied: a
piece is a list of parts, of which the first ones are the buffers that were added. Topics come as
the engines keep them, so no record is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from onelog.base.errors import InvalidRequest
from onelog.kernel import BatchInfo, crc32c
from onelog.objects.index_building import PieceIndex
from onelog.objects.piece import AbortedSpan, Footer
from onelog.objects.postings import Buffer
from onelog.objects.rows import LOG_BYTES_MAX, Row


class BuiltPiece(NamedTuple):
    """A piece, or frames, ready for a store."""

    parts: list[Buffer]
    footer: Footer
    index_crc: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return self.footer.piece_bytes

    def row(
        self, name: str, *, created_ms: int, leader_epoch: int, position: int = 0, file: str = ""
    ) -> Row:
        """What a manifest says of the piece, once it lies in the object `name`.

        `file` is the Parquet file of frames, as its table names it.
        """
        footer = self.footer
        return Row(
            base=footer.base,
            end=footer.end,
            log_bytes=footer.log_bytes,
            records=footer.records,
            min_timestamp_ms=footer.min_timestamp_ms,
            max_timestamp_ms=footer.max_timestamp_ms,
            created_ms=created_ms,
            kind="log" if footer.frames is None else "parquet",
            object=name,
            position=position,
            piece_bytes=footer.piece_bytes,
            index_bytes=footer.index_bytes,
            index_crc=self.index_crc,
            leader_epoch=leader_epoch,
            file=file,
        )


class PieceBuilder:
    """Collects the batches of one piece, which begins at `base`."""

    def __init__(
        self, base: int, *, index_topics: bool, pause: Callable[[], None] | None = None
    ) -> None:
        """`pause` is called now and then by what takes long."""
        self._base = base
        self._index = PieceIndex(base, index_topics=index_topics, pause=pause)
        self._parts: list[Buffer] = []
        self._log_crc = 0

    @property
    def log_bytes(self) -> int:
        """Bytes of batches so far."""
        return self._index.log_bytes

    @property
    def leader_epoch(self) -> int:
        """The epoch of the last batch."""
        return self._index.leader_epoch

    def add(self, data: Buffer, batches: Sequence[BatchInfo], topics: Buffer | None = None) -> None:
        """Add batches that fill `data`, as the kernel scanned them.

        `topics` are u32 pairs (topic hash, offset - first batch's base offset), if they were not
        and will not be added by `add_topic_chunks`. The buffer stays in use until the piece is
        written.
        """
        view = memoryview(data).cast("B")
        if self.log_bytes + len(view) > LOG_BYTES_MAX:
            raise InvalidRequest(f"a piece holds at most {LOG_BYTES_MAX} bytes of batches")
        if sum(info.size_bytes for info in batches) != len(view):
            raise InvalidRequest(f"the batches do not fill the {len(view)} bytes they come in")
        for info in batches:
            self._index.note(info)
        if topics:
            self._index.add_pairs(topics, batches[0].base_offset)
        self._log_crc = crc32c(view, self._log_crc)
        self._parts.append(view)

    def add_topic_chunks(self, chunks: Buffer, size: int, base: int) -> None:
        """Add the first `size` bytes of a segment's `.topics` file; `base` is the segment's base.

        Raises CorruptBatch when they are not whole chunks.
        """
        self._index.add_topic_chunks(chunks, size, base)

    def add_topic_pairs(self, pairs: Buffer, base: int) -> None:
        """Add u32 pairs (topic hash, offset - `base`) of batches that were added without them."""
        self._index.add_pairs(pairs, base)

    def finish(
        self, end: int, *, state: bytes = b"", aborted: Iterable[AbortedSpan] = ()
    ) -> BuiltPiece:
        """The piece with the offsets from `base` to `end`, which is where the next one begins.

        `state` is the derived state as of `end`. `aborted` are transactions with records here.
        """
        made = self._index.finish(end, self._log_crc, state, aborted)
        body: list[Buffer] = [
            *self._parts,
            *filter(None, (made.postings, made.state)),
            made.tail,
        ]
        return BuiltPiece(body, made.footer, crc32c(made.tail))


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
