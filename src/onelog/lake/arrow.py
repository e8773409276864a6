"""The kernel's columns as Arrow arrays, without a copy.

Rules: a buffer of the kernel becomes a buffer of Arrow as it stands. A column with one value for
all rows is made once and cut to length. A time that microseconds cannot hold is null, not another
time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from onelog.kernel import Columns
from onelog.kernel.types import BinaryColumn, HeaderColumn

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MILLIS_MAX: Final = ((1 << 63) - 1) // 1000
"""The last millisecond that fits into 64 bits of microseconds."""
CONSTANTS_MAX: Final = 64
"""How many constant columns are kept; past it all are made anew."""

_constants: dict[tuple[object, str], pa.Array] = {}


def binary_array(column: BinaryColumn, count: int, kind: pa.DataType | None = None) -> pa.Array:
    """A column of bytes, or of text."""
    validity, ends, data = column
    bits = pa.py_buffer(validity) if validity else None
    return pa.Array.from_buffers(
        pa.binary() if kind is None else kind,
        count,
        [bits, pa.py_buffer(ends), pa.py_buffer(data)],
    )


def number_array(data: bytes, count: int) -> pa.Array:
    """A column of 64 bit numbers."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data)])


def time_array(data: bytes, count: int) -> pa.Array:
    """Milliseconds as Spark's timestamps."""
    millis = np.frombuffer(data, np.int64, count)
    late = None
    if count and not (int(millis.min()) >= -MILLIS_MAX and int(millis.max()) <= MILLIS_MAX):
        late = (millis > MILLIS_MAX) | (millis < -MILLIS_MAX)
        millis = np.where(late, 0, millis)
    return pa.array(millis * 1000, pa.int64(), mask=late).view(TIMESTAMP)


def header_array(column: HeaderColumn, count: int) -> pa.Array:
    """A column of lists of headers."""
    lists, name_ends, names, validity, ends, contents = column
    total = int.from_bytes(lists[-4:], "little")
    pairs = pa.StructArray.from_arrays(
        [
            binary_array((b"", name_ends, names), total, pa.string()),
            binary_array((validity, ends, contents), total),
        ],
        ["key", "value"],
    )
    return pa.Array.from_buffers(HEADERS, count, [None, pa.py_buffer(lists)], children=[pairs])


def constant_array(value: int | str, count: int, kind: pa.DataType) -> pa.Array:
    """The same value in every row."""
    key = (value, str(kind))
    known = _constants.get(key)
    if known is None or len(known) < count:
        if len(_constants) >= CONSTANTS_MAX:
            _constants.clear()
        known = _constants[key] = pa.repeat(pa.scalar(value, kind), max(count, 1024))
    return known.slice(0, count)


def arrays_of(
    columns: Columns, *, topic: str | None, partition: int, timestamp_type: int
) -> dict[str, pa.Array]:
    """The kernel's columns under the names of Spark's Kafka source, and the constant columns."""
    count = columns.count
    found: dict[str, pa.Array] = {
        "partition": constant_array(partition, count, pa.int32()),
        "timestampType": constant_array(timestamp_type, count, pa.int32()),
    }
    if topic is not None:
        found["topic"] = constant_array(topic, count, pa.string())
    elif columns.topics is not None:
        found["topic"] = binary_array(columns.topics, count, pa.string())
    if columns.offsets is not None:
        found["offset"] = number_array(columns.offsets, count)
    if columns.timestamps is not None:
        found["timestamp"] = time_array(columns.timestamps, count)
    if columns.keys is not None:
        found["key"] = binary_array(columns.keys, count)
    if columns.values is not None:
        found["value"] = binary_array(columns.values, count)
    if columns.headers is not None:
        found["headers"] = header_array(columns.headers, count)
    return found


def kernel_columns(rows: pa.Table) -> Columns:
    """Columns of a table as the kernel rebuilds batches from them; a copy only of the times."""
    count = rows.num_rows
    lists = _whole(rows.column("headers"))
    pairs = lists.values
    names, contents = (_parts(pairs.field(at)) for at in (0, 1))
    micros = np.frombuffer(_numbers(rows.column("timestamp")), np.int64, count)
    return Columns(
        count,
        _numbers(rows.column("offset")),
        (micros // 1000).tobytes(),
        _parts(_whole(rows.column("key"))),
        _parts(_whole(rows.column("value"))),
        None,
        (_bytes(lists.offsets.buffers()[1]) or b"\0\0\0\0", *names[1:], *contents),
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """One array that begins at its buffers' first item."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array if array.offset == 0 else array.take(pa.array(range(len(array)), pa.int64()))


def _bytes(buffer: pa.Buffer | None) -> Any:
    """A buffer that the kernel borrows."""
    return b"" if buffer is None else memoryview(buffer)


def _numbers(column: pa.ChunkedArray) -> Any:
    array = _whole(column)
    return _bytes(array.buffers()[1])[: 8 * len(array)]


def _parts(array: pa.Array) -> Any:
    """Validity bits, offsets and data of a column of bytes or text."""
    if array.offset:
        array = array.take(pa.array(range(len(array)), pa.int64()))
    bits, ends, data = array.buffers()
    return _bytes(bits) if array.null_count else b"", _bytes(ends) or b"\0\0\0\0", _bytes(data)
