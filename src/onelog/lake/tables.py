"""A table of a lakehouse, of any format: the interface that the sink uses.

Rules: a commit is one step, whole or not at all, and it carries its mark: which batch of which
query it was. A writer that loses a race gets `Conflict`, loads the table again and decides anew. No
library merges commits by itself, because the mark must be checked first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from onelog.base.errors import InvalidRequest
from onelog.lake.columns import check_types
from onelog.lake.file_rows import FileRows
from onelog.lake.options import TableOptions
from onelog.lake.partitions import PartitionField
from onelog.lake.writing import FileLayout, WrittenFile


@dataclass(frozen=True)
class TableFile:
    """A file of a table as it is now."""

    path: str
    rows: int
    handle: Any
    """The facts that the format needs to read or to remove the file."""


class LogPart(NamedTuple):
    """A partition of a stream whose history is in a table."""

    stream_id: str
    partition: int


COMMIT_ATTEMPTS = 10
"""How often a writer that loses a race loads the table again and decides anew."""
JOB = "job-"
"""The prefix of the query id of a single write, whose batch is never written again later."""


@dataclass(frozen=True)
class TableChange:
    """The changes of one commit."""

    query: str
    """Empty: no query writes it, and only `ends` are its marks."""
    batch: int
    added: Sequence[WrittenFile]
    removed: Sequence[TableFile] = field(default=())
    replaces_all: bool = False
    ends: Mapping[LogPart, int] = field(default_factory=dict)
    """How far each partition of a stream's log goes in the table after this commit."""


class LakeTable(ABC):
    """A table, loaded at one moment."""

    @property
    @abstractmethod
    def layout(self) -> FileLayout:
        """How its files are written."""

    @abstractmethod
    def mark(self, query: str) -> int | None:
        """The last batch of a query that the table holds."""

    def end_of(self, part: LogPart) -> int | None:
        """How far a partition of a stream goes in the table; None: it has no records there."""
        del part
        return None

    @abstractmethod
    def commit(self, change: TableChange) -> None:
        """Commit a change. Raises Conflict when the table has changed since it was loaded."""

    @abstractmethod
    def files(self) -> list[TableFile]:
        """The files that make up the table."""

    @abstractmethod
    def rows_of(self, file: TableFile, columns: Sequence[str] | None = None) -> FileRows:
        """The rows of a file under the table's present schema."""

    def bounds(self, file: TableFile, field: pa.Field) -> tuple[pa.Scalar, pa.Scalar] | None:
        """Values that no row of a file is below or above in a column; None: not known."""
        del file, field
        return None

    def has_deletes(self, file: TableFile) -> bool:
        """Whether another engine marked rows of a file as deleted beside it."""
        del file
        return False

    def read(self, file: TableFile, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file, here and now."""
        return self.rows_of(file, columns).read()

    def wanted(self, columns: Sequence[str] | None) -> pa.Schema:
        """The table's schema, or some columns of it."""
        schema = self.layout.schema
        return schema if columns is None else pa.schema([schema.field(one) for one in columns])


def stored_columns(options: TableOptions, rows: pa.Schema) -> pa.Schema:
    """The columns of the rows that the table is to have."""
    left_out = {options.error_column, options.delete_column}
    kept = [
        one.with_nullable(one.name not in {*options.keys, *options.required} and one.nullable)
        for one in rows
        if one.name not in left_out
    ]
    return pa.schema(kept)


def check_columns(options: TableOptions, table: pa.Schema, rows: pa.Schema) -> None:
    """Refuse what cannot work, before the first row."""
    check_types(table, rows, options.table)
    asked = {
        "keys": options.keys,
        "orderBy": options.order_by,
        "required": options.required,
        "partitionBy": tuple(part.source for part in options.partitions),
    }
    for option, names in asked.items():
        for name in names:
            if table.get_field_index(name) < 0:
                raise InvalidRequest(
                    f"{option}: the table {options.table} has no column {name}, only "
                    f"{', '.join(table.names)}"
                )
    if options.delete_column is not None and rows.get_field_index(options.delete_column) < 0:
        raise InvalidRequest(f"deleteColumn: the rows have no column {options.delete_column}")
    extra = [name for name in stored_columns(options, rows).names if name not in table.names]
    if extra:
        raise InvalidRequest(
            f"the rows have {', '.join(extra)}, which the table {options.table} has not: "
            "set evolve=true, or drop it from the rows"
        )
    missing = [one.name for one in table if not one.nullable and one.name not in rows.names]
    if missing:
        raise InvalidRequest(
            f"the table {options.table} requires {', '.join(missing)}, which the rows do"
            " not have: add the columns"
        )


def check_partitions(options: TableOptions, have: tuple[PartitionField, ...]) -> None:
    """Refuse to divide a table otherwise than it is."""
    if options.partitions and options.partitions != have:
        raise InvalidRequest(
            f"partitionBy: the table {options.table} is partitioned by "
            f"{', '.join(map(str, have)) or 'nothing'} already: drop the option, or change the "
            "table itself"
        )
