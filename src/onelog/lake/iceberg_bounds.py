"""The bounds of a file's columns from an Iceberg manifest, in Arrow's types.

Rules: a bound that is not certain is left out, and then the file is opened. That holds for floats,
whose bounds leave out NaN, and for a bound that was written when the column had another type.
"""

from __future__ import annotations

import struct

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.types import NestedField, PrimitiveType


def bound_of(column: NestedField, kind: pa.DataType, told: bytes | None) -> pa.Scalar | None:
    """A lower or upper bound; None: there is none that counts."""
    if told is None or not _counts(kind) or not isinstance(column.field_type, PrimitiveType):
        return None
    try:
        value = from_bytes(column.field_type, told)
    except (struct.error, ValueError, TypeError):
        return None
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.scalar(value, pa.int32()).cast(kind)
    return pa.scalar(value, kind)


def _counts(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return any(
        check(kind)
        for check in (
            pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_date32,
        )
    )  # fmt: skip
