"""Basic properties: the property list of a content header, decoded and encoded, nothing lost.

Rules (AMQP 0-9-1 4.2.6.1): flags say which properties follow, in a fixed order. The headers table
is kept as the peer encoded it, so that every field type comes out as it went in (I6); it is decoded
only where its values are needed. Flags beyond the known ones, or a list that does not end with its
frame, are a SYNTAX_ERROR.
"""

from __future__ import annotations

import struct
from copy import copy
from functools import lru_cache
from typing import Any, Final

import msgspec

from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.record.tables import decode_table

_SHORT: Final = struct.Struct(">H")
_REMEMBERED_BYTES: Final = 64
_LONG: Final = struct.Struct(">I")
_LONG_LONG: Final = struct.Struct(">Q")


class Properties(msgspec.Struct, kw_only=True):
    """The properties of a message; None: not set."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: bytes | None = None
    """The encoded table, without its length."""
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    def table(self) -> dict[str, Any]:
        """The headers as values. Raises AmqpError."""
        return decode_table(self.headers) if self.headers else {}


_FIELDS: Final = (
    ("content_type", 15, "text"),
    ("content_encoding", 14, "text"),
    ("headers", 13, "table"),
    ("delivery_mode", 12, "octet"),
    ("priority", 11, "octet"),
    ("correlation_id", 10, "text"),
    ("reply_to", 9, "text"),
    ("expiration", 8, "text"),
    ("message_id", 7, "text"),
    ("timestamp", 6, "time"),
    ("type", 5, "text"),
    ("user_id", 4, "text"),
    ("app_id", 3, "text"),
    ("cluster_id", 2, "text"),
)
"""Every property: its name, its flag, how it is encoded; in the order of the wire."""
_UNKNOWN_FLAGS: Final = 0b11


def decode_properties(data: bytes) -> Properties:
    """The properties of a content header. Raises AmqpError."""
    try:
        # Most publishes of a client have the same properties; each gets its own copy.
        return copy(_remembered(data)) if len(data) <= _REMEMBERED_BYTES else _decode(data)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise AmqpError(Reply.SYNTAX_ERROR, "the properties of a message cannot be read") from None


@lru_cache(maxsize=4096)
def _remembered(data: bytes) -> Properties:
    return _decode(data)


def _decode(data: bytes) -> Properties:
    (flags,) = _SHORT.unpack_from(data)
    if flags & _UNKNOWN_FLAGS:
        raise AmqpError(Reply.SYNTAX_ERROR, f"unknown property flags {flags:#06x}")
    found = Properties()
    at = 2
    for name, bit, kind in _FIELDS:
        if not flags >> bit & 1:
            continue
        value: Any
        if kind == "text":
            size = data[at]
            value, at = (
                data[at + 1 : at + 1 + size].decode("utf-8", "surrogateescape"),
                at + 1 + size,
            )
        elif kind == "octet":
            value, at = data[at], at + 1
        elif kind == "time":
            (value,) = _LONG_LONG.unpack_from(data, at)
            at += 8
        else:
            (size,) = _LONG.unpack_from(data, at)
            value, at = data[at + 4 : at + 4 + size], at + 4 + size
        setattr(found, name, value)
        if at > len(data):
            raise AmqpError(Reply.SYNTAX_ERROR, f"the property {name} is cut short")
    if at != len(data):
        raise AmqpError(Reply.SYNTAX_ERROR, "there is something after the last property")
    return found


def encode_properties(properties: Properties) -> bytes:
    """Flags and list as a content header has them."""
    flags = 0
    parts: list[bytes] = []
    for name, bit, kind in _FIELDS:
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= 1 << bit
        if kind == "text":
            text = value.encode("utf-8", "surrogateescape")
            parts.append(bytes((len(text),)) + text)
        elif kind == "octet":
            parts.append(bytes((value,)))
        elif kind == "time":
            parts.append(_LONG_LONG.pack(value))
        else:
            parts.append(_LONG.pack(len(value)) + value)
    return _SHORT.pack(flags) + b"".join(parts)
