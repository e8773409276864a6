"""Frames: bytes to frames and back. Control methods go through pamqp, contents through our own.

Rules (AMQP 0-9-1 2.3, 4.2.3): a frame is type, channel, size, payload, 0xCE. A size above the
agreed one, another last octet or an unknown type is a FRAME_ERROR and ends the connection. Nothing
is allocated for a frame before its bytes are there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pamqp import commands, encode

from onelog.kernel import split_amqp
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.record.tables import decode_table

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
OVERHEAD_BYTES: Final = 8
BASIC_CLASS: Final = 60

PUBLISH, ACK, STAGED = 100, 101, 102  # kinds of the kernel's events
_HEAD: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")
_INDEX: Final = struct.Struct(">I")
_SIZES: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}
_LENGTHS: Final = {"shortstr": 1, "longstr": 4, "table": 4}
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class Frame(NamedTuple):
    """One frame; the payload is a view of the buffer that it came in."""

    kind: int
    channel: int
    payload: memoryview

    @property
    def size_bytes(self) -> int:
        """Bytes of its payload."""
        return len(self.payload)


class ContentHead(NamedTuple):
    """What precedes a body: its size, and its properties as the peer encoded them."""

    body_bytes: int
    properties: bytes
    """The property flags and the property list."""


class Publish:
    """A whole publish, as pamqp's method has its fields, with properties and body."""

    __slots__ = (
        "body",
        "channel",
        "exchange",
        "flags",
        "immediate",
        "mandatory",
        "properties",
        "routing_key",
    )
    name = commands.Basic.Publish.name
    index = commands.Basic.Publish.index

    def __init__(
        self, channel: int, exchange: str, key: str, flags: int, properties: bytes, body: bytes
    ) -> None:
        self.channel = channel
        self.exchange = exchange
        self.routing_key = key
        self.flags = flags
        self.mandatory = bool(flags & 1)
        self.immediate = bool(flags & 2)
        self.properties = properties
        self.body = body

    @property
    def names(self) -> bytes:
        """Its names (exchange and key) as they were on the wire."""
        exchange, key = self.exchange.encode(), self.routing_key.encode()
        return bytes((len(exchange),)) + exchange + bytes((len(key),)) + key + bytes((self.flags,))

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self.properties) + len(self.body)


class Ack:
    """basic.ack, as pamqp's method has its fields."""

    __slots__ = ("channel", "delivery_tag", "multiple")
    name = commands.Basic.Ack.name
    index = commands.Basic.Ack.index
    size_bytes = 21

    def __init__(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.channel = channel
        self.delivery_tag = delivery_tag
        self.multiple = multiple


Event = Frame | Publish | Ack
"""An event of a peer: a frame, or several that belong together."""

_FAULTS: Final = {
    1: "a frame is larger than {} bytes",
    2: "a frame does not end with 0xCE",
    3: "there is no such frame type",
}


def event_of(row: tuple[Any, ...], buffer: memoryview, frame_bytes_max: int) -> Event:
    """An event of the kernel. Raises AmqpError for a wrong frame."""
    kind = row[0]
    if kind == PUBLISH:
        return Publish(*row[1:])
    if kind == ACK:
        return Ack(*row[1:])
    if kind > 0:
        return Frame(kind, row[1], buffer[row[2] : row[3]])
    raise AmqpError(Reply.FRAME_ERROR, _FAULTS[row[1]].format(frame_bytes_max))


def frames_of(data: bytes) -> list[Event]:
    """The events of whole frames that were kept as bytes."""
    view = memoryview(data)
    return [event_of(row, view, 0) for row in split_amqp(data, 0)[0]]


def one_frame(data: bytes) -> Frame:
    """The one frame in these bytes. Raises AmqpError."""
    if len(data) < OVERHEAD_BYTES or data[-1] != FRAME_END:
        raise AmqpError(Reply.FRAME_ERROR, _FAULTS[2])
    kind, channel, _size = _HEAD.unpack_from(data)
    return Frame(kind, channel, memoryview(data)[_HEAD.size : -1])


def decode_method(payload: memoryview) -> Any:
    """The method of a frame, as pamqp types it. Raises AmqpError."""
    data = bytes(payload)
    if len(data) < 4:
        raise AmqpError(Reply.FRAME_ERROR, "a method frame is shorter than its method's number")
    (index,) = _INDEX.unpack_from(data)
    kind = commands.INDEX_MAPPING.get(index)
    if kind is None:
        raise AmqpError(
            Reply.COMMAND_INVALID, f"there is no method {index & 0xFFFF} of class {index >> 16}"
        )
    method = kind.__new__(kind)  # type: ignore[call-overload]
    try:
        method.unmarshal(data[4:])
        check_arguments(kind, data[4:])
    except Exception as error:  # noqa: BLE001 - pamqp raises whatever the bytes make it raise
        raise AmqpError(Reply.FRAME_ERROR, f"{method.name} cannot be read: {error}") from None
    return method


def check_arguments(kind: Any, data: bytes) -> None:
    """Raise unless the arguments of a method fill its frame exactly, and its tables can be kept.

    pamqp does not notice arguments that are cut off. It also accepts tables of any depth and of
    types that no other client knows: a declaration with such a table could not be read after a
    restart.
    """
    at, bits = 0, 0
    for name in kind.attributes():
        shape = kind.amqp_type(name)
        if shape == "bit":
            at += bits % 8 == 0
            bits += 1
            continue
        bits = 0
        size = _SIZES.get(shape)
        if size is None:
            head = _LENGTHS[shape]
            size = head + int.from_bytes(data[at : at + head], "big")
            if shape == "table":
                decode_table(data[at + head : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"its arguments take {at} bytes and not {len(data)}")


def make_method(kind: Any, **fields: Any) -> Any:
    """A method to send. pamqp's own constructor refuses names that RabbitMQ and OneLog accept."""
    method = kind.__new__(kind)
    for name in kind.attributes():
        setattr(method, name, fields[name])
    return method


def encode_method(channel: int, method: Any) -> bytes:
    """The whole frame of a method."""
    parts = [_INDEX.pack(method.index)]
    bits: list[bool] = []
    for name in method.attributes():
        shape, value = method.amqp_type(name), getattr(method, name)
        if shape == "bit":
            bits.append(bool(value))
            continue
        if bits:
            parts.append(_pack_bits(bits))
            bits = []
        parts.append(encode.by_type(value, shape))
    if bits:
        parts.append(_pack_bits(bits))
    payload = b"".join(parts)
    return _HEAD.pack(METHOD, channel, len(payload)) + payload + b"\xce"


def _pack_bits(bits: list[bool]) -> bytes:
    return bytes((sum(bit << number for number, bit in enumerate(bits)),))


def decode_content_head(payload: memoryview) -> ContentHead:
    """The content header of a frame. Raises AmqpError."""
    if len(payload) < _CONTENT.size + 2:
        raise AmqpError(Reply.FRAME_ERROR, "a content header is cut short")
    class_id, _weight, size = _CONTENT.unpack_from(payload)
    if class_id != BASIC_CLASS:
        raise AmqpError(Reply.UNEXPECTED_FRAME, f"a content header of class {class_id}")
    return ContentHead(size, bytes(payload[_CONTENT.size :]))


def encode_content(
    channel: int, properties: bytes, body: bytes | memoryview, frame_bytes_max: int
) -> Iterator[bytes | memoryview]:
    """The frames of a message's properties and body, in pieces for one write."""
    head = _CONTENT.pack(BASIC_CLASS, 0, len(body)) + properties
    yield _HEAD.pack(HEADER, channel, len(head)) + head + b"\xce"
    room = frame_bytes_max - OVERHEAD_BYTES
    for start in range(0, len(body), room):
        part = body[start : start + room]
        yield _HEAD.pack(BODY, channel, len(part))
        yield part
        yield b"\xce"
