"""AMQP 0-9-1 frames, interpreted: a whole read at once; publishes, acks and deliveries as units.

Rules:
- A publish is told as one event when its method, content header and body lie one after the other in
  the buffer, as clients send them; otherwise its frames are told one by one. The same bytes give
  the same messages either way.
- A payload may be as large as the whole frame was agreed to be: clients that forget the eight bytes
  around it are let be.
- An event's first number is its kind. Bad framing ends the list with FAULT and what is wrong; what
  came before it counts.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PUBLISH, ACK, FAULT = 100, 101, -1
TOO_LARGE, BAD_END, BAD_TYPE = 1, 2, 3

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
_DELIVER = b"\x00\x3c\x00\x3c"
_BASIC = 60
_END = 0xCE
_KINDS = frozenset((METHOD, HEADER, BODY, HEARTBEAT))


def split_amqp(buf: Buffer, frame_bytes_max: int) -> tuple[list[tuple[Any, ...]], int]:
    """The events of the whole frames in a buffer, and how many bytes they are.

    (kind, channel, start, end) is a frame by its payload; (PUBLISH, channel, exchange, key, flags,
    properties, body) a whole publish; (ACK, channel, delivery tag, multiple) an acknowledgement;
    (FAULT, what) ends the list.
    """
    view = memoryview(buf).cast("B")
    events: list[tuple[Any, ...]] = []
    at = 0
    while True:
        frame = _frame(view, at, frame_bytes_max)
        if frame is None:
            return events, at
        kind, channel, start, end = frame
        if kind == FAULT:
            events.append((FAULT, channel))
            return events, at
        if kind == METHOD and end - start >= 4:
            number = bytes(view[start : start + 4])
            if number == _PUBLISH:
                found = _publish(view, channel, start, end, frame_bytes_max)
                if found is not None:
                    events.append(found[0])
                    at = found[1]
                    continue
            elif number == _ACK and end - start == 13:
                tag = int.from_bytes(view[start + 4 : start + 12], "big")
                events.append((ACK, channel, tag, bool(view[start + 12] & 1)))
                at = end + 1
                continue
        events.append((kind, channel, start, end))
        at = end + 1


def _frame(view: memoryview, at: int, limit: int) -> tuple[int, int, int, int] | None:
    """The frame at a place: kind, channel, payload; None when it is not whole yet."""
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


def _publish(
    view: memoryview, channel: int, start: int, end: int, limit: int
) -> tuple[tuple[Any, ...], int] | None:
    """A whole publish from its method on, and where it ends; None when it is not one."""
    names = _names(view, start + 6, end)
    if names is None:
        return None
    exchange, key, flags = names
    head = _frame(view, end + 1, limit)
    if head is None or head[0] != HEADER or head[1] != channel or head[3] - head[2] < 14:
        return None
    class_id, _weight, left = _CONTENT.unpack_from(view, head[2])
    if class_id != _BASIC:
        return None
    properties = bytes(view[head[2] + 12 : head[3]])
    at = head[3] + 1
    parts: list[bytes] = []
    while left:
        body = _frame(view, at, limit)
        if body is None or body[0] != BODY or body[1] != channel:
            return None
        size = body[3] - body[2]
        if not 0 < size <= left:
            return None
        parts.append(bytes(view[body[2] : body[3]]))
        left -= size
        at = body[3] + 1
    return (PUBLISH, channel, exchange, key, flags, properties, b"".join(parts)), at


def _names(view: memoryview, at: int, end: int) -> tuple[str, str, int] | None:
    """Exchange, routing key and flags of basic.publish; None when they do not fill the frame."""
    found = []
    for _ in range(2):
        if at >= end or at + 1 + view[at] > end:
            return None
        text = bytes(view[at + 1 : at + 1 + view[at]])
        at += 1 + view[at]
        try:
            found.append(text.decode())
        except UnicodeDecodeError:
            return None
    if at + 1 != end:
        return None
    return found[0], found[1], view[at]


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
