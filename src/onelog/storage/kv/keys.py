"""The keys of the database, and nothing else: big endian, so that byte order is number order.

    0 n                               number that the next new partition gets
    0 p stream id 00 partition        number of a partition (u64; never used again)
    P m                               meta of partition P: its ends and segments (MessagePack)
    P b segment last                  one batch, under its last offset: a seek to an offset lands on
                                      the batch that holds it
    P x segment last                  its row: base offset, highest timestamp, size
    P t segment hash first            offsets of one topic hash in one append: u32 deltas to `first`
    P s name 00 offset                derived state
    P r segment                       a rewrite that is not committed writes this segment

A segment's number is never used again within its partition, so a segment is dropped by three range
deletions.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from onelog.base.errors import InvalidRequest
from onelog.base.ids import PartitionId
from onelog.storage.engine import PartitionKey

BATCH: Final = b"b"
ROW: Final = b"x"
TOPIC: Final = b"t"
STATE: Final = b"s"
STAGED: Final = b"r"
META: Final = b"m"
OF_SEGMENT: Final = (BATCH, ROW, TOPIC)

_SEGMENT: Final = struct.Struct(">QcQ")
_OFFSET: Final = struct.Struct(">Q")
_TOPIC: Final = struct.Struct(">IQ")
_ROW: Final = struct.Struct(">QqI")
_REGISTRY: Final = bytes(8) + b"p"
NEXT_PARTITION: Final = bytes(8) + b"n"


class BatchRow(NamedTuple):
    """The facts of a batch that are known without reading it."""

    base_offset: int
    max_timestamp_ms: int
    size_bytes: int


def number(value: int) -> bytes:
    """A u64."""
    return _OFFSET.pack(value)


def read_number(data: bytes) -> int:
    """A u64 back."""
    return int(_OFFSET.unpack(data)[0])


def of_partition(partition: int, kind: bytes) -> bytes:
    """Prefix of one kind of keys of a partition."""
    return _OFFSET.pack(partition) + kind


def of_segment(partition: int, kind: bytes, segment: int) -> bytes:
    """Prefix of one kind of keys of a segment."""
    return _SEGMENT.pack(partition, kind, segment)


def at_offset(prefix: bytes, offset: int) -> bytes:
    """The key of an offset under a segment's prefix."""
    return prefix + _OFFSET.pack(offset)


def offset_of(key: bytes) -> int:
    """The offset at the end of a key."""
    return int(_OFFSET.unpack_from(key, len(key) - 8)[0])


def of_topic(prefix: bytes, topic_hash: int, first: int) -> bytes:
    """The key of a topic entry."""
    return prefix + _TOPIC.pack(topic_hash, first)


def after(prefix: bytes) -> bytes:
    """The first key behind every key with this prefix."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def pack_row(row: BatchRow) -> bytes:
    """A batch's row as bytes."""
    return _ROW.pack(*row)


def unpack_row(data: bytes) -> BatchRow:
    """A batch's row from bytes."""
    return BatchRow(*_ROW.unpack(data))


def registered(key: PartitionKey) -> bytes:
    """Where a partition's number is."""
    if not key.stream_id or "\0" in key.stream_id or key.partition < 0:
        raise InvalidRequest(f"{key} cannot name a partition")
    return _REGISTRY + key.stream_id.encode() + b"\0" + struct.pack(">I", key.partition)


def all_registered() -> tuple[bytes, bytes]:
    """The range of every partition's registration."""
    return _REGISTRY, after(_REGISTRY)


def registered_key(key: bytes) -> PartitionKey:
    """The partition that a registration names."""
    name, partition = key[len(_REGISTRY) : -5], key[-4:]
    return PartitionKey(name.decode(), PartitionId(int.from_bytes(partition, "big")))
