"""Messages of AMQP and records of the log, both ways (docs/reference/amqp.md has the table).

Rules:
- The body is the value, untouched. Headers are plain record headers, strings as they are and other
  values as text, so that every protocol can read them; the encoded table is kept beside them
  where it holds anything but strings, so that it comes out byte for byte (I6).
- Every other property has a reserved header, written only when the message has the property.
- `expiration` is relative and a string; what counts across protocols is when it ends.
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any, Final

from onelog.broker import Message, Record
from onelog.protocols.amqp.properties import Properties, decode_table, encode_table
from onelog.record import headers as names
from onelog.record.headers import Headers, application_headers, stored_name

TABLE: Final = b"~ah"
"""The encoded headers table, when it holds anything but strings."""
BLIND_KEYS: Final = b"~bc"
"""Routing keys beside the first (CC and BCC), JSON; the delivered message shows only CC."""
LIFETIME: Final = b"~xp"
"""The `expiration` as it was sent: a string of milliseconds."""

_TEXTS: Final[dict[str, bytes]] = {
    "content_type": names.CONTENT_TYPE,
    "content_encoding": b"~ce",
    "correlation_id": names.CORRELATION,
    "reply_to": names.REPLY_TO,
    "expiration": LIFETIME,
    "message_id": b"~id",
    "type": b"~ty",
    "user_id": b"~ui",
    "app_id": b"~ai",
    "cluster_id": b"~cl",
}
_NUMBERS: Final[dict[str, bytes]] = {
    "delivery_mode": b"~dm",
    "priority": b"~pr",
    "timestamp": b"~ts",
}
PRIORITY: Final = _NUMBERS["priority"]
_BY_HEADER: Final[dict[bytes, tuple[str, bool]]] = {
    **{header: (name, False) for name, header in _TEXTS.items()},
    **{header: (name, True) for name, header in _NUMBERS.items()},
}


def to_message(
    topic: str,
    properties: Properties,
    body: bytes,
    now_ms: int,
    table: dict[str, Any],
    extra_keys: tuple[str, ...] = (),
) -> Message:
    """The record of a publish; `table` holds the decoded headers."""
    rows: list[tuple[bytes, bytes | None]] = []
    for name, header in _TEXTS.items():
        text = getattr(properties, name)
        if text is not None:
            rows.append((header, text.encode("utf-8", "surrogateescape")))
    for name, header in _NUMBERS.items():
        number = getattr(properties, name)
        if number is not None:
            rows.append((header, b"%d" % number))
    if properties.expiration is not None:
        rows.append((names.EXPIRY, b"%d" % (now_ms + int(properties.expiration))))
    if extra_keys:
        rows.append((BLIND_KEYS, json.dumps(extra_keys).encode()))
    if properties.headers is not None:
        if not _is_all_strings(properties.headers, table):
            rows.append((TABLE, properties.headers))
        rows += [
            (stored_name(name.encode("utf-8", "surrogateescape")), _text(value))
            for name, value in table.items()
        ]
    return Message(topic, body, None, tuple(rows), now_ms)


def _is_all_strings(encoded: bytes, table: dict[str, Any]) -> bool:
    """Whether the table can be made again from its names and texts."""
    return (
        bool(table)
        and all(isinstance(value, str) for value in table.values())
        and encode_table(table) == encoded
    )


def _text(value: Any) -> bytes | None:
    """A header value as other protocols see it."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float | Decimal):
        return str(value).encode()
    if isinstance(value, datetime.datetime):
        return b"%d" % int(value.timestamp() * 1000)
    return json.dumps(value, default=str).encode()


def to_properties(record: Record) -> Properties:
    """The properties of a delivery, whoever wrote the record."""
    found = Properties()
    table: bytes | None = None
    for header, value in record.headers:
        if header == TABLE:
            table = value
            continue
        row = _BY_HEADER.get(header)
        if row is None or value is None:
            continue
        name, is_number = row
        if not is_number:
            setattr(found, name, value.decode("utf-8", "surrogateescape")[:255])
        elif value.isdigit():
            setattr(found, name, int(value))
    found.headers = table if table is not None else _table_of(application_headers(record.headers))
    return found


def _table_of(rows: Headers) -> bytes | None:
    if not rows:
        return None
    table: dict[str, Any] = {}
    for name, value in rows:  # a table has a name once: the last one counts
        table[name.decode("utf-8", "replace")[:128]] = _value(value)
    return encode_table(table)


def _value(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return bytearray(value)


def headers_of(record: Record) -> dict[str, Any]:
    """The headers of a record as routing sees them."""
    for header, value in record.headers:
        if header == TABLE and value is not None:
            return decode_table(value)
    return {
        name.decode("utf-8", "replace"): _value(value)
        for name, value in application_headers(record.headers)
    }


def extra_keys_of(record: Record) -> tuple[str, ...]:
    """Routing keys beside the first."""
    for header, value in record.headers:
        if header == BLIND_KEYS and value is not None:
            return tuple(json.loads(value))
    return ()
