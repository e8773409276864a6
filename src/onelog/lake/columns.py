"""Columns between rows and tables: which types fit, and which rows do not.

Rules: a column of the rows goes to the table's column of the same name. A type that can hold every
value is used as it is. A type that can hold only some values is tried value by value; a row that
does not fit is a bad row, and no value is changed to fit. Types that have nothing to do with each
other are refused before the first row.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from onelog.base.errors import InvalidRequest

FIELD_ID = b"PARQUET:field_id"
"""Where Arrow keeps the number of a Parquet column."""
UTC_MICROS = pa.timestamp("us", tz="UTC")

PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": UTC_MICROS,
    "timestamp_ntz": pa.timestamp("us"),
}


def small(kind: pa.DataType) -> pa.DataType:
    """The type with 32 bit offsets, as Spark's batches have it; nested fields keep their ids."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(small_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(small_field(kind.key_field), small_field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([small_field(kind.field(i)) for i in range(kind.num_fields)])
    return kind


def small_field(field: pa.Field) -> pa.Field:
    """The field with a small type."""
    return field.with_type(small(field.type))


def small_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with small types."""
    return pa.schema([small_field(field) for field in schema])


def widens(table: pa.DataType, rows: pa.DataType) -> bool:
    """Whether the rows' type holds all that the table's holds, and more, as Iceberg allows."""
    if pa.types.is_decimal(table) and pa.types.is_decimal(rows):
        return bool(table.scale == rows.scale and table.precision < rows.precision)
    return (table, rows) in {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def can_try(table: pa.DataType, rows: pa.DataType) -> bool:
    """Whether values of the rows' type may fit into the table's, one by one."""
    if table.equals(rows):
        return True
    number = pa.types.is_integer(table) or pa.types.is_floating(table) or pa.types.is_decimal(table)
    if pa.types.is_integer(rows) or pa.types.is_floating(rows) or pa.types.is_decimal(rows):
        return bool(number)
    if pa.types.is_string(rows):
        return bool(number or pa.types.is_boolean(table) or pa.types.is_temporal(table))
    if pa.types.is_temporal(rows):
        return bool(pa.types.is_timestamp(table))
    return bool(
        (pa.types.is_list(rows) and pa.types.is_list(table))
        or (pa.types.is_map(rows) and pa.types.is_map(table))
        or (pa.types.is_struct(rows) and pa.types.is_struct(table))
    )


def check_types(table: pa.Schema, rows: pa.Schema, name: str) -> None:
    """Refuse rows of which a column can never fit."""
    for field in rows:
        at = table.get_field_index(field.name)
        if at >= 0 and not can_try(small(table.field(at).type), small(field.type)):
            raise InvalidRequest(
                f"column {field.name} of the rows is {field.type}, but {table.field(at).type} in "
                f"the table {name}: cast it, or write it under another name"
            )


class BadRow(NamedTuple):
    """A row that does not fit, and why."""

    reason: str
    row: str


@dataclass(frozen=True)
class Fitting:
    """Brings batches of rows into the shape of a table."""

    schema: pa.Schema
    required: frozenset[str] = frozenset()
    error_column: str = "_error"
    kept: frozenset[str] = frozenset()
    """Columns beside those of the table that go through, such as the one that marks deletes."""

    def fit(self, batch: pa.RecordBatch) -> tuple[pa.Table, list[BadRow]]:
        """The good rows in the table's shape, and the bad ones."""
        reasons: dict[int, str] = {}
        self._claimed(batch, reasons)
        columns = [self._column(batch, field, reasons) for field in self.schema]
        names = list(self.schema.names)
        for name in sorted(self.kept):
            columns.append(batch.column(name))
            names.append(name)
        fields = [*self.schema, *(batch.schema.field(name) for name in sorted(self.kept))]
        table = pa.Table.from_arrays(columns, schema=pa.schema(_nullable(fields, bool(reasons))))
        if not reasons:
            return table, []
        bad = pa.array(sorted(reasons), pa.int64())
        mask = pc.invert(pc.is_in(pa.array(range(batch.num_rows), pa.int64()), value_set=bad))
        rows = batch.take(bad).to_pylist()
        letters = [
            BadRow(reasons[number], json.dumps(row, default=plain_json))
            for number, row in zip(bad.to_pylist(), rows, strict=True)
        ]
        good = table.filter(mask)
        return good.cast(pa.schema(_nullable(fields, False))), letters

    def _claimed(self, batch: pa.RecordBatch, reasons: dict[int, str]) -> None:
        """Rows that an earlier step found bad."""
        at = batch.schema.get_field_index(self.error_column)
        if at < 0 or batch.column(at).null_count == batch.num_rows:
            return
        for number, said in enumerate(batch.column(at).to_pylist()):
            if said is not None:
                told = "the value could not be decoded" if isinstance(said, bytes) else str(said)
                reasons.setdefault(number, told)

    def _column(self, batch: pa.RecordBatch, field: pa.Field, reasons: dict[int, str]) -> pa.Array:
        at = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        if (not field.nullable or field.name in self.required) and column.null_count:
            for number in numbers(pc.is_null(column)):
                reasons.setdefault(number, f"column {field.name} is null")
        if column.type.equals(field.type):
            return column
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.concat_arrays(list(self._cast_each(column, field, reasons, 0)))

    def _cast_each(
        self, column: pa.Array, field: pa.Field, reasons: dict[int, str], first: int
    ) -> Iterator[pa.Array]:
        """Cast by halves until each value that does not fit stands alone."""
        try:
            yield column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if len(column) == 1:
                reasons.setdefault(first, f"column {field.name}: {error}")
                yield pa.nulls(1, field.type)
                return
            half = len(column) // 2
            yield from self._cast_each(column[:half], field, reasons, first)
            yield from self._cast_each(column[half:], field, reasons, first + half)


def numbers(mask: pa.Array) -> list[int]:
    """The positions at which a mask is true."""
    return pc.indices_nonzero(mask).to_pylist()  # type: ignore[no-any-return]


def _nullable(fields: Sequence[pa.Field], as_asked: bool) -> list[pa.Field]:
    """While bad rows are among them, every column may be null."""
    return [field.with_nullable(True) for field in fields] if as_asked else list(fields)


def plain_json(value: object) -> object:
    """Values of types that JSON does not have: bytes as base64, times as ISO 8601, others as
    text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return repr(value)


def field_id(field: pa.Field) -> int | None:
    """The number that a field carries."""
    found: Any = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)
