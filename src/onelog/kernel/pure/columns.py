"""Many batches as Arrow buffers, interpreted."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest
from onelog.kernel.pure.records import Batch, Span, open_batch
from onelog.kernel.types import (
    COLUMN_BYTES_MAX,
    WITH_HEADERS,
    WITH_KEYS,
    WITH_OFFSETS,
    WITH_TIMESTAMPS,
    WITH_TOPICS,
    WITH_VALUES,
    Columns,
)

if TYPE_CHECKING:
    from onelog.kernel.types import BatchPiece, BinaryColumn, HeaderColumn


def _binary(items: Sequence[bytes | None]) -> BinaryColumn:
    """Validity bits, i32 offsets and data of a column of bytes."""
    validity = bytearray((len(items) + 7) // 8)
    ends = [0]
    for at, item in enumerate(items):
        if item is not None:
            validity[at >> 3] |= 1 << (at & 7)
        ends.append(ends[-1] + len(item or b""))
    if ends[-1] > COLUMN_BYTES_MAX:
        raise InvalidRequest(
            f"a column of {ends[-1]} bytes is more than Arrow counts: give fewer batches"
        )
    return (
        bytes(validity) if None in items else b"",
        struct.pack(f"<{len(ends)}i", *ends),
        b"".join(item for item in items if item),
    )


def _headers(rows: Sequence[tuple[Batch, Span]]) -> HeaderColumn:
    found = [batch.headers(span) for batch, span in rows]
    lists = [0]
    for row in found:
        lists.append(lists[-1] + len(row))
    flat = [header for row in found for header in row]
    _none, name_ends, names = _binary([name for name, _ in flat])
    return (
        struct.pack(f"<{len(lists)}i", *lists),
        name_ends,
        names,
        *_binary([value for _, value in flat]),
    )


def decode_columns(pieces: Sequence[BatchPiece], first: int, end: int, want: int) -> Columns:
    """Records of many batches from offset `first` to before `end`, as columns.

    A piece is (buffer, position of a batch in it, its inflated records or None).
    """
    batches = [open_batch(buf, position, records, True) for buf, position, records in pieces]
    rows = [
        (batch, span)
        for batch in batches
        for span in batch.spans
        if first <= batch.info.base_offset + span.offset_delta < end
    ]
    offsets = (batch.info.base_offset + span.offset_delta for batch, span in rows)
    times = (batch.timestamp_ms(span) for batch, span in rows)
    return Columns(
        len(rows),
        struct.pack(f"<{len(rows)}q", *offsets) if want & WITH_OFFSETS else None,
        struct.pack(f"<{len(rows)}q", *times) if want & WITH_TIMESTAMPS else None,
        _binary([batch.key(span) for batch, span in rows]) if want & WITH_KEYS else None,
        _binary([batch.value(span) for batch, span in rows]) if want & WITH_VALUES else None,
        _binary([batch.topic(span) for batch, span in rows]) if want & WITH_TOPICS else None,
        _headers(rows) if want & WITH_HEADERS else None,
    )
