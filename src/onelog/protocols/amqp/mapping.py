"""Messages of AMQP and records of the log, both ways (docs/reference/amqp.md has the table).

Rules:
- The body is the value, untouched. Headers are plain record headers, strings as they are and other
  values as text, so that every protocol can read them; the encoded table is kept beside them when
  it holds more than strings, so that it comes out byte for byte (I6).
- Every other property has a reserved header (`record/fields.py`), written only when the message has
  the property. A value of another protocol that a property cannot hold is left out, not cut.
- `expiration` is relative and a string; across protocols, the absolute time of expiry counts.
- `reply_to` is a topic in the log (`queues/addresses.py`). A correlation that is not text, or too
  long, is base64 for AMQP, so that a worker that echoes the id answers the right request.
- A persistent message has QoS 1, and a message with QoS 1 is persistent.
- A record whose key is not its topic (from Kafka) has a producer's time: that is the `timestamp`.
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any, Final

from onelog.broker import Message, Record
from onelog.protocols.amqp.correlation import to_correlation, to_correlation_id
from onelog.protocols.amqp.fields import PROPERTY_OF
from onelog.protocols.amqp.properties import Properties
from onelog.queues.addresses import address_of, reply_key, reply_topic
from onelog.queues.headers import TABLE, kept_table
from onelog.record import headers as names
from onelog.record.fields import FIELDS
from onelog.record.headers import Headers, application_headers, find_header, stored_name
from onelog.record.reserved import parse_number, read_expiry_ms
from onelog.record.tables import encode_table, header_value

LIFETIME: Final = b"~xp"
"""The `expiration` as it was sent: a string of milliseconds."""

SHORT_BYTES_MAX: Final = 255
"""Bytes of a short string."""
DELIVERY_MODE: Final = b"~dm"
"""The delivery mode, when no QoS stands for it."""
PERSISTENT: Final = 2
_LASTING: Final = (b"1", b"2")
"""The QoS of persistent messages."""

_TEXTS: Final[dict[str, bytes]] = {
    PROPERTY_OF[row.name]: row.header
    for row in FIELDS
    if row.name in PROPERTY_OF and row.form == "text"
} | {"expiration": LIFETIME}
_NUMBERS: Final[dict[str, bytes]] = {
    PROPERTY_OF[row.name]: row.header
    for row in FIELDS
    if row.name in PROPERTY_OF and row.form == "number" and row.header != names.QOS
}
_NAMES: Final[dict[bytes, str]] = {header: name for name, header in _TEXTS.items()}
_LIMITS: Final[dict[bytes, tuple[str, int]]] = {
    row.header: (property_, row.most)
    for row in FIELDS
    if (property_ := PROPERTY_OF.get(row.name)) in _NUMBERS
} | {DELIVERY_MODE: ("delivery_mode", 255)}


def to_message(
    topic: str,
    properties: Properties,
    body: bytes,
    now_ms: int,
    table: dict[str, Any],
    extra_keys: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
) -> Message:
    """The record of a publish; `table` holds the decoded headers."""
    rows = _property_rows(topic, properties)
    if properties.expiration is not None:
        rows.append((names.EXPIRY, b"%d" % (now_ms + int(properties.expiration))))
    listed = ((names.BLIND_KEYS, extra_keys), (names.LEFT_OUT, left_out))
    rows += [(header, json.dumps(names_).encode()) for header, names_ in listed if names_]
    if properties.headers is not None:
        if not _is_all_strings(properties.headers, table):
            rows.append((TABLE, properties.headers))
        rows += [
            (stored_name(name.encode("utf-8", "surrogateescape")), _text(value))
            for name, value in table.items()
        ]
    return Message(topic, body, None, tuple(rows), now_ms)


def _property_rows(topic: str, properties: Properties) -> list[tuple[bytes, bytes | None]]:
    """The reserved headers for the properties of a message."""
    rows: list[tuple[bytes, bytes | None]] = []
    for name, header in _TEXTS.items():
        text = getattr(properties, name)
        if text is not None:
            rows.append((header, text.encode("utf-8", "surrogateescape")))
    for name, header in _NUMBERS.items():
        number = getattr(properties, name)
        if number is not None:
            rows.append((header, b"%d" % number))
    if properties.delivery_mode == PERSISTENT:
        rows.append((names.QOS, b"1"))
    elif properties.delivery_mode is not None:
        rows.append((DELIVERY_MODE, b"%d" % properties.delivery_mode))
    if properties.reply_to is not None:
        address = reply_topic(address_of(topic).vhost, properties.reply_to)
        rows.append((names.REPLY_TO, address.encode("utf-8", "surrogateescape")))
    if properties.correlation_id is not None:
        rows.append((names.CORRELATION, to_correlation(properties.correlation_id)))
    return rows


def _is_all_strings(encoded: bytes, table: dict[str, Any]) -> bool:
    """Whether the table can be rebuilt from its names and texts."""
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


def to_properties(record: Record, now_ms: int | None = None) -> Properties:
    """The properties of a delivery, whichever protocol wrote the record.

    With `now_ms`, also the rest of an expiry that another protocol wrote.
    """
    found = Properties()
    if record.key != record.topic.encode():
        found.timestamp = max(0, record.timestamp_ms // 1000)
    for header, value in record.headers:
        if value is None:
            continue
        if header in _NAMES:
            if len(value) <= SHORT_BYTES_MAX:
                setattr(found, _NAMES[header], value.decode("utf-8", "surrogateescape"))
        elif header in _LIMITS:
            name, most = _LIMITS[header]
            number = parse_number(value, most)
            if number is not None:
                setattr(found, name, number)
        elif header == names.REPLY_TO:
            found.reply_to = _reply_to(record.topic, value)
        elif header == names.CORRELATION:
            found.correlation_id = to_correlation_id(value)
    headers = record.headers
    if found.delivery_mode is None and find_header(headers, names.QOS) in _LASTING:
        found.delivery_mode = PERSISTENT
    if found.expiration is None and now_ms is not None:
        found.expiration = _remaining(headers, now_ms)
    found.headers = _encoded_table(headers)
    return found


def _encoded_table(headers: Headers) -> bytes | None:
    if kept_table(headers) is not None:
        return find_header(headers, TABLE)
    return _table_of(application_headers(headers))


def _remaining(headers: Headers, now_ms: int) -> str | None:
    ends_ms = read_expiry_ms(headers)
    return None if ends_ms is None else str(max(0, ends_ms - now_ms))


def _reply_to(topic: str, value: bytes) -> str | None:
    text = reply_key(address_of(topic).vhost, value.decode("utf-8", "surrogateescape"))
    return text if len(text.encode("utf-8", "surrogateescape")) <= SHORT_BYTES_MAX else None


def _table_of(rows: Headers) -> bytes | None:
    if not rows:
        return None
    table: dict[str, Any] = {}
    for name, value in rows:  # a table has each name once: the last one counts
        table[name[:SHORT_BYTES_MAX].decode("utf-8", "ignore")] = header_value(value)
    return encode_table(table)
