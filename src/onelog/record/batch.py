"""Record batches (Kafka RecordBatch v2): building, reading and the control batches of transactions.

Rules: the kernel does the bytes; this module adds what needs a library (compression) or a table
(control records). A batch's base offset and leader epoch lie outside its CRC, so that the
partition sets them in place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from onelog.base.errors import CorruptBatch
from onelog.base.limits import INFLATED_BYTES_MAX
from onelog.kernel import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_LOG_APPEND_TIME,
    ATTR_TRANSACTIONAL,
    HEADER_BYTES,
    BatchBuilder,
    BatchInfo,
    Slices,
    crc32c,
    decode_batch,
    scan_batches,
)
from onelog.record.compression import deflate, inflate
from onelog.record.headers import Headers

Buffer = bytes | bytearray | memoryview
Row = tuple[bytes | None, bytes | None, bytes | None, Headers, int]
"""One message for the builder: topic, key, value, headers, timestamp_ms."""

_CRC_FIELD: Final = struct.Struct(">I")
_LENGTH_FIELD: Final = struct.Struct(">i")
_ATTRIBUTES_FIELD: Final = struct.Struct(">h")
_TIME_FIELD: Final = struct.Struct(">q")
_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 8, 17, 21, 35
NO_TIME: Final = -1
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


class Marker(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


def build_batch(
    rows: Sequence[Row],
    *,
    base_offset: int = 0,
    codec: int = 0,
    tag_topics: bool = False,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """One batch from many rows; `producer` is (id, epoch, base sequence)."""
    builder = BatchBuilder(tag_topics)
    builder.extend(list(rows))
    batch = builder.seal(base_offset, 0, attributes, *producer)
    return compress_batch(batch, codec) if codec else batch


def compress_batch(batch: Buffer, codec: int) -> bytes:
    """The same batch with its records compressed."""
    view = memoryview(batch)
    return _with_section(view, deflate(codec, view[HEADER_BYTES:]), codec)


def recompressed(
    data: Buffer, info: BatchInfo, records: bytes | None, codec: int, level: int | None = None
) -> bytes:
    """The same batch in another codec; `records` are inflated, None: they are not compressed in
    it."""
    view = memoryview(data)[info.position : info.position + info.size_bytes]
    section = view[HEADER_BYTES:] if records is None else records
    return _with_section(view, deflate(codec, section, level), codec)


def _with_section(batch: memoryview, records: bytes, codec: int) -> bytes:
    """A batch with another section of records."""
    out = bytearray(batch[:HEADER_BYTES])
    out += records
    (attributes,) = _ATTRIBUTES_FIELD.unpack_from(out, _ATTRIBUTES_AT)
    _ATTRIBUTES_FIELD.pack_into(out, _ATTRIBUTES_AT, (attributes & ~ATTR_CODEC_MASK) | codec)
    _LENGTH_FIELD.pack_into(out, _LENGTH_AT, len(out) - 12)
    _CRC_FIELD.pack_into(out, _CRC_AT, crc32c(memoryview(out)[_ATTRIBUTES_AT:]))
    return bytes(out)


def plain_batch(data: Buffer, info: BatchInfo, records: bytes | None) -> bytes:
    """The same batch, not compressed and of no transaction; `records` are inflated, None: they are
    not compressed in it."""
    view = memoryview(data)[info.position : info.position + info.size_bytes]
    out = bytearray(view if records is None else view[:HEADER_BYTES])
    out += records or b""
    plain = info.attributes & ~(ATTR_CODEC_MASK | ATTR_TRANSACTIONAL)
    _ATTRIBUTES_FIELD.pack_into(out, _ATTRIBUTES_AT, plain)
    _LENGTH_FIELD.pack_into(out, _LENGTH_AT, len(out) - 12)
    _CRC_FIELD.pack_into(out, _CRC_AT, crc32c(memoryview(out)[_ATTRIBUTES_AT:]))
    return bytes(out)


def stamp_batch(data: bytearray | memoryview, info: BatchInfo, now_ms: int) -> BatchInfo:
    """Give all records of a batch one time, in place: the time of the append."""
    stamped = info._replace(
        attributes=info.attributes | ATTR_LOG_APPEND_TIME, max_timestamp_ms=now_ms
    )
    _write_times(data, stamped)
    return stamped


def set_latest_time(data: bytearray, info: BatchInfo, latest_ms: int) -> BatchInfo:
    """Set the latest time of its records in a batch's header, in place.

    Some clients write the time of the last record there, and retention would take the batch for
    older.
    """
    timed = info._replace(max_timestamp_ms=latest_ms)
    _write_times(data, timed)
    return timed


def _write_times(data: bytearray | memoryview, info: BatchInfo) -> None:
    position = info.position
    _ATTRIBUTES_FIELD.pack_into(data, position + _ATTRIBUTES_AT, info.attributes)
    _TIME_FIELD.pack_into(data, position + _MAX_TIMESTAMP_AT, info.max_timestamp_ms)
    with memoryview(data) as view:
        checked = view[position + _ATTRIBUTES_AT : position + info.size_bytes]
        _CRC_FIELD.pack_into(data, position + _CRC_AT, crc32c(checked))
        checked.release()


def append_time_of(info: BatchInfo) -> int:
    """When a batch was appended, if its records have that time."""
    return info.max_timestamp_ms if info.attributes & ATTR_LOG_APPEND_TIME else NO_TIME


def inflated_records(
    data: Buffer, info: BatchInfo, limit: int = INFLATED_BYTES_MAX
) -> bytes | None:
    """The inflated records of a compressed batch; None when it is not compressed.

    Raises MessageTooLarge when they have more bytes than `limit`.
    """
    codec = info.attributes & ATTR_CODEC_MASK
    if not codec:
        return None
    section = memoryview(data)[info.position + HEADER_BYTES : info.position + info.size_bytes]
    return inflate(codec, section, limit)


def decode(data: Buffer, info: BatchInfo, *, check_crc: bool = True) -> Slices:
    """The records of one scanned batch, inflated when needed."""
    return decode_batch(data, info.position, inflated_records(data, info), check_crc)


def iterate_batches(data: Buffer) -> Iterator[tuple[BatchInfo, Slices]]:
    """Every batch of a run with its records, control batches included."""
    for info in scan_batches(data):
        yield info, decode(data, info, check_crc=False)


def build_marker(
    marker: Marker, producer_id: int, producer_epoch: int, now_ms: int, coordinator_epoch: int = 0
) -> bytes:
    """The control batch that ends a transaction of a producer in one partition."""
    row: Row = (
        None,
        _MARKER_KEY.pack(0, marker),
        _MARKER_VALUE.pack(0, coordinator_epoch),
        (),
        now_ms,
    )
    return build_batch(
        [row],
        attributes=ATTR_CONTROL | ATTR_TRANSACTIONAL,
        producer=(producer_id, producer_epoch, -1),
    )


NO_COORDINATOR: Final = -1
"""The epoch of a coordinator where none is known."""


def read_marker(data: Buffer, info: BatchInfo) -> Marker | None:
    """The marker in a control batch; None for control records of other types."""
    found = read_end(data, info)
    return None if found is None else found[0]


def read_end(data: Buffer, info: BatchInfo) -> tuple[Marker, int] | None:
    """As `read_marker`, with the epoch of the coordinator that wrote it."""
    slices = decode(data, info, check_crc=False)
    key = slices.key(0) if len(slices) else None
    if key is None or len(key) < _MARKER_KEY.size:
        if not len(slices):
            return None  # compaction emptied it
        raise CorruptBatch(f"the control record at offset {info.base_offset} has no type")
    _version, kind = _MARKER_KEY.unpack_from(key)
    if kind not in (Marker.ABORT, Marker.COMMIT):
        return None
    value = slices.value(0)
    if value is None or len(value) < _MARKER_VALUE.size:
        return Marker(kind), NO_COORDINATOR
    _version, epoch = _MARKER_VALUE.unpack_from(value)
    return Marker(kind), epoch
