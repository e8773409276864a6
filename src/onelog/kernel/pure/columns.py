"""One batch as Arrow buffers, interpreted."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from onelog.kernel.pure.records import open_batch
from onelog.kernel.types import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onelog.kernel.types import Buffer


def _binary(items: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes]:
    """Validity bits, i32 offsets and data of a column of bytes."""
    validity = bytearray((len(items) + 7) // 8)
    ends = [0]
    for at, item in enumerate(items):
        if item is not None:
            validity[at >> 3] |= 1 << (at & 7)
        ends.append(ends[-1] + len(item or b""))
    return (
        bytes(validity),
        struct.pack(f"<{len(ends)}i", *ends),
        b"".join(item for item in items if item),
    )


def decode_columns(buf: Buffer, pos: int = 0, records: Buffer | None = None) -> Columns:
    """The batch at `pos` as columns, every record checked."""
    batch = open_batch(buf, pos, records)
    spans, base = batch.spans, batch.info.base_offset
    headers = [batch.headers(span) for span in spans]
    lists = [0]
    for row in headers:
        lists.append(lists[-1] + len(row))
    flat = [header for row in headers for header in row]
    return Columns(
        len(spans),
        struct.pack(f"<{len(spans)}q", *(base + span.offset_delta for span in spans)),
        struct.pack(f"<{len(spans)}q", *(batch.timestamp_ms(span) for span in spans)),
        *_binary([batch.key(span) for span in spans]),
        *_binary([batch.value(span) for span in spans]),
        struct.pack(f"<{len(lists)}i", *lists),
        *_binary([name for name, _ in flat])[1:],
        *_binary([value for _, value in flat]),
    )
