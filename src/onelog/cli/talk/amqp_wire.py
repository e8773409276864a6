"""The few AMQP 0-9-1 methods that the command line sends. Bytes only, no socket here."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from onelog.base.errors import InvalidRequest
from onelog.base.names import to_routing_key
from onelog.protocols.amqp.frames import FRAME_END, METHOD, encode_content
from onelog.protocols.amqp.properties import Properties, encode_properties
from onelog.queues.addresses import ROOT_EXCHANGE, address_of
from onelog.record.tables import change_table

_HEAD: Final = struct.Struct(">BHIHH")
CHANNEL: Final = 1
SHORT_BYTES_MAX: Final = 255


def short(text: str) -> bytes:
    """A short string. Raises InvalidRequest."""
    data = text.encode()
    if len(data) > SHORT_BYTES_MAX:
        raise InvalidRequest(f"{text[:40]!r}… is longer than AMQP's {SHORT_BYTES_MAX} bytes")
    return bytes((len(data),)) + data


def table(values: Mapping[str, Any]) -> bytes:
    """A field table."""
    return _long(change_table(None, values) or b"")


def _long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def method(channel: int, class_id: int, method_id: int, *arguments: bytes) -> bytes:
    """The frame of a method."""
    body = b"".join(arguments)
    head = _HEAD.pack(METHOD, channel, len(body) + 4, class_id, method_id)
    return head + body + bytes((FRAME_END,))


def start_ok(user: str, password: str) -> bytes:
    """The answer to Connection.Start: the user and the password."""
    able = ("basic.nack", "consumer_cancel_notify", "connection.blocked")
    known = {"capabilities": dict.fromkeys(able, True)}
    secret = f"\0{user}\0{password}".encode()
    return method(
        0,
        10,
        11,
        table({"product": "onelog", **known}),
        short("PLAIN"),
        _long(secret),
        short("en_US"),
    )


def tune_ok(channel_max: int, frame_bytes_max: int) -> bytes:
    """The limits that were offered, and no heartbeats: TCP sees that the broker is there."""
    return method(0, 10, 31, struct.pack(">HIH", channel_max, frame_bytes_max, 0))


def open_connection(vhost: str) -> bytes:
    """connection.open."""
    return method(0, 10, 40, short(vhost), short(""), b"\0")


def open_channel() -> bytes:
    """channel.open."""
    return method(CHANNEL, 20, 10, short(""))


def select_confirms() -> bytes:
    """confirm.select."""
    return method(CHANNEL, 85, 10, b"\0")


def set_prefetch(count: int) -> bytes:
    """basic.qos."""
    return method(CHANNEL, 60, 10, struct.pack(">IH?", 0, count, False))


def declare_queue(name: str, arguments: Mapping[str, Any], *, passive: bool = False) -> bytes:
    """queue.declare: one that is there, or one that goes with the connection."""
    flags = 0b00001 if passive else 0b01100  # passive; exclusive and auto-delete
    return method(CHANNEL, 50, 10, b"\0\0", short(name), bytes((flags,)), table(arguments))


def bind_queue(queue: str, exchange: str, key: str) -> bytes:
    """queue.bind."""
    return method(
        CHANNEL, 50, 20, b"\0\0", short(queue), short(exchange), short(key), b"\0", table({})
    )


def consume(queue: str) -> bytes:
    """basic.consume, to be acknowledged."""
    return method(CHANNEL, 60, 20, b"\0\0", short(queue), short(""), b"\0", table({}))


def acknowledge(tag: int) -> bytes:
    """basic.ack."""
    return method(CHANNEL, 60, 80, struct.pack(">Q?", tag, False))


def publish(
    exchange: str,
    key: str,
    properties: Properties,
    body: bytes,
    frame_bytes_max: int,
    *,
    mandatory: bool,
) -> bytes:
    """basic.publish with its content."""
    for text in (getattr(properties, name) for name in properties.__struct_fields__):
        if isinstance(text, str):
            short(text)
    flags = bytes((mandatory,))
    head = method(CHANNEL, 60, 40, b"\0\0", short(exchange), short(key), flags)
    content = encode_content(CHANNEL, encode_properties(properties), body, frame_bytes_max)
    return head + b"".join(content)


def close_ok(channel: int) -> bytes:
    """The answer to connection.close or channel.close."""
    return method(channel, 20, 41) if channel else method(0, 10, 51)


def close() -> bytes:
    """connection.close."""
    return method(0, 10, 50, struct.pack(">H", 200), short("done"), b"\0\0\0\0")


def binding_of(text: str) -> tuple[str, str]:
    """The exchange and the pattern that bring what a filter matches. Raises InvalidRequest."""
    space, _, rest = text.partition("/")
    if space == "$x":
        exchange, _, rest = rest.partition("/")
        return address_of(f"$x/{exchange}/").exchange, _pattern(rest)
    if space.startswith("$"):
        raise InvalidRequest(
            f"{text} is not a topic that AMQP can bind; --queue NAME reads a queue"
        )
    return ROOT_EXCHANGE, _pattern(text)


def _pattern(text: str) -> str:
    return ".".join("*" if level == "+" else to_routing_key(level) for level in text.split("/"))
