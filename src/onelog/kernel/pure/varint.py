"""Varints, interpreted: zigzag (Kafka's records) and unsigned, at most 64 bits in ten bytes.

Rules: a number is read only if it ends inside the buffer; longer than needed is accepted, more than
64 bits is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest
from onelog.kernel.corruption import BAD_VARINT, corrupt

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
U64_MAX = (1 << 64) - 1


def read_uvarint(view: memoryview | bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position` and where it ends; (0, -1) if it is cut short or too long."""
    value = shift = 0
    while position < end and shift < 70:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value, position) if value <= U64_MAX else (0, -1)
        shift += 7
    return 0, -1


def read_varint(view: memoryview | bytes, position: int, end: int) -> tuple[int, int]:
    """The zigzag number at `position` and where it ends; (0, -1) if it is bad."""
    value, after = read_uvarint(view, position, end)
    return (value >> 1) ^ -(value & 1), after


def encode_uvarint(value: int) -> bytes:
    """An unsigned number of up to 64 bits, seven bits a byte, low bits first."""
    if not 0 <= value <= U64_MAX:
        raise InvalidRequest(f"{value} does not fit an unsigned varint of 64 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """A signed number of 64 bits, zigzag."""
    if not I64_MIN <= value <= I64_MAX:
        raise InvalidRequest(f"{value} does not fit a varint of 64 bits")
    return encode_uvarint((value << 1) ^ (value >> 63))


def _checked(buf: Buffer, position: int) -> memoryview:
    view = memoryview(buf).cast("B")
    if not 0 <= position <= len(view):
        raise InvalidRequest(f"position {position} is outside the buffer of {len(view)} bytes")
    return view


def decode_uvarint(buf: Buffer, pos: int = 0) -> tuple[int, int]:
    """The unsigned number at `pos` and where it ends."""
    view = _checked(buf, pos)
    value, after = read_uvarint(view, pos, len(view))
    if after < 0:
        raise corrupt(BAD_VARINT, pos)
    return value, after


def decode_varint(buf: Buffer, pos: int = 0) -> tuple[int, int]:
    """The zigzag number at `pos` and where it ends."""
    view = _checked(buf, pos)
    value, after = read_varint(view, pos, len(view))
    if after < 0:
        raise corrupt(BAD_VARINT, pos)
    return value, after
