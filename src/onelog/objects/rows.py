"""Rows: what a manifest or a checkpoint says of the pieces of one partition.

Rules: rows of a partition ascend by offset and do not overlap (invariant 5); whoever loads rows
checks that with `check_rows`. A row of kind `log` names a piece. A row of kind `parquet` names the
frames of a Parquet file, which have the form of a piece, and the file itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Literal

import msgspec

from onelog.base.errors import ColdDamaged
from onelog.kernel import REL_MAX

FOOTER_BYTES: Final = 128
"""Bytes at the end of each piece; an index part has at least these."""
LOG_BYTES_MAX: Final = (1 << 32) - 1
"""Bytes of log in one piece: positions in it have 32 bits."""
_I64_MAX: Final = (1 << 63) - 1
_base: Final = attrgetter("base")

Kind = Literal["log", "parquet"]


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a partition: which offsets it has, and where it lies."""

    base: int
    end: int
    """The first offset behind it."""
    log_bytes: int
    """Bytes of record batches; of Parquet: of those that its rows are rebuilt to."""
    records: int
    min_timestamp_ms: int
    """The lowest first timestamp of a batch; a record inside a batch may have a lower one."""
    max_timestamp_ms: int
    created_ms: int
    """When the oldest segment in it was created."""
    kind: Kind
    object: str
    """The name of the object in the store."""
    position: int
    """Where the piece begins in the object."""
    piece_bytes: int
    index_bytes: int
    """Bytes of the index part, at the piece's end."""
    index_crc: int
    """CRC-32C of the index part."""
    leader_epoch: int
    """The epoch that wrote the piece's last batch."""
    file: str = ""
    """The Parquet file, as its table names it."""


def check_rows(rows: Sequence[Row], whose: str) -> None:
    """Refuse rows that are not as they must be, or that overlap. Raises ColdDamaged."""
    end = 0
    for row in rows:
        if row.base < end:
            raise ColdDamaged(
                f"{whose}: the piece {row.object} begins at offset {row.base}, the one before it"
                f" ends at {end}: pieces must ascend without overlap"
            )
        if not _is_possible(row):
            raise ColdDamaged(f"{whose}: no piece can be what the row of {row.object} says")
        end = row.end


def _is_possible(row: Row) -> bool:
    return (
        0 <= row.base < row.end <= _I64_MAX
        and row.end - row.base <= REL_MAX + 1
        and 0 <= row.log_bytes <= LOG_BYTES_MAX
        and 0 <= row.records <= row.end - row.base
        and 0 <= row.position <= _I64_MAX
        and FOOTER_BYTES <= row.index_bytes <= row.piece_bytes <= _I64_MAX - row.position
        and 0 <= row.index_crc <= 0xFFFF_FFFF
        and bool(row.object)
        and (row.kind == "parquet" or row.log_bytes <= row.piece_bytes - row.index_bytes)
    )


def find_row(rows: Sequence[Row], offset: int) -> int:
    """Which row holds `offset`, or is the first behind it; `len(rows)` if there is none."""
    at = bisect_right(rows, offset, key=_base)
    return at - 1 if at and offset < rows[at - 1].end else at


def rows_between(rows: Sequence[Row], start: int, end: int) -> Sequence[Row]:
    """The rows with offsets in [start, end)."""
    if start >= end:
        return ()
    first = find_row(rows, start)
    last = first
    while last < len(rows) and rows[last].base < end:
        last += 1
    return rows[first:last]
