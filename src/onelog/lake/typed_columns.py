"""Typed columns beside the value: fields of a JSON object, for engines that ask by name.

Rules: a column is a projection of `value` and replaces nothing. A value that is no JSON object, or
a field of another type, is null. `column_words.py` has their words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from onelog.lake.column_words import column_types
from onelog.lake.columns import PLAIN


@dataclass(frozen=True)
class TypedColumns:
    """Columns that are fields of a JSON value."""

    types: dict[str, pa.DataType] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.types)

    @property
    def schema(self) -> pa.Schema:
        """Their types, too."""
        return pa.schema(list(self.types.items()))

    def arrays(self, values: pa.Array) -> dict[str, pa.Array]:
        """The columns of some values."""
        if not self.types:
            return {}
        found: dict[str, list[Any]] = {name: [] for name in self.types}
        for value in values.to_pylist():
            told = _object(value)
            for name, column in found.items():
                column.append(told.get(name))
        return {name: _fitted(found[name], kind) for name, kind in self.types.items()}


def parse_columns(text: str) -> TypedColumns:
    """Read `json: NAME TYPE, …`. Raises InvalidRequest."""
    return TypedColumns({name: PLAIN[kind] for name, kind in column_types(text).items()})


def _object(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        told = msgspec.json.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _fitted(found: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([_plain(one, kind) for one in found], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        return pa.concat_arrays([_alone(one, kind) for one in found])


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value that Arrow takes for the type, or None."""
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else None
    if pa.types.is_integer(kind):
        return value if isinstance(value, int) else None
    if pa.types.is_floating(kind):
        return float(value) if isinstance(value, int | float) else None
    if isinstance(value, str):
        return pa.scalar(value).cast(kind).as_py()
    return None


def _alone(value: Any, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([_plain(value, kind)], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        return pa.nulls(1, kind)
