"""What a message or a batch must be before it may be staged: pure checks of the publisher."""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidRequest
from onelog.base.limits import HEADERS_PER_RECORD_MAX
from onelog.kernel import scan_batches, validate_records
from onelog.log.handle import PartitionHandle
from onelog.log.stream import Stream
from onelog.record.batch import inflated_records, set_latest_time
from onelog.record.headers import TOPIC
from onelog.record.record import Message

RECORD_OVERHEAD_BYTES: Final = 64
"""What a record needs beside its topic, key, value and headers, at most."""

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


def check_headers(message: Message) -> int:
    """The bytes of a message's headers, if it may have them."""
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


def check_records(data: bytearray) -> None:
    """Look into every record of batches whose CRC is right; their latest time is set."""
    for info in scan_batches(data, 0, False):
        latest_ms = validate_records(data, info.position, inflated_records(data, info))
        if latest_ms != info.max_timestamp_ms:
            set_latest_time(data, info, latest_ms)
