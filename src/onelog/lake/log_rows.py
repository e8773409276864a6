"""Records of a partition as rows of its stream's table.

Rules: the kernel's columns are used as they stand. A text that is no UTF-8 is shown with marks of
replacement, and a time that a table cannot hold is null: such batches are kept raw beside the
table. Typed columns are a projection of the value and replace nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from onelog.kernel import Columns
from onelog.lake.arrow import (
    HEADERS,
    binary_array,
    constant_array,
    header_array,
    number_array,
    time_array,
)
from onelog.lake.log_table import LOG_COLUMNS
from onelog.lake.typed_columns import TypedColumns


class RowMaker:
    """Makes the rows of one partition."""

    def __init__(
        self,
        schema: pa.Schema,
        partition: int,
        *,
        topic: str | None,
        typed: TypedColumns | None = None,
    ) -> None:
        """`topic` is the topic of every record; None: each has its own."""
        self._partition = partition
        self._topic = topic
        self._typed = typed or TypedColumns()
        names = [*LOG_COLUMNS.names, *self._typed.names]
        self.schema = pa.schema([schema.field(name) for name in schema.names if name in names])
        """The columns of a file; the table may have others, which somebody else added."""

    def rows(self, columns: Columns, stamps: Sequence[tuple[int, bool]]) -> pa.Table:
        """Rows for columns with all records; `stamps` says of how many records in turn whether the
        broker stamped them."""
        count = columns.count
        assert columns.offsets is not None and columns.timestamps is not None
        assert columns.keys is not None and columns.values is not None
        assert columns.topics is not None and columns.headers is not None
        values = binary_array(columns.values, count)
        kinds = np.repeat(
            np.array([int(late) for _, late in stamps], np.int32), [each for each, _ in stamps]
        )
        arrays: dict[str, pa.Array] = {
            "topic": constant_array(self._topic, count, pa.string())
            if self._topic is not None
            else _text(binary_array(columns.topics, count, pa.string())),
            "partition": constant_array(self._partition, count, pa.int32()),
            "offset": number_array(columns.offsets, count),
            "timestamp": time_array(columns.timestamps, count),
            "timestamp_type": pa.array(kinds, pa.int32()),
            "key": binary_array(columns.keys, count),
            "value": values,
            "headers": _text_headers(header_array(columns.headers, count)),
        }
        arrays |= self._typed.arrays(values)
        made = [arrays[field.name].cast(field.type) for field in self.schema]
        return pa.Table.from_arrays(made, schema=self.schema)


def _text(array: pa.Array) -> pa.Array:
    """The array, whole or with marks of replacement."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        found = array.cast(pa.binary()).to_pylist()
        return pa.array(
            [None if one is None else one.decode(errors="replace") for one in found], pa.string()
        )
    return array


def _text_headers(array: pa.Array) -> pa.Array:
    pairs = array.values
    names = _text(pairs.field(0))
    if names is pairs.field(0):
        return array
    made = pa.StructArray.from_arrays([names, pairs.field(1)], ["key", "value"])
    return pa.Array.from_buffers(
        HEADERS, len(array), [None, array.offsets.buffers()[1]], children=[made]
    )
