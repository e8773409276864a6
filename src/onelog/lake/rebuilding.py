"""Batches of a partition from the rows of its table: what a cold read of a lakehouse stream gets.

Rules: nothing is read but the row groups of the offsets that were asked for. Every batch must have
the CRC of its frame. What was opened is kept for the next read, up to a bound.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from onelog.base.errors import ColdDamaged, ColdUnavailable, CorruptBatch, NotFound, OnelogError
from onelog.kernel import crc32c
from onelog.lake.framing import rebuild_group
from onelog.lake.storage import Storage
from onelog.objects.frames import FramedFile, FrameTable, RowGroup, decode_file
from onelog.objects.piece import IndexPart, decode_footer, decode_state
from onelog.objects.postings import Buffer
from onelog.objects.rows import FOOTER_BYTES, Row
from onelog.objects.store import ObjectStore

OPENED_MAX: Final = 64
"""Frames and footers of files that are kept."""
_TAIL_BYTES: Final = 64 * 1024
"""Arrow reads so much at the end of a file to find its footer."""


class FileWindow:
    """A part of a file, at its place in it: what Arrow reads row groups from."""

    closed = False

    def __init__(self, data: memoryview, start: int, size: int) -> None:
        self._data = data
        self._start = start
        self._size = size
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place of the file."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """The place of now."""
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Bytes of the part, not copied; none that lie outside of it."""
        first = self._at - self._start
        last = len(self._data) if size < 0 else first + size
        found = self._data[first:last] if first >= 0 else self._data[:0]
        self._at += len(found)
        return found

    def close(self) -> None:
        """The bytes go with whoever read them."""

    def readable(self) -> bool:
        """It is."""
        return True

    seekable = readable

    def writable(self) -> bool:
        """It is not."""
        return False


class OpenedFrames(NamedTuple):
    """Frames that were read and checked."""

    part: IndexPart
    table: FrameTable
    file: FramedFile
    footer: pq.FileMetaData | None
    """None: the file has no rows, or was not opened."""


class RebuiltRun(NamedTuple):
    """Batches, and the offsets that they answer for."""

    first: int
    end: int
    parts: Iterator[bytes]


class Rebuilding:
    """Reads frames and rows. Any thread may call it."""

    def __init__(self, store: ObjectStore, access: Callable[[], Storage]) -> None:
        """`access` says how files are reached now."""
        self._store = store
        self._access = access
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
        frames = read_frames(self._store, row)
        if frames.file.rows:
            with self._parquet(frames.file, None) as parquet:
                return frames._replace(footer=parquet.metadata)
        return frames

    def _parquet(
        self,
        file: FramedFile,
        footer: pq.FileMetaData | None,
        groups: Sequence[RowGroup] = (),
    ) -> pq.ParquetFile:
        """The file; of one in our own store, neighbouring groups come by one get, and so does the
        footer."""
        name = self._name_of(file.path)
        try:
            if name and (groups or footer is None):
                start, end = _place_of(file, groups)
                data = self._store.get_range(name, start, end - start)
                window = FileWindow(memoryview(data), start, file.size_bytes)
                return pq.ParquetFile(window, metadata=footer, pre_buffer=False)
            files, inner = self._access().open(file.path)
            return pq.ParquetFile(
                files.open_input_file(inner), metadata=footer, pre_buffer=True, memory_map=False
            )
        except FileNotFoundError:
            raise NotFound(f"the file {file.path} of the table is gone") from None
        except (OSError, pa.ArrowException) as error:
            raise self._told(file, error) from error

    def _name_of(self, path: str) -> str:
        """The name of a file in our store; empty: it lies elsewhere."""
        root = f"{self._store.url.rstrip('/')}/"
        return path.removeprefix(root) if path.startswith(root) else ""

    def _told(self, file: FramedFile, error: Exception) -> OnelogError:
        told = self._access().told(file.path, error)
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
        filled = [group for group in groups if group.rows]
        if filled:
            parquet = self._parquet(found.file, found.footer, filled)
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


def _place_of(file: FramedFile, groups: Sequence[RowGroup]) -> tuple[int, int]:
    """Where neighbouring groups lie in their file; of none: where Arrow looks for the footer."""
    if groups:
        return groups[0].position, groups[-1].position + groups[-1].size_bytes
    return max(0, min(file.footer_position, file.size_bytes - _TAIL_BYTES)), file.size_bytes


def read_index(store: ObjectStore, row: Row) -> tuple[Buffer, IndexPart]:
    """The index part of a row's frames, checked."""
    start = row.position + row.piece_bytes - row.index_bytes
    data = store.get_range(row.object, start, row.index_bytes)
    return data, IndexPart(data, row.object, row)


def read_frames(store: ObjectStore, row: Row) -> OpenedFrames:
    """The frames of a row, without its file."""
    index, part = read_index(store, row)
    sizes = part.footer.frames
    file = decode_file(index, part.footer, row.object)
    assert sizes is not None
    start = row.position + sizes.raw_bytes
    data = store.get_range(row.object, start, sizes.batches_bytes)
    return OpenedFrames(part, FrameTable.decode(data, row.object), file, None)


def state_of(store: ObjectStore, row: Row, part: IndexPart) -> bytes:
    """The derived state as of the end of a row."""
    place = part.footer.state
    data = store.get_range(row.object, row.position + place.position, place.size_bytes)
    return decode_state(data, part.footer, row.object)


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
