"""The form of a delivery: exchange, key and properties of a record, as a client gets them.

Rules: most messages of a producer have the same headers, so the properties that follow from headers
alone are remembered. An *envelope* is all of that; the kernel encodes whole runs with it.
"""

from __future__ import annotations

import sys
from typing import Final

from onelog.base.ids import Offset, TimestampMs
from onelog.broker import Record
from onelog.protocols.amqp.mapping import SHORT_BYTES_MAX, to_properties
from onelog.protocols.amqp.properties import Properties, encode_properties
from onelog.queues.addresses import address_of
from onelog.queues.consumers import Delivery
from onelog.record import headers as names
from onelog.record.headers import Headers
from onelog.record.tables import change_table

PROPERTIES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of properties that are remembered, with the headers that they follow from."""
_ENTRY_OVERHEAD: Final = 256
_HEADER_OBJECTS: Final = 160
"""About how many bytes a remembered entry takes beside its content, and each of its headers."""
PLAIN_HEADERS_MAX: Final = 8
FRAME_BYTES_MIN: Final = 4096
"""The smallest frame that a client may ask for."""
_HEADER_OVERHEAD: Final = 8 + 12
"""Bytes of a content header's frame beside the properties."""
PLAIN_BYTES_MAX: Final = 1024
"""The most bytes of headers that are remembered with their properties, here and in the hub's
envelopes: large ones would push out all others."""
_VARYING: Final = frozenset(
    {names.EXPIRY, names.REPLY_TO, names.CORRELATION, names.MESSAGE_ID, names.TIMESTAMP}
)
"""Headers that differ from message to message, or from which more follows than a property."""


def address(record: Record) -> tuple[bytes, bytes]:
    """Exchange and key of a delivery, cut to the length of a name in AMQP."""
    found = address_of(record.topic)
    return _short(found.exchange), _short(found.routing_key)


def _short(name: str) -> bytes:
    # Topics of other protocols may have escapes of bytes that are not text: the name has the bytes.
    data = name.encode("utf-8", "surrogateescape")
    if len(data) <= SHORT_BYTES_MAX:
        return data
    return data[:SHORT_BYTES_MAX].decode("utf-8", "ignore").encode()


def envelope(record: Record | None) -> tuple[bytes, Headers, bytes, bytes] | None:
    """Topic, headers, names and properties that all records like this one share; None: no other
    does."""
    if record is None or record.key != record.topic.encode():
        return None
    plain = _plain_properties(record.headers)
    if plain is None or len(plain) > FRAME_BYTES_MIN - _HEADER_OVERHEAD:
        return None
    parts = b"".join(bytes((len(part),)) + part for part in address(record))
    return record.key, record.headers, parts, plain


def properties(delivery: Delivery, now_ms: int, frame_bytes_max: int) -> bytes:
    """The encoded properties of a delivery.

    They go out in one frame. A headers table that does not fit is left out: otherwise the message
    would end the connection of every consumer that gets it, one after the other.
    """
    record = delivery.record
    most = frame_bytes_max - _HEADER_OVERHEAD if frame_bytes_max else sys.maxsize
    if not delivery.headers and record.key == record.topic.encode():
        known = _plain_properties(record.headers)
        if known is not None and len(known) <= most:
            return known
    found: Properties = to_properties(record, now_ms)
    if delivery.headers:
        found.headers = change_table(found.headers, delivery.headers)
    encoded = encode_properties(found)
    if len(encoded) > most:
        found.headers = change_table(None, delivery.headers)
        encoded = encode_properties(found)
    return encoded


def _plain_properties(headers: Headers) -> bytes | None:
    """The properties of a record that follow from its headers alone; None: they do not.

    Most messages of a producer have the same few headers, and no expiry.
    """
    if len(headers) > PLAIN_HEADERS_MAX:
        return None
    size = sum(len(name) + len(value or b"") for name, value in headers)
    if size > PLAIN_BYTES_MAX:
        return None
    found = _remembered.known.get(headers)
    if found is None:
        found = _found_properties(headers)
        if found is not None:  # otherwise each message would have its own entry
            _remembered.keep(headers, size, found)
    return found


class _Remembered:
    """Properties by headers, bounded in bytes."""

    __slots__ = ("held_bytes", "known")

    def __init__(self) -> None:
        self.known: dict[Headers, bytes] = {}
        self.held_bytes = 0

    def keep(self, headers: Headers, size: int, found: bytes) -> None:
        """Remember the properties of these headers, which have `size` bytes. If there is no room,
        forget all others."""
        size += len(found) + _ENTRY_OVERHEAD + _HEADER_OBJECTS * len(headers)
        if self.held_bytes + size > PROPERTIES_BYTES_MAX:
            self.known.clear()
            self.held_bytes = 0
        self.known[headers] = found
        self.held_bytes += size


_remembered: Final = _Remembered()


def _found_properties(headers: Headers) -> bytes | None:
    if any(name in _VARYING for name, _value in headers):
        return None
    record = Record("", 0, Offset(0), "", TimestampMs(0), b"", b"", headers)
    return encode_properties(to_properties(record, None))
