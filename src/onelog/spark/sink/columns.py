"""The columns that a sink's rows may have, checked before the first row, and taken out of Arrow.

Rules: names are those of Spark's Kafka sink, compared without regard to case. `value` must be
there; `topic`, too, unless the option names one topic for all rows, which then counts for all of
them. Columns of other names are left alone, so that what was read can be written as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from onelog.base.errors import InvalidRequest
from onelog.kernel import BatchBuilder

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BYTES: Final = ("string", "binary", "char", "varchar")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_ABSENT: Final = "void"
"""The type of a column that is null in every row."""

TYPES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "key": (_BYTES, "string or binary"),
    "value": (_BYTES, "string or binary"),
    "headers": ((_HEADERS,), _HEADERS),
    "topic": (("string", "char", "varchar"), "string"),
    "partition": (("int", "smallint", "tinyint"), "int"),
}
"""The types that each column may have: their names, and their names in errors."""


class Layout(NamedTuple):
    """Where each column is among those of a row; None where there is none."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None


def layout_of(schema: StructType, topic: str | None) -> Layout:
    """Find the columns of a sink. Raises InvalidRequest that names what is missing or wrong."""
    places: dict[str, int | None] = dict.fromkeys(TYPES)
    for at, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in TYPES:
            continue
        kind = field.dataType.simpleString()
        if places[name] is not None:
            raise InvalidRequest(f"the rows have the column {name} twice; drop one of them")
        if kind == _ABSENT and name not in ("value", "topic"):
            continue
        wanted, told = TYPES[name]
        if kind.partition("(")[0] not in wanted:
            raise InvalidRequest(
                f"the column {name} is {kind}, and has to be {told}; cast it, or for a row of many"
                " columns write to_json(struct(*)) as value"
            )
        places[name] = at
    has = ", ".join(schema.fieldNames()) or "no column"
    if places["value"] is None:
        raise InvalidRequest(
            f"the column value is missing (string or binary); the rows have {has}."
            " For a row of many columns write to_json(struct(*)) as value"
        )
    if topic is not None:
        places["topic"] = None
    elif places["topic"] is None:
        raise InvalidRequest(
            f"the topic is missing: give the option topic, or the rows a column topic;"
            f" they have {has}"
        )
    return Layout(
        places["value"], places["key"], places["headers"], places["topic"], places["partition"]
    )


class Rows(NamedTuple):
    """Some rows, column by column."""

    values: Any
    keys: Any | None
    headers: Any | None

    def take(self, at: Any) -> Rows:
        """The rows at these places."""
        return Rows(*(None if column is None else column.take(at) for column in self))

    def slice(self, first: int, end: int) -> Rows:
        """The rows from `first` to before `end`, not copied."""
        return Rows(
            *(None if column is None else column.slice(first, end - first) for column in self)
        )

    def sizes(self) -> Any:
        """About how many bytes each row takes in a batch."""
        sizes = _lengths(self.values) + _ROW_BYTES
        if self.keys is not None:
            sizes += _lengths(self.keys)
        if self.headers is not None:
            sizes += _header_bytes(self.headers)
        return sizes

    def stage(self, builder: BatchBuilder, first: int, end: int, timestamp_ms: int) -> None:
        """Let the builder have the rows from `first` to before `end`."""
        if self.headers is None:
            keys = None if self.keys is None else _buffers(self.keys)
            at = self.values.offset  # `rows_of` saw to it that keys begin there, too
            values = _buffers(self.values)
            builder.extend_columns(keys, values, at + first, at + end, timestamp_ms)
            return
        some = self.slice(first, end)
        keyed = repeat(None) if some.keys is None else some.keys.to_pylist()
        pairs = header_rows(some.headers)
        columns = (repeat(None), keyed, some.values.to_pylist(), pairs, repeat(timestamp_ms))
        builder.extend(list(zip(*columns, strict=False)))  # what is repeated has no end


_ROW_BYTES: Final = 24
"""The most that a record has beside key, value and headers."""
_HEADER_BYTES: Final = 10
_NO_ENDS: Final = bytes(4)
"""The ends of a column without rows, which may have no buffer."""


def rows_of(batch: pa.RecordBatch, layout: Layout) -> Rows:
    """The columns of a batch that become records."""
    headers = None if layout.headers is None else batch.column(layout.headers)
    if headers is not None and headers.null_count == len(headers):
        headers = None
    keys = None if layout.key is None else _as_bytes(batch.column(layout.key))
    values = _as_bytes(batch.column(layout.value))
    if keys is not None and keys.offset != values.offset:
        keys, values = (column.take(pa.array(range(len(column)))) for column in (keys, values))
    return Rows(values, keys, headers)


def _as_bytes(column: Any) -> Any:
    """Text is stored as UTF-8; Arrow has it so already."""
    return column.cast(pa.binary())


def _buffers(column: Any) -> tuple[Any, Any, Any]:
    """A column as the kernel takes it."""
    validity, ends, data = column.buffers()
    return validity or b"", ends, data or b""


def _lengths(column: Any) -> Any:
    """How many bytes each value has; 0 for a null, whatever its ends say."""
    first, count = column.offset, len(column)
    ends = np.frombuffer(column.buffers()[1] or _NO_ENDS, np.int32)[first : first + count + 1]
    lengths = np.diff(ends).astype(np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths


def _header_bytes(headers: Any) -> Any:
    counts = _counts(headers)
    flat = headers.flatten()
    names, values = (_as_bytes(flat.field(name)) for name in ("key", "value"))
    each = _lengths(names) + _lengths(values) + _HEADER_BYTES
    ends = np.concatenate(([0], np.cumsum(each)))
    last = np.cumsum(counts)
    return ends[last] - ends[last - counts]


def _counts(headers: Any) -> Any:
    return pa.compute.fill_null(pa.compute.list_value_length(headers), 0).to_numpy()


def header_rows(headers: Any) -> list[Sequence[tuple[bytes, bytes | None]]]:
    """Each row's headers, as pairs of name and value."""
    flat = headers.flatten()
    names = _as_bytes(flat.field("key"))
    if names.null_count or flat.null_count:
        raise InvalidRequest("a row has a header without a key; every header needs one")
    pairs = list(zip(names.to_pylist(), flat.field("value").to_pylist(), strict=True))
    ends = np.cumsum(_counts(headers)).tolist()
    return [pairs[first:end] for first, end in zip([0, *ends], ends, strict=False)]
