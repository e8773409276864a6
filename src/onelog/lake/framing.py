"""Record batches of a partition become a Parquet file and its frames.

Rules: a batch whose rows rebuild it byte by byte is in the rows only. One that they rebuild to the
same records, but to other bytes, is so, too, if it was compressed or has the broker's time. Every
other batch is kept raw in the frames, and its committed records are rows as well as they can be.
Control batches, aborted transactions and empty batches are raw and have no rows. The finished file
is read back and every batch is rebuilt from it: what is not proved here is not told to anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onelog.base.errors import ColdDamaged, CorruptBatch, InvalidRequest, MessageTooLarge
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_LOG_APPEND_TIME,
    FRAME,
    HEADER_BYTES,
    PLACE_BOTH,
    PLACE_RAW,
    PLACE_ROWS,
    WITH_HEADERS,
    WITH_KEYS,
    WITH_OFFSETS,
    WITH_TIMESTAMPS,
    WITH_TOPICS,
    WITH_VALUES,
    BatchInfo,
    Columns,
    batch_topics,
    decode_columns,
    rebuild_batches,
    scan_batches,
)
from onelog.kernel.types import PREFIX_BYTES
from onelog.lake.arrow import MILLIS_MAX, kernel_columns
from onelog.lake.log_rows import RowMaker
from onelog.lake.log_table import (
    GROUP_BYTES,
    GROUP_ROWS,
    REBUILT_FROM,
    group_places,
    log_writer,
)
from onelog.objects.aborted_batches import AbortedBatches
from onelog.objects.frames import FramedFile, FrameTable
from onelog.objects.frames_building import FramesBuilder
from onelog.objects.piece import AbortedSpan
from onelog.objects.piece_building import BuiltPiece
from onelog.record.batch import inflated_records

ALL: Final = WITH_OFFSETS | WITH_TIMESTAMPS | WITH_KEYS | WITH_VALUES | WITH_HEADERS | WITH_TOPICS
_OFFSET_MAX: Final = (1 << 63) - 1
_CRC: Final = slice(17, 21)


class FramedRows(NamedTuple):
    """A finished file, proved, and its frames."""

    frames: BuiltPiece
    footer: pq.FileMetaData
    size_bytes: int
    rows: int
    leader_epoch: int


class _Batch(NamedTuple):
    info: BatchInfo
    data: memoryview
    inflated: bytes | None
    """Its records, if they were compressed."""


class Framing:
    """Writes one file, and gathers its frames."""

    def __init__(
        self,
        base: int,
        path: Path,
        maker: RowMaker,
        *,
        index_topics: bool,
        aborted: Sequence[AbortedSpan] = (),
    ) -> None:
        self._path = path
        self._maker = maker
        self._index_topics = index_topics
        self._aborted = tuple(aborted)
        self._ranges = AbortedBatches(aborted)
        self._builder = FramesBuilder(base, index_topics=index_topics)
        self._writer = log_writer(str(path), maker.schema)
        self._waiting: list[_Batch] = []
        self._waiting_bytes = self._waiting_rows = 0

    def add(self, data: memoryview, batches: Iterable[BatchInfo]) -> None:
        """The next batches, which lie in `data`; it stays in use until `finish`."""
        for info in batches:
            batch = data[info.position : info.position + info.size_bytes]
            try:
                inflated = inflated_records(data, info)
            except (CorruptBatch, MessageTooLarge):
                inflated = None  # decoding it will say the same, and it is kept raw
            self._waiting.append(_Batch(info._replace(position=0), batch, inflated))
            self._waiting_bytes += info.size_bytes if inflated is None else len(inflated)
            self._waiting_rows += info.count
            if self._waiting_bytes >= GROUP_BYTES or self._waiting_rows >= GROUP_ROWS:
                self._write_group()

    def finish(self, end: int, path: str, *, created_ms: int = 0, state: bytes = b"") -> FramedRows:
        """The file, proved; it will lie at `path` for its table. Raises ColdDamaged."""
        self._write_group()
        self._writer.close()
        footer: pq.FileMetaData = self._writer.writer.metadata
        size = self._path.stat().st_size
        self._builder.place_groups(group_places(footer))
        frames = self._builder.finish(
            end,
            path=path,
            file_bytes=size,
            footer_position=size - 8 - footer.serialized_size,
            created_ms=created_ms,
            state=state,
            aborted=self._aborted,
        )
        self._prove()
        return FramedRows(frames, footer, size, self._builder.rows, self._builder.leader_epoch)

    def discard(self) -> None:
        """Give the file up."""
        self._writer.close()
        self._path.unlink(missing_ok=True)

    def _write_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = self._waiting_rows = 0
        if not waiting:
            return
        shown = [batch for batch in waiting if self._is_shown(batch.info)]
        columns = self._decoded(shown)
        if columns is None:
            shown = [batch for batch in shown if self._decoded([batch]) is not None]
            columns = self._decoded(shown)
            assert columns is not None
        odd = _odd_rows(columns)
        rebuilt = dict(_rebuilt(shown, columns, odd))
        for batch in waiting:
            self._note(batch, rebuilt)
        group = self._builder.end_group()
        if group.rows:
            flags = [
                (batch.info.count, bool(batch.info.attributes & ATTR_LOG_APPEND_TIME))
                for batch in shown
            ]
            rows = self._maker.rows(columns, flags)
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def _is_shown(self, info: BatchInfo) -> bool:
        return bool(
            info.count and not info.attributes & ATTR_CONTROL and not self._ranges.has(info)
        )

    @staticmethod
    def _decoded(batches: Sequence[_Batch]) -> Columns | None:
        pieces = [(batch.data, 0, batch.inflated) for batch in batches]
        try:
            return decode_columns(pieces, 0, _OFFSET_MAX, ALL)
        except (CorruptBatch, InvalidRequest):
            return None

    def _note(self, batch: _Batch, rebuilt: dict[int, memoryview | None]) -> None:
        info = batch.info
        known = info.base_offset in rebuilt
        made = rebuilt.get(info.base_offset)
        if made is not None:
            plain = info._replace(
                attributes=info.attributes & ~ATTR_CODEC_MASK, size_bytes=len(made)
            )
            self._builder.add(plain, _crc_of(made), PLACE_ROWS)
        else:
            place = PLACE_BOTH if known else PLACE_RAW
            self._builder.add(info, _crc_of(batch.data), place, batch.data)
        if self._index_topics and not info.attributes & ATTR_CONTROL and info.count:
            try:
                pairs = batch_topics(batch.data, 0, batch.inflated)
            except (CorruptBatch, InvalidRequest):
                return
            if pairs:
                self._builder.add_pairs(pairs, info.base_offset)

    def _prove(self) -> None:
        """Rebuild every batch from the finished file."""
        table, file, raw = self._builder.written()
        try:
            with pq.ParquetFile(self._path) as parquet:
                for number in range(len(file.groups)):
                    rebuild_group(parquet, table, file, number, raw_of(raw, file, number))
        except CorruptBatch as error:
            raise ColdDamaged(
                f"the Parquet file of offsets from {table.base(0)} on does not give its batches"
                f" back ({error}): the segments stay; try again, and check this machine's memory"
                " and disk"
            ) from error


def raw_of(raw: memoryview, file: FramedFile, number: int) -> memoryview:
    """The raw batches of a group."""
    group = file.groups[number]
    return raw[group.raw_position : group.raw_position + group.raw_bytes]


def rebuild_group(
    parquet: pq.ParquetFile | None,
    table: FrameTable,
    file: FramedFile,
    number: int,
    raw: bytes | memoryview,
) -> bytes:
    """The batches of one group, the CRC of each checked. Raises CorruptBatch."""
    group = file.groups[number]
    last = file.groups[number + 1].first_batch if number + 1 < len(file.groups) else len(table)
    columns = EMPTY
    if group.rows:
        assert parquet is not None
        rows = parquet.read_row_group(group.number, columns=list(REBUILT_FROM), use_threads=False)
        columns = kernel_columns(rows)
    packed = table.packed(group.first_batch, last)
    return rebuild_batches(packed, columns, group.first_row, raw, True)


EMPTY: Final = decode_columns([], 0, 1, ALL)


def _crc_of(batch: memoryview) -> int:
    return int.from_bytes(batch[_CRC], "big")


def _odd_rows(columns: Columns) -> np.ndarray:
    """Which rows a table cannot hold exactly: times, and names of headers that are no text."""
    assert columns.timestamps is not None and columns.headers is not None
    times = np.frombuffer(columns.timestamps, np.int64, columns.count)
    odd = (times > MILLIS_MAX) | (times < -MILLIS_MAX)
    lists, ends, names = columns.headers[:3]
    array = pa.Array.from_buffers(
        pa.string(), len(ends) // 4 - 1, [None, pa.py_buffer(ends), pa.py_buffer(names)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        starts = np.frombuffer(lists, np.int32)
        for at, name in enumerate(array.cast(pa.binary()).to_pylist()):
            if not _is_text(name):
                odd[np.searchsorted(starts, at, side="right") - 1] = True
    return odd


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rebuilt(
    shown: Sequence[_Batch], columns: Columns, odd: np.ndarray
) -> Iterator[tuple[int, memoryview | None]]:
    """Base offset and rebuilt bytes of each batch; None: the rows do not rebuild it."""
    row, packed = 0, []
    for batch in shown:
        packed.append(_packed(batch.info, row))
        row += batch.info.count
    try:
        made = memoryview(rebuild_batches(b"".join(packed), columns, 0, b"", False))
    except CorruptBatch:  # one of them would be too large
        if len(shown) == 1:
            yield shown[0].info.base_offset, None
            return
        row = 0
        for batch in shown:
            alone = decode_columns([(batch.data, 0, batch.inflated)], 0, _OFFSET_MAX, ALL)
            yield from _rebuilt([batch], alone, odd[row : row + batch.info.count])
            row += batch.info.count
        return
    row = position = 0
    for batch in shown:
        count = batch.info.count
        size = PREFIX_BYTES + int.from_bytes(made[position + 8 : position + 12], "big")
        part = made[position : position + size]
        is_odd = bool(odd[row : row + count].any())
        yield batch.info.base_offset, None if is_odd or not _is_same(batch, part) else part
        row += count
        position += size


def _packed(info: BatchInfo, row: int) -> bytes:
    return FRAME.pack(
        info.base_offset,
        info.base_timestamp_ms,
        info.max_timestamp_ms,
        info.producer_id,
        info.last_offset - info.base_offset,
        info.count,
        info.leader_epoch,
        info.base_sequence,
        0,
        row,
        info.attributes & 0xFFFF & ~ATTR_CODEC_MASK,
        info.producer_epoch,
        PLACE_ROWS,
    )


def _is_same(batch: _Batch, made: memoryview) -> bool:
    """Whether a rebuilt batch may stand for the one that was written."""
    if batch.inflated is None and batch.data == made:
        return True
    if batch.inflated is not None and made[HEADER_BYTES:] == batch.inflated:
        return True
    if not batch.info.attributes & ATTR_LOG_APPEND_TIME:
        return False
    try:
        scan_batches(made)
        again = decode_columns([(made, 0, None)], 0, _OFFSET_MAX, ALL)
    except CorruptBatch:
        return False
    return again == decode_columns([(batch.data, 0, batch.inflated)], 0, _OFFSET_MAX, ALL)
