"""AMQP 0-9-1 frames, interpreted: a whole read at once; publishes, acks and deliveries as units.

Rules:
- A publish is one event when its method, content header and body lie one after the other in the
  buffer, as clients send them; otherwise each of its frames is an event. The same bytes give the
  same messages either way.
- A payload may be as large as the whole frame was agreed to be: clients that forget the eight bytes
  around it are accepted.
- An event's first number is its kind. Bad framing ends the list with FAULT and the fault; the
  events before it count.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from onelog.kernel.pure.varint import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onelog.kernel.types import Buffer

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PUBLISH, ACK, FAULT = 100, 101, -1
TOO_LARGE, BAD_END, BAD_TYPE = 1, 2, 3

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
PUBLISH_METHOD = b"\x00\x3c\x00\x28"
ACK_METHOD = b"\x00\x3c\x00\x50"
WAIT_BYTES_MAX = 65536
"""How many bytes of a publish that a read cut in two are waited for, and how many frames of its
body."""
WAIT_FRAMES_MAX = 4
_DELIVER = b"\x00\x3c\x00\x3c"
_BASIC = 60
_END = 0xCE
_KINDS = frozenset((METHOD, HEADER, BODY, HEARTBEAT))


class Content(NamedTuple):
    """A publish after its method's number; an incomplete one comes frame by frame."""

    is_whole: bool
    names: bytes = b""
    properties: bytes = b""
    parts: tuple[bytes, ...] = ()
    after: int = 0


_NO_CONTENT = Content(is_whole=False)


def split_amqp(buf: Buffer, frame_bytes_max: int) -> tuple[list[tuple[Any, ...]], int]:
    """The events of the whole frames in a buffer, and how many bytes those frames have.

    (kind, channel, start, end) is a frame by its payload; (PUBLISH, channel, exchange, key, flags,
    properties, body) a whole publish; (ACK, channel, delivery tag, multiple) an acknowledgement;
    (FAULT, what) ends the list.
    """
    view = memoryview(buf).cast("B")
    events: list[tuple[Any, ...]] = []
    at = 0
    while True:
        frame = frame_at(view, at, frame_bytes_max)
        if frame is None:
            return events, at
        kind, channel, start, end = frame
        if kind == FAULT:
            events.append((FAULT, channel))
            return events, at
        if kind == METHOD and end - start >= 4:
            number = bytes(view[start : start + 4])
            if number == PUBLISH_METHOD:
                content = read_content(view, channel, (start, end), frame_bytes_max)
                found = publish_event(channel, content) if content is not None else None
                if found is not None and content is not None:
                    events.append(found)
                    at = content.after
                    continue
            elif number == ACK_METHOD and end - start == 13:
                events.append(read_ack(view, channel, start))
                at = end + 1
                continue
        events.append((kind, channel, start, end))
        at = end + 1


def read_ack(view: memoryview, channel: int, start: int) -> tuple[Any, ...]:
    """The event of basic.ack."""
    tag = int.from_bytes(view[start + 4 : start + 12], "big")
    return ACK, channel, tag, bool(view[start + 12] & 1)


def frame_at(view: memoryview, at: int, limit: int) -> tuple[int, int, int, int] | None:
    """The frame at a position: kind, channel, payload; None: it is incomplete."""
    if len(view) - at < 7:
        return None
    kind, channel, size = _FRAME.unpack_from(view, at)
    if limit and size > limit:
        return FAULT, TOO_LARGE, 0, 0
    end = at + 7 + size
    if end >= len(view):
        return None
    if view[end] != _END:
        return FAULT, BAD_END, 0, 0
    if kind not in _KINDS:
        return FAULT, BAD_TYPE, 0, 0
    return kind, channel, at + 7, end


def read_content(
    view: memoryview, channel: int, method: tuple[int, int], limit: int
) -> Content | None:
    """The publish whose method lies there; None: the rest has still to come."""
    start, end = method[0] + 6, method[1]
    at = start
    for _ in range(2):
        if at >= end or at + 1 + view[at] > end:
            return _NO_CONTENT
        at += 1 + view[at]
    if at + 1 != end:
        return _NO_CONTENT
    head = frame_at(view, end + 1, limit)
    if head is None:
        return None
    if head[0] != HEADER or head[1] != channel or head[3] - head[2] < 14:
        return _NO_CONTENT
    class_id, _weight, size = _CONTENT.unpack_from(view, head[2])
    if class_id != _BASIC:
        return _NO_CONTENT
    after, left = head[3] + 1, size
    parts: list[bytes] = []
    while left:
        body = frame_at(view, after, limit)
        if body is None:
            waits = size <= WAIT_BYTES_MAX and len(parts) < WAIT_FRAMES_MAX
            return None if waits else _NO_CONTENT
        part = bytes(view[body[2] : body[3]])
        if body[0] != BODY or body[1] != channel or not 0 < len(part) <= left:
            return _NO_CONTENT
        parts.append(part)
        left -= len(part)
        after = body[3] + 1
    properties = bytes(view[head[2] + 12 : head[3]])
    return Content(True, bytes(view[start:end]), properties, tuple(parts), after)


def publish_event(channel: int, content: Content) -> tuple[Any, ...] | None:
    """The event of a whole publish; None: it is none, or its names are not text."""
    if not content.is_whole:
        return None
    names, key = content.names, 1 + content.names[0]
    try:
        exchange = names[1:key].decode()
        routing_key = names[key + 1 : key + 1 + names[key]].decode()
    except UnicodeDecodeError:
        return None
    body = b"".join(content.parts)
    return PUBLISH, channel, exchange, routing_key, names[-1], content.properties, body


def encode_delivery(  # noqa: PLR0913, PLR0917 - a method has as many fields
    channel: int,
    consumer_tag: bytes,
    delivery_tag: int,
    redelivered: bool,
    exchange: bytes,
    routing_key: bytes,
    properties: bytes,
    body: Buffer,
    frame_bytes_max: int,
) -> bytes:
    """The frames of basic.deliver with its content; names have at most 255 bytes."""
    method = b"".join(
        (
            _DELIVER,
            bytes((len(consumer_tag),)),
            consumer_tag,
            delivery_tag.to_bytes(8, "big"),
            bytes((bool(redelivered),)),
            bytes((len(exchange),)),
            exchange,
            bytes((len(routing_key),)),
            routing_key,
        )
    )
    head = _CONTENT.pack(_BASIC, 0, len(body)) + properties
    out = [
        _FRAME.pack(METHOD, channel, len(method)),
        method,
        b"\xce",
        _FRAME.pack(HEADER, channel, len(head)),
        head,
        b"\xce",
    ]
    room = frame_bytes_max - 8 if frame_bytes_max else max(len(body), 1)
    view = memoryview(body).cast("B")
    for start in range(0, len(view), room):
        part = view[start : start + room]
        out += (_FRAME.pack(BODY, channel, len(part)), bytes(part), b"\xce")
    return b"".join(out)


def encode_headers(headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Headers in the record's own encoding, without their count."""
    parts: list[bytes] = []
    for name, value in headers:
        parts += (encode_varint(len(name)), name)
        parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)
