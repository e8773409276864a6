"""Delta tables by delta-rs: no jar.

Rules: the mark of a query is Delta's own application transaction, written in the commit that it
belongs to. Partition values stand in the log only; files lie side by side. A commit that finds a
newer version than the loaded one fails and is decided anew: delta-rs would try again without
looking at the mark.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from onelog.base.errors import Conflict, InvalidRequest
from onelog.lake.columns import small_schema
from onelog.lake.file_rows import FileRows
from onelog.lake.options import TableOptions
from onelog.lake.partitions import PartitionField
from onelog.lake.tables import (
    LakeTable,
    LogPart,
    TableChange,
    TableFile,
    check_columns,
    check_partitions,
    stored_columns,
)
from onelog.lake.writing import FileLayout, WrittenFile

STATISTIC_CHARS = 32


def open_delta(options: TableOptions, rows: pa.Schema | None) -> DeltaLake:
    """The table as it is; with rows to come it is made or given their columns first."""
    where = options.storage.for_delta() or None
    try:
        table = DeltaTable(options.table, storage_options=where)
    except TableNotFoundError:
        if rows is None:
            raise InvalidRequest(f"{options.table} holds no Delta table: check table") from None
        table = _create(options, stored_columns(options, rows), where)
    _check_features(table, options)
    if rows is not None:
        if options.evolve:
            table = _evolve(table, options, stored_columns(options, rows))
        check_columns(options, _arrow_schema(table), rows)
        have = tuple(PartitionField(name) for name in table.metadata().partition_columns)
        check_partitions(options, have)
    return DeltaLake(table, options)


def _check_features(table: DeltaTable, options: TableOptions) -> None:
    """Refuse what another engine made that cannot be read by name and file alone."""
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise InvalidRequest(
            f"{options.table} maps its columns (delta.columnMapping.mode={mapping}), which is not "
            "known here: write it with Delta's own jar"
        )
    if pa.table(table.deletion_vectors()).num_rows:
        raise InvalidRequest(
            f"{options.table} has deletion vectors of another engine, which cannot be read here: "
            "let that engine purge them first (REORG TABLE … APPLY (PURGE))"
        )


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return small_schema(pa.schema(table.schema().to_arrow()))


def _create(options: TableOptions, schema: pa.Schema, where: dict[str, str] | None) -> DeltaTable:
    return DeltaTable.create(
        options.table,
        Schema.from_arrow(pa.schema([one.remove_metadata() for one in schema])),
        mode="ignore",
        partition_by=[part.source for part in options.partitions],
        configuration=dict(options.properties),
        storage_options=where,
    )


def _evolve(table: DeltaTable, options: TableOptions, rows: pa.Schema) -> DeltaTable:
    """Add the columns that the table lacks; types stay, and rows that do not fit are bad rows."""
    have = _arrow_schema(table)
    fresh = [
        one.remove_metadata().with_nullable(True) for one in rows if one.name not in have.names
    ]
    if not fresh:
        return table
    fields: list[Field] = list(Schema.from_arrow(pa.schema(fresh)).fields)
    try:
        table.alter.add_columns(fields)
    except DeltaError:
        # Another writer added them; what is still missing is said by the check.
        return DeltaTable(options.table, storage_options=options.storage.for_delta() or None)
    return table


class DeltaLake(LakeTable):
    """A Delta table at one version."""

    def __init__(self, table: DeltaTable, options: TableOptions) -> None:
        self._table = table
        self._options = options

    @property
    def inner(self) -> DeltaTable:
        """The table as delta-rs has it."""
        return self._table

    @property
    def layout(self) -> FileLayout:
        """Files side by side, without the partition columns."""
        parts = tuple(PartitionField(one) for one in self._table.metadata().partition_columns)
        return FileLayout(
            schema=_arrow_schema(self._table),
            directory=self._options.table.rstrip("/"),
            storage=self._options.storage,
            partitions=parts,
            keeps_partition_columns=False,
            partition_folders=False,
            compression=self._options.compression,
            file_bytes=self._options.file_bytes,
        )

    def mark(self, query: str) -> int | None:
        """The version of the query's application transaction."""
        return self._table.transaction_version(query)

    def end_of(self, part: LogPart) -> int | None:
        """The version of the partition's application transaction."""
        return self._table.transaction_version(_application(part))

    def commit(self, change: TableChange) -> None:
        """One version and the marks, in one step."""
        now = int(time.time() * 1000)
        marks = {_application(part): end for part, end in change.ends.items()}
        if change.query:
            marks[change.query] = change.batch
        names = [part.source for part in self.layout.partitions]
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path.rsplit("/", 1)[-1],
                file.bytes,
                {n: partition_text(v) for n, v in zip(names, file.partition, strict=True)},
                now,
                True,
                statistics(file),
            )
            for file in change.added
        ]
        actions += [
            RemoveAction(old.path, True, now, old.handle["size"], old.handle["partition"])
            for old in change.removed
        ]
        try:
            self._table.create_write_transaction(
                actions,
                "overwrite" if change.replaces_all else "append",
                self._table.schema(),
                names,
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(one, at, now) for one, at in marks.items()],
                    max_commit_retries=0,
                ),
            )
        except CommitFailedError as error:
            raise Conflict(
                f"the table {self._options.table} was changed by another writer: {error}"
            ) from error

    def files(self) -> list[TableFile]:
        """The files of this version."""
        names = [part.source for part in self.layout.partitions]
        found = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            TableFile(
                unquote(one["path"]),
                one["num_records"] or 0,
                {
                    "size": one["size_bytes"],
                    "values": {name: one[f"partition.{name}"] for name in names},
                    "partition": {n: partition_text(one[f"partition.{n}"]) for n in names},
                    "bounds": _bounds(one),
                },
            )
            for one in found
        ]

    def bounds(self, file: TableFile, field: pa.Field) -> tuple[pa.Scalar, pa.Scalar] | None:
        """From the log; of numbers and texts, which it has exactly or cut on the safe side."""
        kind = field.type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            return None
        same = file.handle["values"].get(field.name)
        least, most = file.handle["bounds"].get(field.name, (same, same))
        if least is None or most is None:
            return None
        return pa.scalar(least, kind), pa.scalar(most, kind)

    def rows_of(self, file: TableFile, columns: Sequence[str] | None = None) -> FileRows:
        """The rows of a file, by name, with its partition's values."""
        path = f"{self._options.table.rstrip('/')}/{file.path}"
        values, size = file.handle["values"], file.handle["size"]
        return FileRows(self._options.storage, path, size, self.wanted(columns), partition=values)


def _application(part: LogPart) -> str:
    return f"onelog-tier-{part.stream_id}-{part.partition}"


def _bounds(action: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The least and the greatest value of each column that a file's entry tells them of."""
    return {
        name.removeprefix("min."): (value, action.get("max." + name.removeprefix("min.")))
        for name, value in action.items()
        if name.startswith("min.")
    }


def partition_text(value: object) -> str | None:
    """A partition value as Delta writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def statistics(file: WrittenFile) -> str:
    """Statistics by which readers skip files: counts, and the bounds of short columns."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    footer = file.footer
    for column in range(footer.num_columns):
        name = footer.schema.column(column).path
        found = [
            footer.row_group(group).column(column).statistics
            for group in range(footer.num_row_groups)
        ]
        if "." in name or not all(one is not None and one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        if all(one.has_min_max and _told(one.min) and _told(one.max) for one in found):
            least[name] = _in_json(min(one.min for one in found))
            most[name] = _in_json(max(one.max for one in found))
    told = {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(told)


def _told(value: object) -> bool:
    """Whether JSON has a form for a bound: numbers that are one, short texts, and times."""
    if isinstance(value, str):
        return len(value) <= STATISTIC_CHARS
    if isinstance(value, datetime.datetime):
        return value.tzinfo is not None
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _in_json(value: Any) -> Any:
    """A bound as Delta writes it: times are cut to milliseconds, as readers know."""
    if isinstance(value, datetime.datetime):
        text = value.astimezone(datetime.UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value
