"""Batches from columns, interpreted: the way back from Arrow buffers to record batches."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from onelog.base.errors import InvalidRequest
from onelog.base.limits import BATCH_BYTES_MAX, HEADERS_PER_RECORD_MAX, RECORDS_PER_BATCH_MAX
from onelog.kernel import corruption as why
from onelog.kernel.pure.build import items_of, put_field, seal_fields
from onelog.kernel.pure.scan import CRC_FROM, read_header
from onelog.kernel.pure.varint import encode_varint
from onelog.kernel.types import FRAME, PLACE_ROWS

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer, Columns

_U64 = 1 << 64


class _Bad(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


class _Rows(NamedTuple):
    count: int  # type: ignore[assignment]
    offsets: memoryview
    timestamps: memoryview
    keys: list[bytes | None]
    values: list[bytes | None]
    lists: memoryview
    names: list[bytes | None]
    contents: list[bytes | None]


def _column(column: tuple[Buffer, Buffer, Buffer], count: int) -> list[bytes | None]:
    return items_of(column, range(count))  # type: ignore[arg-type]


def _rows(columns: Columns) -> _Rows:
    count, offsets, timestamps, keys, values, _topics, headers = columns
    assert offsets is not None and timestamps is not None and keys is not None
    assert values is not None and headers is not None
    lists, name_ends, names, bits, ends, contents = headers
    if len(offsets) < 8 * count or len(timestamps) < 8 * count or len(lists) < 4 * (count + 1):
        raise InvalidRequest(f"a column of {count} rows is too short")
    keyed, valued = _column(keys, count), _column(values, count)
    total = max(0, struct.unpack_from("<i", lists, 4 * count)[0])
    return _Rows(
        count,
        memoryview(offsets).cast("B").cast("q") if count else memoryview(b""),
        memoryview(timestamps).cast("B").cast("q") if count else memoryview(b""),
        keyed,
        valued,
        memoryview(lists).cast("B").cast("i"),
        _column((b"", name_ends, names), total),
        _column((bits, ends, contents), total),
    )


def _signed(number: int) -> int:
    number %= _U64
    return number - _U64 if number >= _U64 >> 1 else number


def _record(rows: _Rows, row: int, base: int, base_ts: int, last_delta: int) -> bytes:
    first, last = rows.lists[row], rows.lists[row + 1]
    delta = rows.offsets[row] - base
    if not 0 <= delta <= last_delta:
        raise _Bad(why.BAD_ROWS)
    if not 0 <= first <= last <= len(rows.names) or last - first > HEADERS_PER_RECORD_MAX:
        raise _Bad(why.BAD_ROWS)
    body = bytearray(b"\0")
    body += encode_varint(_signed(rows.timestamps[row] - base_ts)) + encode_varint(delta)
    put_field(body, rows.keys[row])
    put_field(body, rows.values[row])
    body += encode_varint(last - first)
    for header in range(first, last):
        put_field(body, rows.names[header])
        put_field(body, rows.contents[header])
    return encode_varint(len(body)) + bytes(body)


def _from_rows(frame: tuple[int, ...], rows: _Rows, first_row: int, check: bool) -> bytes:
    base, base_ts, max_ts, producer, last_delta, count, epoch, sequence, crc, row, *rest = frame
    attributes, producer_epoch, _place = rest
    first = row - first_row
    if (
        not 0 <= last_delta < 1 << 31
        or count > RECORDS_PER_BATCH_MAX
        or first < 0
        or first + count > rows.count
    ):
        raise _Bad(why.BAD_ROWS)
    records = b"".join(
        _record(rows, at, base, base_ts, last_delta) for at in range(first, first + count)
    )
    if len(records) > BATCH_BYTES_MAX - 61:
        raise _Bad(why.BAD_LENGTH)
    made = seal_fields(
        (
            base, epoch, _short(attributes), last_delta, base_ts, max_ts, producer,
            producer_epoch, sequence, count,
        ),
        records,
    )  # fmt: skip
    if check and int.from_bytes(made[CRC_FROM - 4 : CRC_FROM], "big") != crc:
        raise _Bad(why.BAD_CRC)
    return made


def _short(number: int) -> int:
    return number - (1 << 16) if number >= 1 << 15 else number


def _from_raw(frame: tuple[int, ...], raw: memoryview, at: int) -> bytes:
    info = read_header(raw, at, len(raw), False)
    if isinstance(info, int):
        raise _Bad(info)
    crc = int.from_bytes(raw[at + CRC_FROM - 4 : at + CRC_FROM], "big")
    # Base offset and leader epoch lie outside of the CRC.
    if (info.base_offset, info.leader_epoch, crc) != (frame[0], frame[6], frame[8]):
        raise _Bad(why.BAD_ROWS)
    checked = read_header(raw, at, len(raw), True)
    if isinstance(checked, int):
        raise _Bad(checked)
    return bytes(raw[at : at + info.size_bytes])


def rebuild_batches(
    frames: Buffer, columns: Columns, first_row: int, raw: Buffer, check: bool
) -> bytes:
    """The batches of `frames`, from rows of which `first_row` is the first, and from raw ones.

    Raises CorruptBatch when rows and frames do not fit, or when the CRC of a batch is another one
    (of a rebuilt batch only if `check`).
    """
    heads = memoryview(frames).cast("B")
    kept = memoryview(raw).cast("B")
    if len(heads) % FRAME.size:
        raise InvalidRequest(f"frames of {len(heads)} bytes are not whole")
    rows = _rows(columns)
    out: list[bytes] = []
    position = 0
    for frame in FRAME.iter_unpack(heads):
        try:
            if frame[-1] == PLACE_ROWS:
                out.append(_from_rows(frame, rows, first_row, check))
            else:
                out.append(_from_raw(frame, kept, position))
                position += len(out[-1])
        except _Bad as bad:
            raise why.corrupt(bad.code, len(out)) from None
    if position != len(kept):
        raise why.corrupt(why.BAD_ROWS, len(out))
    return b"".join(out)
