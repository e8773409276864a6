"""Field tables: typed values by name, as AMQP 0-9-1 encodes them and records and queues keep them.

Rules: fields are removed and added without touching the others. A table that a client encoded keeps
its bytes (I6). Fields that the broker adds are encoded as in RabbitMQ; existing fields are copied
as they are. Field types are RabbitMQ's, which differ from the specification (`s` is a 16 bit
integer, `l` 64 bit, `I` 32 bit).
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from onelog.base.errors import ProtocolViolation

_LONG: Final = struct.Struct(">I")
_SIGNED_64: Final = struct.Struct(">q")
_DOUBLE: Final = struct.Struct(">d")
_SIZES: Final[dict[int, int]] = {
    ord(letter): size
    for letters, size in (("tbB", 1), ("su", 2), ("Iif", 4), ("lLdT", 8), ("D", 5), ("V", 0))
    for letter in letters
}
_COUNTED: Final = frozenset(b"SxFA")
_SCALARS: Final[dict[int, struct.Struct]] = {
    ord(letter): struct.Struct(f">{code}")
    for letter, code in zip("tbBsuIilLfdT", "?bBhHiIqqfdq", strict=True)
}
_DECIMAL: Final = struct.Struct(">Bi")
DEPTH_MAX: Final = 64
"""How deep tables and arrays may be nested."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Field = tuple[bytes, bytes]
"""A field's name, and its value with the letter of its type."""


def split_table(data: bytes) -> list[Field]:
    """The fields of a table (without its length), in order. Raises ProtocolViolation."""
    found: list[Field] = []
    at, end = 0, len(data)
    while at < end:
        name_end = at + 1 + data[at]
        name = bytes(data[at + 1 : name_end])
        value_end = _value_end(data, name_end)
        found.append((name, data[name_end:value_end]))
        at = value_end
    return found


def _value_end(data: bytes, at: int) -> int:
    if at >= len(data):
        raise ProtocolViolation("a field table is cut short")
    kind = data[at]
    if kind in _COUNTED:
        if at + 5 > len(data):
            raise ProtocolViolation("a field table is cut short")
        (size,) = _LONG.unpack_from(data, at + 1)
        after = at + 5 + int(size)
    elif kind in _SIZES:
        after = at + 1 + _SIZES[kind]
    else:
        raise ProtocolViolation(f"there is no field type {chr(kind)!r}")
    if after > len(data):
        raise ProtocolViolation("a field table is cut short")
    return after


def join_table(fields: Iterable[Field]) -> bytes:
    """The table of fields, without its length."""
    return b"".join(bytes((len(name),)) + name + value for name, value in fields)


def change_table(
    data: bytes | None, changes: Mapping[str, Any], drop: Iterable[str] = ()
) -> bytes | None:
    """A table with fields set at its end and others dropped; None: nothing is left."""
    gone = {name.encode() for name in (*changes, *drop)}
    kept = [row for row in split_table(data or b"") if row[0] not in gone]
    return (join_table(kept) + encode_table(changes)) or None


def encode_table(table: Mapping[str, Any]) -> bytes:
    """A table, without its length."""
    return join_table(
        (name.encode("utf-8", "surrogateescape"), encode_value(value))
        for name, value in table.items()
    )


def header_value(value: bytes | None) -> Any:
    """A plain header as a value of a table: text where it is text."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return bytearray(value)


def encode_value(value: Any) -> bytes:
    """A value with the letter of its type; numbers have 64 bits, as RabbitMQ writes them."""
    if isinstance(value, str | bytes):
        text = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        return b"S" + _LONG.pack(len(text)) + text
    if isinstance(value, int) and not isinstance(value, bool):
        return b"l" + _SIGNED_64.pack(value)
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if isinstance(value, list):
        inner = b"".join(map(encode_value, value))
        return b"A" + _LONG.pack(len(inner)) + inner
    if isinstance(value, dict):
        inner = encode_table(value)
        return b"F" + _LONG.pack(len(inner)) + inner
    return _encode_rare(value)


def _encode_rare(value: Any) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, bytearray):
        return b"x" + _LONG.pack(len(value)) + value
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return b"T" + _SIGNED_64.pack(int(aware.timestamp()))
    if isinstance(value, Decimal):
        return b"D" + _encode_decimal(value)
    raise TypeError(f"a field table has no type for {type(value)}")


def _encode_decimal(value: Decimal) -> bytes:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise TypeError(f"a field table cannot hold {value}")
    scale = max(-exponent, 0)
    try:
        return _DECIMAL.pack(scale, int(value.scaleb(scale)))
    except struct.error:
        raise TypeError(f"a field table cannot hold {value}") from None


def decode_table(data: bytes, depth_max: int = DEPTH_MAX) -> dict[str, Any]:
    """The values of a table (without its length). Raises ProtocolViolation."""
    return _decode_table(data, depth_max)


def _decode_table(data: bytes, depth: int) -> dict[str, Any]:
    return {
        name.decode("utf-8", "surrogateescape"): _decode_value(value, depth)
        for name, value in split_table(data)
    }


def _decode_value(value: bytes, depth: int) -> Any:
    kind = value[0]
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        (number,) = scalar.unpack_from(value, 1)
        return _time(number) if kind == ord("T") else number
    if kind == ord("S"):
        try:
            return value[5:].decode()
        except UnicodeDecodeError:
            return value[5:]
    if kind == ord("x"):
        return bytearray(value[5:])
    if kind == ord("D"):
        scale, unscaled = _DECIMAL.unpack_from(value, 1)
        return Decimal(unscaled).scaleb(-scale)
    if kind not in _COUNTED:
        return None
    if not depth:
        raise ProtocolViolation(f"a field table is deeper than {DEPTH_MAX}")
    if kind == ord("F"):
        return _decode_table(value[5:], depth - 1)
    rows, at = [], 5
    while at < len(value):
        after = _value_end(value, at)
        rows.append(_decode_value(value[at:after], depth - 1))
        at = after
    return rows


def _time(seconds: int) -> datetime.datetime | int:
    """A time, or a number beyond the calendar: some clients send milliseconds."""
    try:
        return _EPOCH + datetime.timedelta(seconds=seconds)
    except OverflowError:
        return seconds
