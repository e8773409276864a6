"""The work of tasks: they write rows to Parquet files and report the files to the driver.

Rules: a file of a task belongs to no table until the driver's commit names it. Rows are gathered
into row groups of a useful size, whatever the size of the batches they came in. The files that are
open at a time are bounded; beyond that the fullest one is closed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onelog.lake.partitions import PartitionField, transformed
from onelog.lake.storage import Storage, make_folder

GROUP_BYTES = 32 << 20
GROUP_ROWS = 1 << 20
OPEN_FILES_MAX = 32
SAMPLE_ROWS = 1024
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class FileLayout:
    """How the files of a table are written; made by the driver, sent to the tasks."""

    schema: pa.Schema
    directory: str
    storage: Storage
    partitions: tuple[PartitionField, ...] = ()
    keeps_partition_columns: bool = True
    partition_folders: bool = True
    compression: str = "zstd"
    file_bytes: int = 512 << 20
    version: tuple[int, int] = (0, 0)
    """Iceberg: the schema and the partition specification that files are written under."""

    def file_schema(self) -> pa.Schema:
        """The columns that a file holds."""
        if self.keeps_partition_columns:
            return self.schema
        left_out = {part.source for part in self.partitions}
        return pa.schema([one for one in self.schema if one.name not in left_out])


@dataclass(frozen=True)
class WrittenFile:
    """A whole file that no table has yet."""

    path: str
    bytes: int
    footer: pq.FileMetaData
    partition: tuple[Any, ...] = ()
    version: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return int(self.footer.num_rows)


@dataclass
class _OpenFile:
    path: str
    partition: tuple[Any, ...]
    writer: pq.ParquetWriter
    out: Any
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0

    def write_group(self) -> None:
        if self.waiting:
            self.writer.write_table(pa.concat_tables(self.waiting), row_group_size=GROUP_ROWS)
        self.waiting, self.waiting_bytes, self.waiting_rows = [], 0, 0


class FileWriter:
    """Writes rows into files of one table; `close` gives the files, `discard` removes them."""

    def __init__(self, layout: FileLayout) -> None:
        self._layout = layout
        self._files, self._root = layout.storage.open(layout.directory)
        self._schema = layout.file_schema()
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._written: list[WrittenFile] = []

    def write(self, rows: pa.Table) -> None:
        """Take rows that have the table's columns, in any number."""
        if not rows.num_rows:
            return
        for partition, part in self._divided(rows):
            opened = self._open.get(partition)
            if opened is None:
                opened = self._begin(partition, part)
            opened.waiting.append(part)
            opened.waiting_bytes += part.nbytes
            opened.waiting_rows += part.num_rows
            if opened.waiting_bytes >= GROUP_BYTES or opened.waiting_rows >= GROUP_ROWS:
                opened.write_group()
                if opened.out.tell() >= self._layout.file_bytes:
                    self._finish(partition)

    def close(self) -> list[WrittenFile]:
        """Finish every file."""
        for partition in list(self._open):
            self._finish(partition)
        return self._written

    def discard(self) -> None:
        """Remove the written files: the driver does not know of them."""
        for opened in self._open.values():
            with contextlib.suppress(Exception):
                opened.writer.close()
                opened.out.close()
        paths = [one.path for one in self._open.values()] + [one.path for one in self._written]
        for path in paths:
            with contextlib.suppress(OSError):
                files, inner = self._layout.storage.open(path)
                files.delete_file(inner)
        self._open, self._written = {}, []

    def _divided(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """The rows by partition, without the columns that files leave out."""
        parts = self._layout.partitions
        # The columns as files have them: what may be null is the table's to say, not the rows'.
        columns = [rows.column(name) for name in self._schema.names]
        kept = pa.Table.from_arrays(columns, schema=self._schema)
        if not parts:
            yield (), kept
            return
        names = [f"p{number}" for number in range(len(parts))]
        values = [transformed(part, rows.column(part.source).combine_chunks()) for part in parts]
        keys = pa.table([*values, pa.array(range(rows.num_rows), pa.int64())], [*names, "row"])
        groups = keys.group_by(names, use_threads=False).aggregate([("row", "list")])
        for number in range(groups.num_rows):
            partition = tuple(groups.column(name)[number].as_py() for name in names)
            yield partition, kept.take(groups.column("row_list")[number].values)

    def _begin(self, partition: tuple[Any, ...], sample: pa.Table) -> _OpenFile:
        if len(self._open) >= OPEN_FILES_MAX:
            self._finish(max(self._open, key=lambda one: self._open[one].waiting_bytes))
        folder = self._layout.directory
        if self._layout.partition_folders:
            pairs = zip(self._layout.partitions, partition, strict=True)
            folder = "/".join([folder, *(f"{p.name}={folder_name(v)}" for p, v in pairs)])
        path = f"{folder}/{uuid.uuid4().hex}.parquet"
        inner = self._layout.storage.open(path)[1]
        make_folder(self._files, inner.rsplit("/", 1)[0])
        out = self._files.open_output_stream(inner)
        writer = pq.ParquetWriter(
            out,
            self._schema,
            compression=self._layout.compression,
            compression_level=1 if self._layout.compression == "zstd" else None,
            use_dictionary=repeating(sample),
            store_schema=False,
        )
        opened = self._open[partition] = _OpenFile(path, partition, writer, out)
        return opened

    def _finish(self, partition: tuple[Any, ...]) -> None:
        opened = self._open[partition]
        opened.write_group()
        opened.writer.close()
        size = opened.out.tell()
        opened.out.close()
        del self._open[partition]
        footer = opened.writer.writer.metadata
        self._written.append(
            WrittenFile(opened.path, size, footer, partition, self._layout.version)
        )


def folder_name(value: object) -> str:
    """A partition value as the name of a folder."""
    return NULL_PARTITION if value is None else quote(str(value), safe="")


def _sampled(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    head = rows.slice(0, SAMPLE_ROWS)
    yield from zip(rows.column_names, head.columns, strict=True)


def repeating(rows: pa.Table) -> list[str]:
    """Columns whose values repeat: only those gain from a dictionary, the others pay for it."""
    return [
        name
        for name, column in _sampled(rows)
        if not pa.types.is_nested(column.type)
        and pc.count_distinct(column).as_py() * 2 <= len(column)
    ]
