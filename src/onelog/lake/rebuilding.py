"""Batches of a partition from the rows of its table: what a cold read of a lakehouse stream gets.

Rules: nothing is read but the row groups of the offsets that were asked for. Every batch must have
the CRC of its frame. What was opened is kept for the next read, up to a bound.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from onelog.base.errors import ColdDamaged, ColdUnavailable, CorruptBatch, NotFound, OnelogError
from onelog.kernel import crc32c
from onelog.lake.framing import rebuild_group
from onelog.lake.storage import Storage
from onelog.objects.frames import FramedFile, FrameTable, decode_file
from onelog.objects.piece import IndexPart, decode_footer
from onelog.objects.postings import Buffer
from onelog.objects.rows import FOOTER_BYTES, Row
from onelog.objects.store import ObjectStore

OPENED_MAX: Final = 64
"""Frames and footers of files that are kept."""


class OpenedFrames(NamedTuple):
    """Frames that were read and checked."""

    part: IndexPart
    table: FrameTable
    file: FramedFile
    footer: pq.FileMetaData | None
    """None: the file has no rows."""


class RebuiltRun(NamedTuple):
    """Batches, and the offsets that they answer for."""

    first: int
    end: int
    parts: Iterator[bytes]


class Rebuilding:
    """Reads frames and rows. Any thread may call it."""

    def __init__(self, store: ObjectStore, storage: Storage) -> None:
        self._store = store
        self._storage = storage
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, OpenedFrames] = OrderedDict()

    def opened(self, row: Row) -> OpenedFrames:
        """The frames of a row. Raises NotFound, ColdDamaged, ColdUnavailable."""
        with self._lock:
            known = self._opened.get(row.object)
            if known is not None:
                self._opened.move_to_end(row.object)
                return known
        made = self._open(row)
        with self._lock:
            self._opened[row.object] = made
            if len(self._opened) > OPENED_MAX:
                self._opened.popitem(last=False)
        return made

    def forget(self, row: Row) -> None:
        """Read the frames again the next time."""
        with self._lock:
            self._opened.pop(row.object, None)

    def _open(self, row: Row) -> OpenedFrames:
        index, part = read_index(self._store, row)
        sizes = part.footer.frames
        file = decode_file(index, part.footer, row.object)
        assert sizes is not None
        start = row.position + sizes.raw_bytes
        data = self._store.get_range(row.object, start, sizes.batches_bytes)
        table = FrameTable.decode(data, row.object)
        footer = None
        if file.rows:
            with self._parquet(file, None) as parquet:
                footer = parquet.metadata
        return OpenedFrames(part, table, file, footer)

    def _parquet(self, file: FramedFile, footer: pq.FileMetaData | None) -> pq.ParquetFile:
        try:
            files, inner = self._storage.open(file.path)
            return pq.ParquetFile(
                files.open_input_file(inner), metadata=footer, pre_buffer=True, memory_map=False
            )
        except FileNotFoundError:
            raise NotFound(f"the file {file.path} of the table is gone") from None
        except (OSError, pa.ArrowException) as error:
            raise self._told(file, error) from error

    def _told(self, file: FramedFile, error: Exception) -> OnelogError:
        told = self._storage.told(file.path, error)
        if told is None and getattr(error, "errno", None) is None:
            return ColdDamaged(f"the file {file.path} of the table cannot be read: {error}")
        return ColdUnavailable(str(told or f"the file {file.path} cannot be read: {error}"))

    def run(self, row: Row, offset: int, size_bytes: int) -> RebuiltRun:
        """Batches from the group that holds `offset` on, at least `size_bytes` if there are."""
        found = self.opened(row)
        groups = found.file.groups
        if not groups:
            return RebuiltRun(row.base, row.end, iter(()))
        first = found.file.group_at(found.table.number_at(offset))
        last, gathered = first, 0
        while last < len(groups) and (last == first or gathered < size_bytes):
            gathered += groups[last].log_bytes
            last += 1
        begins = found.table.base(groups[first].first_batch) if first else row.base
        ends = found.table.base(groups[last].first_batch) if last < len(groups) else row.end
        return RebuiltRun(begins, ends, self._parts(row, found, first, last))

    def _parts(self, row: Row, found: OpenedFrames, first: int, last: int) -> Iterator[bytes]:
        groups = found.file.groups[first:last]
        start = row.position + groups[0].raw_position
        size = sum(group.raw_bytes for group in groups)
        raw = memoryview(self._store.get_range(row.object, start, size) if size else b"")
        parquet: pq.ParquetFile | None = None
        if any(group.rows for group in groups):
            parquet = self._parquet(found.file, found.footer)
        try:
            at = 0
            for number, group in enumerate(groups, first):
                kept = raw[at : at + group.raw_bytes]
                at += group.raw_bytes
                yield self._rebuilt(found, parquet, number, kept)
        finally:
            if parquet is not None:
                parquet.close()

    def _rebuilt(self, found: OpenedFrames, parquet: Any, number: int, raw: memoryview) -> bytes:
        try:
            return rebuild_group(parquet, found.table, found.file, number, raw)
        except CorruptBatch as error:
            raise ColdDamaged(
                f"row group {number} of {found.file.path} does not give its batches back: {error}"
            ) from error
        except (OSError, pa.ArrowException, ValueError) as error:
            raise self._told(found.file, error) from error


def read_index(store: ObjectStore, row: Row) -> tuple[Buffer, IndexPart]:
    """The index part of a row's frames, checked."""
    start = row.position + row.piece_bytes - row.index_bytes
    data = store.get_range(row.object, start, row.index_bytes)
    return data, IndexPart(data, row.object, row)


def row_of_frames(store: ObjectStore, name: str) -> Row:
    """The row of a frames object that no manifest names yet. Raises NotFound, ColdDamaged."""
    tail = store.get_suffix(name, FOOTER_BYTES)
    footer = decode_footer(tail, name)
    index = store.get_suffix(name, footer.index_bytes)
    part = IndexPart(index, name)
    file = decode_file(index, footer, name)
    sizes = footer.frames
    assert sizes is not None
    table = FrameTable.decode(store.get_range(name, sizes.raw_bytes, sizes.batches_bytes), name)
    return Row(
        base=footer.base,
        end=footer.end,
        log_bytes=footer.log_bytes,
        records=footer.records,
        min_timestamp_ms=footer.min_timestamp_ms,
        max_timestamp_ms=footer.max_timestamp_ms,
        created_ms=file.created_ms,
        kind="parquet",
        object=name,
        position=0,
        piece_bytes=footer.piece_bytes,
        index_bytes=part.footer.index_bytes,
        index_crc=crc32c(index),
        leader_epoch=table[len(table) - 1].leader_epoch if len(table) else 0,
        file=file.path,
    )
