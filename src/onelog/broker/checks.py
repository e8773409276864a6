"""Checks of a message before it is staged: pure functions of the publisher."""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidRequest, MessageTooLarge
from onelog.base.limits import HEADERS_PER_RECORD_MAX
from onelog.kernel import TIMESTAMP_MS_MAX
from onelog.log.handle import PartitionHandle
from onelog.log.stream import Stream
from onelog.record.headers import TOPIC
from onelog.record.record import Message

RECORD_OVERHEAD_BYTES: Final = 64
"""The most bytes that a record needs beside its topic, key, value and headers."""

Home = tuple[Stream, PartitionHandle, bytes]
"""Where a topic lives: its stream and partition, and the topic as bytes."""


def chosen_home(home: Home, number: int) -> Home:
    """The partition that the producer picked."""
    stream, usual, topic = home
    target = stream.partition(number)
    if target is not usual and stream.record.fixed_topic is None:
        # A cursor on the topic looks in its own partition only.
        raise InvalidRequest(
            f"{topic.decode()} lives in partition {usual.id} of stream {stream.name}; only a"
            " stream made for one topic lets its producers choose the partition"
        )
    return stream, target, topic


def check_shape(message: Message, home: Home) -> int:
    """The size of a message. Raises when its home does not accept a message of this shape."""
    stream, target, topic = home
    if message.timestamp_ms > TIMESTAMP_MS_MAX:
        raise InvalidRequest(f"a timestamp is at most {TIMESTAMP_MS_MAX} ms")
    size = len(topic) + len(message.value or b"") + len(message.key or b"")
    if message.headers:
        size += _check_headers(message)
    if size + RECORD_OVERHEAD_BYTES > target.message_bytes_max:
        raise MessageTooLarge(
            f"a message of {size} bytes is larger than stream {stream.name} takes"
            f" (message_bytes_max = {target.message_bytes_max})"
        )
    return size


def _check_headers(message: Message) -> int:
    """The bytes of a message's headers. Raises when it may not have them."""
    if len(message.headers) >= HEADERS_PER_RECORD_MAX:  # one is ours: the topic
        raise InvalidRequest(
            f"a message has at most {HEADERS_PER_RECORD_MAX - 1} headers,"
            f" not {len(message.headers)}"
        )
    size = 0
    for name, value in message.headers:
        if name == TOPIC:
            raise InvalidRequest("the header ~t belongs to OneLog; it names the record's topic")
        size += len(name) + len(value or b"") + 8
    return size
