"""Building the frames of a Parquet file, batch by batch.

Rules: batches come in order, as they will be rebuilt. A raw batch is kept as a borrowed buffer
until the frames are written.
"""

from __future__ import annotations

from collections.abc import Iterable

from onelog.base.errors import InvalidRequest
from onelog.kernel import PLACE_ROWS, BatchInfo, crc32c
from onelog.objects.frames import BatchFrame, FramedFile, FrameTable, RowGroup, encode_file
from onelog.objects.index_building import PieceIndex
from onelog.objects.piece import AbortedSpan, FrameSizes
from onelog.objects.piece_building import BuiltPiece
from onelog.objects.postings import Buffer
from onelog.objects.rows import LOG_BYTES_MAX


class FramesBuilder:
    """Collects the frames of the batches of one piece, which begins at `base`."""

    def __init__(self, base: int, *, index_topics: bool) -> None:
        self._index = PieceIndex(base, index_topics=index_topics)
        self._frames: list[BatchFrame] = []
        self._raw: list[Buffer] = []
        self._raw_bytes = self._raw_crc = 0
        self._rows = 0
        self._groups: list[RowGroup] = []
        self._began = (0, 0, 0, 0)
        """Batches, rows, raw bytes and log bytes before the group at hand."""
        self._numbers = 0

    @property
    def log_bytes(self) -> int:
        """Bytes of the batches so far, as they will be rebuilt."""
        return self._index.log_bytes

    @property
    def rows(self) -> int:
        """Rows of the file so far."""
        return self._rows

    @property
    def leader_epoch(self) -> int:
        """The epoch of the last batch."""
        return self._index.leader_epoch

    def add(self, info: BatchInfo, crc: int, place: int, raw: Buffer | None = None) -> BatchFrame:
        """The next batch as it will be read; `raw` are its bytes unless it is rebuilt from rows."""
        if self.log_bytes + info.size_bytes > LOG_BYTES_MAX:
            raise InvalidRequest(f"a piece holds at most {LOG_BYTES_MAX} bytes of batches")
        assert (raw is None) == (place == PLACE_ROWS)
        frame = BatchFrame(
            info.base_offset,
            info.last_offset - info.base_offset,
            info.count,
            info.leader_epoch,
            info.attributes & 0xFFFF,
            info.base_timestamp_ms,
            info.max_timestamp_ms,
            info.producer_id,
            info.producer_epoch,
            info.base_sequence,
            crc,
            self._rows,
            place,
        )
        self._index.note(info)
        self._frames.append(frame)
        self._rows += frame.rows
        if raw is not None:
            self._raw.append(raw)
            self._raw_bytes += info.size_bytes
            self._raw_crc = crc32c(raw, self._raw_crc)
        return frame

    def add_pairs(self, topics: Buffer, base: int) -> None:
        """Add u32 pairs (topic hash, offset - `base`)."""
        self._index.add_pairs(topics, base)

    def end_group(self) -> RowGroup:
        """The batches since the last group are one; `place_groups` says where its rows lie."""
        batches, rows, raw, log = self._began
        group = RowGroup(
            batches,
            rows,
            self._rows - rows,
            self._numbers,
            0,
            0,
            raw,
            self._raw_bytes - raw,
            self.log_bytes - log,
        )
        self._groups.append(group)
        self._numbers += bool(group.rows)
        self._began = (len(self._frames), self._rows, self._raw_bytes, self.log_bytes)
        return group

    def place_groups(self, places: Iterable[tuple[int, int]]) -> None:
        """Say where the row groups with rows lie in the file: known when the file is whole."""
        known = iter(places)
        placed = []
        for group in self._groups:
            position, size_bytes = next(known) if group.rows else (0, 0)
            placed.append(
                RowGroup(
                    group.first_batch, group.first_row, group.rows, group.number, position,
                    size_bytes, group.raw_position, group.raw_bytes, group.log_bytes,
                )
            )  # fmt: skip
        self._groups = placed

    def written(self) -> tuple[FrameTable, FramedFile, memoryview]:
        """What was gathered, as a reader would find it: the frames, the groups, the raw batches."""
        file = FramedFile("", 0, 0, self._rows, 0, tuple(self._groups))
        return FrameTable(self._frames), file, memoryview(b"".join(self._raw))

    def finish(
        self,
        end: int,
        *,
        path: str,
        file_bytes: int,
        footer_position: int,
        created_ms: int,
        state: bytes = b"",
        aborted: Iterable[AbortedSpan] = (),
    ) -> BuiltPiece:
        """The frames of the offsets from `base` to `end`, whose rows lie in the file `path`."""
        assert self._began[0] == len(self._frames), "the last group was not ended"
        table = FrameTable(self._frames).encode()
        file = encode_file(
            FramedFile(
                path, file_bytes, footer_position, self._rows, created_ms, tuple(self._groups)
            )
        )
        sizes = FrameSizes(self._raw_bytes, len(table), len(file))
        made = self._index.finish(end, self._raw_crc, state, aborted, sizes, file)
        body: list[Buffer] = [
            *self._raw,
            table,
            *filter(None, (made.postings, made.state)),
            made.tail,
        ]
        return BuiltPiece(body, made.footer, crc32c(made.tail))
