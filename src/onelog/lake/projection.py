"""Columns of an old file under the table's present schema, matched by field id at every depth.

Rules: a renamed column is found by its id, a column that was added later is null, a dropped column
is left out. A file that carries no ids is matched by name. A null list, map or struct stays null.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from onelog.lake.columns import field_id


def projected(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The rows with the wanted columns; `rows.schema` carries the ids of the file."""
    columns = []
    for field in wanted:
        at = _find(list(rows.schema), field)
        if at is None:
            columns.append(pa.nulls(rows.num_rows, field.type))
        else:
            chunks = rows.column(at).chunks
            made = [_project(chunk, rows.schema.field(at), field) for chunk in chunks]
            columns.append(pa.chunked_array(made, field.type))
    return pa.Table.from_arrays(columns, schema=wanted)


def file_columns(schema: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Which columns of a file the wanted ones come from."""
    found = (_find(list(schema), field) for field in wanted)
    return [schema.field(at).name for at in found if at is not None]


def _find(have: Sequence[pa.Field], wanted: pa.Field) -> int | None:
    """Where a field stands among those of a file."""
    by_id = any(field_id(one) is not None for one in have)
    for at, one in enumerate(have):
        same = field_id(one) == field_id(wanted) if by_id else one.name == wanted.name
        if same:
            return at
    return None


def _project(array: pa.Array, have: pa.Field, wanted: pa.Field) -> pa.Array:
    kind = wanted.type
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        there = [have.type.field(number) for number in range(have.type.num_fields)]
        parts = []
        for field in fields:
            at = _find(there, field)
            parts.append(
                pa.nulls(len(array), field.type)
                if at is None
                else _project(array.field(at), there[at], field)
            )
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    if pa.types.is_list(kind):
        values = _project(array.values, have.type.value_field, kind.value_field)
        return pa.ListArray.from_arrays(array.offsets, values, kind, mask=_nulls(array))
    if pa.types.is_map(kind):
        keys = _project(array.keys, have.type.key_field, kind.key_field)
        items = _project(array.items, have.type.item_field, kind.item_field)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=_nulls(array))
    return array.cast(kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
