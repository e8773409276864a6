"""One file of a table, with everything that a task needs to read it without the catalog.

Rules: columns of Iceberg are found by field id, those of other formats by name. A column that the
file does not have gets the value of its partition, or null. A large file is read in parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onelog.lake.projection import file_columns, projected
from onelog.lake.storage import Storage


@dataclass(frozen=True)
class FileRows:
    """A file, and the columns that are wanted of it."""

    storage: Storage
    path: str
    bytes: int
    schema: pa.Schema
    by_id: bool = False
    partition: dict[str, Any] = field(default_factory=dict)
    """Columns that are not in the file; a text stands for a value of any type."""

    def read(self) -> pa.Table:
        """All rows at once."""
        with self._opened() as parquet:
            rows = parquet.read(columns=self._columns(parquet))
            return self._fitted(rows, parquet.metadata.num_rows)

    def parts(self, column: str = "", low: int = 0, high: int = 0) -> Iterator[pa.Table]:
        """The rows of one row group after the other; with `column`, without groups whose
        statistics say that it has no value from `low` to before `high` there."""
        with self._opened() as parquet:
            columns = self._columns(parquet)
            at = self._leaf(parquet, column) if column else None
            for number in range(parquet.num_row_groups):
                if at is not None and _is_outside(parquet, number, at, low, high):
                    continue
                rows = parquet.read_row_group(number, columns=columns)
                yield self._fitted(rows, parquet.metadata.row_group(number).num_rows)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        files, inner = self.storage.open(self.path)
        with files.open_input_file(inner) as source, pq.ParquetFile(source) as parquet:
            yield parquet

    def _columns(self, parquet: pq.ParquetFile) -> list[str]:
        if self.by_id:
            return file_columns(parquet.schema_arrow, self.schema)
        there = set(parquet.schema_arrow.names) - set(self.partition)
        return [name for name in self.schema.names if name in there]

    def _leaf(self, parquet: pq.ParquetFile, column: str) -> int | None:
        """The number of a plain column in the file."""
        schema = pa.schema([self.schema.field(column)])
        names = file_columns(parquet.schema_arrow, schema) if self.by_id else [column]
        for number in range(parquet.metadata.num_columns):
            if [parquet.metadata.schema.column(number).path] == names:
                return number
        return None

    def _fitted(self, rows: pa.Table, count: int) -> pa.Table:
        if self.by_id:
            return projected(rows, self.schema)
        made = [
            rows.column(one.name).cast(one.type)
            if one.name in rows.column_names
            else _repeated(self.partition.get(one.name), one.type, count)
            for one in self.schema
        ]
        return pa.Table.from_arrays(made, schema=self.schema)


def _is_outside(parquet: pq.ParquetFile, group: int, column: int, low: int, high: int) -> bool:
    told = parquet.metadata.row_group(group).column(column).statistics
    if told is None or not told.has_min_max:
        return False
    return bool(told.max < low or told.min >= high)


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(value, str):
        return pa.repeat(pa.scalar(value, pa.string()), count).cast(kind)
    return pa.repeat(pa.scalar(value, kind), count)
