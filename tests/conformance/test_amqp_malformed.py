"""Which code do bad bytes get, and does anybody else notice? (I8, I10)"""

from __future__ import annotations

import struct

import pytest
from pamqp import frame as frames

from tests.conformance.amqp_raw import (
    Basic,
    Channel,
    Connection,
    Ended,
    Queue,
    Raw,
    Refused,
    until_message,
)

HEAD = struct.Struct(">BHI")


def method(class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return struct.pack(">HH", class_id, method_id) + arguments


def content_head(size: int = 0, class_id: int = 60, flags: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack(">HHQH", class_id, 0, size, flags) + rest


def framed(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + end


PUBLISH = framed(1, 1, method(60, 40, b"\x00\x00\x00\x00\x00"))
DECLARE = method(50, 10, b"\x00\x00\x01q\x00")
BAD_TABLE = b"\x00\x00\x00\x04\x01aZ\x00"  # a field of a type that there is not

BYTES: dict[str, tuple[bytes, str]] = {
    "a frame type that there is not": (framed(9, 1, b""), "connection 501"),
    "another last octet": (framed(1, 1, method(60, 40), b"\x00"), "connection 501"),
    "a frame larger than agreed": (HEAD.pack(3, 1, 200_000), "connection 501"),
    "a heartbeat on a channel": (framed(8, 1, b""), "connection 505"),
    "a class that there is not": (framed(1, 1, method(77, 10)), "connection 503"),
    "a method that there is not": (framed(1, 1, method(50, 99)), "connection 503"),
    "a method that is cut": (framed(1, 1, b"\x00\x32"), "connection 501"),
    "arguments that are cut": (framed(1, 1, DECLARE), "connection 501"),
    "arguments with something behind": (
        framed(1, 1, DECLARE + b"\x00\x00\x00\x00" + b"more"),
        "connection 501",
    ),
    "a table with an unknown type": (framed(1, 1, DECLARE + BAD_TABLE), "connection 501"),
    "a table that is longer than its frame": (
        framed(1, 1, DECLARE + b"\x00\x00\xff\xff\x01a"),
        "connection 501",
    ),
    "a method of the server": (
        framed(1, 1, method(50, 11, b"\x01q" + bytes(8))),
        "connection 503",
    ),
    "a method on a channel that is not open": (
        framed(1, 5, method(60, 10, bytes(7))),
        "connection 504",
    ),
    "a body without a publish": (framed(3, 1, b"x"), "connection 505"),
    "a header without a publish": (framed(2, 1, content_head()), "connection 505"),
    "a method where a header was expected": (
        PUBLISH + framed(1, 1, method(60, 10, bytes(7))),
        "connection 505",
    ),
    "a body where a header was expected": (PUBLISH + framed(3, 1, b"x"), "connection 505"),
    "a header where a body was expected": (
        PUBLISH + framed(2, 1, content_head(5)) + framed(2, 1, content_head(5)),
        "connection 505",
    ),
    "a header of another class": (
        PUBLISH + framed(2, 1, content_head(class_id=50)),
        "connection 505",
    ),
    "a body that is longer than announced": (
        PUBLISH + framed(2, 1, content_head(2)) + framed(3, 1, b"xyz"),
        "connection 505",
    ),
    "a header that is cut": (PUBLISH + framed(2, 1, b"\x00\x3c\x00"), "connection 501"),
    "properties that are cut": (
        PUBLISH + framed(2, 1, content_head(flags=0x8000, rest=b"\x09abc")),
        "connection 502",
    ),
    "properties with something behind": (
        PUBLISH + framed(2, 1, content_head(rest=b"more")),
        "connection 502",
    ),
    "headers with an unknown type": (
        PUBLISH + framed(2, 1, content_head(flags=0x2000, rest=BAD_TABLE)),
        "connection 502",
    ),
    "headers with a type that only some libraries have": (
        PUBLISH + framed(2, 1, content_head(flags=0x2000, rest=b"\x00\x00\x00\x03\x01a\x00")),
        "connection 502",
    ),
    "a content on channel 0": (framed(2, 0, content_head()), "connection 505"),
    "a method of the handshake once more": (
        framed(1, 0, method(10, 31, bytes(8))),
        "connection 504",
    ),
    "a method of a channel on channel 0": (
        framed(1, 0, method(60, 10, bytes(7))),
        "connection 504",
    ),
    "a method of the connection on a channel": (
        framed(1, 1, method(10, 40, b"\x01/\x00\x00")),
        "connection 503",
    ),
    "a message larger than configured": (
        PUBLISH + framed(2, 1, content_head(1 << 40)),
        "channel 406",
    ),
}


def deep_table(depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        inner = b"\x01aF" + len(inner).to_bytes(4, "big") + inner
    return inner


BYTES["tables in tables without an end"] = (
    PUBLISH
    + framed(
        2,
        1,
        content_head(
            flags=0x2000,
            rest=len(deep_table(5000)).to_bytes(4, "big") + deep_table(5000),
        ),
    ),
    "connection 502",
)
BYTES["arguments in each other without an end"] = (
    framed(1, 1, DECLARE + len(deep_table(70)).to_bytes(4, "big") + deep_table(70)),
    "connection 501",
)


@pytest.mark.parametrize("what", BYTES)
def test_bad_bytes_are_answered_with_their_code_and_harm_nobody_else(call, patience_s, what):
    data, short = BYTES[what]
    bystander = call().channel()
    queue = bystander.queue(exclusive=True)
    raw = call()
    raw.channel(1)
    raw.send_bytes(data)
    with pytest.raises(Refused) as refused:
        raw.expect(1, Basic.QosOk, patience_s)
    assert refused.value.short == short
    bystander.publish("", queue, "well")
    assert bystander.get(queue).text == "well"


STEPS = {
    "open before the login": frames.marshal(Connection.Open(), 0),
    "a channel before the login": frames.marshal(Channel.Open(), 1),
    "tune-ok before the login": frames.marshal(Connection.TuneOk(), 0),
    "a large frame before the login": HEAD.pack(1, 0, 100_000) + bytes(100_000),
    "rubbish": b"\xff" * 64,
}


@pytest.mark.parametrize("what", STEPS)
def test_a_step_out_of_turn_ends_the_connection(call, what):
    raw = call(ready=False)
    raw.begin()
    raw.send_bytes(STEPS[what])
    with pytest.raises((Refused, Ended)):
        while True:
            raw.expect(0, Connection.Tune, 8)


def test_what_comes_before_a_bad_frame_counts(call):
    raw = call()
    channel = raw.channel(1)
    queue = channel.queue()
    channel.publish("", queue, "counts")
    raw.send_frame(9, 1, b"")
    with pytest.raises(Refused):
        raw.expect(1, Queue.PurgeOk)
    other = call().channel()
    assert until_message(other, queue).text == "counts"
    other.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def test_who_has_not_logged_in_costs_little(onelog_server):
    """A hundred peers send all that is taken of a frame before the login; nothing is kept."""
    before = onelog_server.rss_bytes()
    opened = [Raw(onelog_server.ports["amqp"]) for _ in range(100)]
    for raw in opened:
        raw.begin()
        raw.send_bytes(HEAD.pack(1, 0, 8000) + bytes(7000))
    with Raw(onelog_server.ports["amqp"]) as raw:
        raw.open()  # the broker has read what came before
    assert onelog_server.rss_bytes() - before < 30 * 1024 * 1024
    for raw in opened:
        raw.socket.close()
