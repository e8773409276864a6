"""The types of the kernel's arguments and results, the same compiled or interpreted.

Rules: `Buffer` is any contiguous bytes-like object; it is borrowed for the call and never kept,
except by `Slices`, which says so. Offsets and timestamps are plain ints here: the kernel is below
the floor where they get their names.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from mmap import mmap

    Buffer: TypeAlias = bytes | bytearray | memoryview | mmap

HEADER_BYTES = 61
"""Bytes of a batch before its records."""
PREFIX_BYTES = 12
"""Bytes of base offset and length, which the length field does not count."""
RECORD_BYTES_MIN = 7
"""Bytes of the smallest record: no key, no value, no headers."""
MAGIC = 2

ATTR_CODEC_MASK = 7
ATTR_LOG_APPEND_TIME = 8
ATTR_TRANSACTIONAL = 16
ATTR_CONTROL = 32
ATTR_DELETE_HORIZON = 64

TOPIC_HEADER = b"~t"
"""Key of the first header of a record whose key is not its topic."""
TIMESTAMP_MS_MAX = (1 << 62) - 1
"""Largest timestamp that the builder accepts: deltas can then never overflow."""
REL_MAX = (1 << 31) - 1
"""Highest offset in a log file, relative to its first."""
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""After so many appended bytes, the derived state of a partition is snapshotted again."""
CHECKPOINT_BYTES = 64 * 1024 * 1024
"""After so many newly durable bytes the recovery point of a log moves."""
NOTHING_HELD: deque[Any] = deque()
"""Shared by partitions that hold nothing for their feeds, which most do: a deque for each would
take much memory."""
RAW_TOPICS_MAX = 256
"""Appends whose topics wait unpacked for the topic index: each takes 130 bytes, a packed entry 8.
"""
RAW_TOPIC_BYTES_MAX = 64 * 1024
"""Bytes of topic entries that wait unpacked."""
OPEN_SYNCS_MAX = 4096
"""Syncs that the threads of the kernel are asked for, and that nobody has taken yet."""
REMAINING_LENGTH_MAX = 268_435_455
"""Largest number that MQTT's four length bytes hold."""

Header: TypeAlias = "tuple[bytes, bytes | None]"
Headers: TypeAlias = "Sequence[tuple[bytes, bytes | None]]"
Message: TypeAlias = "tuple[bytes | None, Buffer | None, Buffer | None, Headers, int]"
"""(topic, key, value, headers, timestamp_ms): what the builder stages."""
Record: TypeAlias = "tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]"
"""(offset, timestamp_ms, key, value, headers)."""
TopicRecord: TypeAlias = (
    "tuple[bytes | None, int, int, bytes | None, bytes | None, tuple[Header, ...]]"
)
"""(topic, offset, timestamp_ms, key, value, headers)."""


class BatchInfo(NamedTuple):
    """One batch of a scanned buffer: where it is and what its header says."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]


WITH_OFFSETS = 1
WITH_TIMESTAMPS = 2
WITH_KEYS = 4
WITH_VALUES = 8
WITH_HEADERS = 16
WITH_TOPICS = 32
"""Bits for the columns that `decode_columns` makes."""
COLUMN_BYTES_MAX = (1 << 31) - 1
"""Bytes of all items of one column: Arrow's offsets have 32 bits."""
BatchPiece: TypeAlias = "tuple[Buffer, int, Buffer | None]"
"""(buffer, position of a batch in it, its inflated records or None)."""
BinaryColumn: TypeAlias = "tuple[bytes, bytes, bytes]"
"""(validity bits, low bit first, or nothing when no item is null; i32 offsets; data)."""
HeaderColumn: TypeAlias = "tuple[bytes, bytes, bytes, bytes, bytes, bytes]"
"""(i32 offsets of the lists; offsets and data of names; validity, offsets, data of values)."""


class Columns(NamedTuple):
    """Records as Arrow buffers; columns that were not asked for are None."""

    count: int  # type: ignore[assignment]
    offsets: bytes | None
    """i64."""
    timestamps: bytes | None
    """i64, milliseconds."""
    keys: BinaryColumn | None
    values: BinaryColumn | None
    topics: BinaryColumn | None
    headers: HeaderColumn | None


FRAME = struct.Struct("<qqqqIIiiIIHhB3x")
"""The header of a batch that `rebuild_batches` makes: base offset, base and max timestamp, producer
id, last delta, count, leader epoch, sequence, CRC, first row, attributes, producer epoch, place."""
PLACE_ROWS = 0
"""The batch is rebuilt from its rows."""
PLACE_RAW = 1
"""The batch is kept as it was, and no row shows it."""
PLACE_BOTH = 2
"""The batch is kept as it was, and rows show its records as well as they can."""


class ProduceRequest(NamedTuple):
    """One Kafka Produce request; each partition is (index, start, end) of its batch.

    An end of -1 is null.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, int, int]]]]


class FetchRequest(NamedTuple):
    """One Kafka Fetch request; what its version lacks has the protocol's default.

    A topic is named, or from version 13 on the 16 bytes of its id. Each partition is (index,
    current_leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, max_bytes).
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    rack_id: str
    topics: list[tuple[str | bytes, list[tuple[int, int, int, int, int, int]]]]
    forgotten: list[tuple[str | bytes, list[int]]]


ProducedRow: TypeAlias = "tuple[int, int, int, int, int, str | None, Sequence[tuple[int, str]]]"
"""(partition, error code, base offset, log append time, log start offset, error message, bad
records: (index, message) of each)."""
Pieces: TypeAlias = "Buffer | list[Buffer] | tuple[Buffer, ...] | None"
FetchedRow: TypeAlias = (
    "tuple[int, int, int, int, int, Sequence[tuple[int, int]] | None, int, Pieces]"
)
"""(partition, error code, high watermark, last stable offset, log start offset, aborted
transactions as (producer id, first offset), preferred read replica, records)."""
RECORDS_COPIED_MAX = 8192
"""Bytes of fetched records that are cheaper copied into the answer than written as a piece."""
AbortedRow: TypeAlias = "tuple[int, int, int]"
"""(producer id, first offset, last offset) of an aborted transaction."""
ViewPiece: TypeAlias = "tuple[int, int, int, bytes | None]"
"""(base offset, start, end, None): stored batches; (base offset, 0, 0, batch): a new one."""
