"""The records of one batch, interpreted: walk, validate, topics, slices.

Rules: one walk checks everything (lengths exact, offset deltas strictly ascending, timestamps in
range, count exact) before a caller sees a record. The topic of a record is the value of its first
header if that header's key is `~t`, else its key.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from onelog.base.errors import InvalidRequest
from onelog.base.limits import HEADERS_PER_RECORD_MAX, INFLATED_BYTES_MAX
from onelog.kernel import corruption as why
from onelog.kernel.pure.crc import crc32c
from onelog.kernel.pure.scan import batch_at, check_span
from onelog.kernel.pure.varint import I64_MAX, I64_MIN, read_varint
from onelog.kernel.types import (
    ATTR_CODEC_MASK,
    ATTR_LOG_APPEND_TIME,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    TOPIC_HEADER,
    BatchInfo,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from onelog.kernel.types import Buffer, Header, Record


class Span(NamedTuple):
    """Where one record and its parts lie; a length of -1 is null."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: int
    key_bytes: int
    value: int
    value_bytes: int
    headers: int
    header_count: int


class Batch(NamedTuple):
    """One decoded batch: its header, the bytes that its records are in, and the records."""

    info: BatchInfo
    view: memoryview
    spans: list[Span]

    def timestamp_ms(self, span: Span) -> int:
        """The time of a record: its own, or the batch's when the broker stamped it."""
        if self.info.attributes & ATTR_LOG_APPEND_TIME:
            return self.info.max_timestamp_ms
        return self.info.base_timestamp_ms + span.timestamp_delta

    def key(self, span: Span) -> bytes | None:
        """A record's key."""
        return _part(self.view, span.key, span.key_bytes)

    def value(self, span: Span) -> bytes | None:
        """A record's value."""
        return _part(self.view, span.value, span.value_bytes)

    def headers(self, span: Span) -> tuple[Header, ...]:
        """A record's headers, in order."""
        found: list[Header] = []
        position = span.headers
        for _ in range(span.header_count):
            name, position = _field(self.view, position)
            value, position = _field(self.view, position)
            assert name is not None
            found.append((name, value))
        return tuple(found)

    def topic(self, span: Span) -> bytes | None:
        """A record's topic."""
        if span.header_count:
            name, position = _field(self.view, span.headers)
            if name == TOPIC_HEADER:
                return _field(self.view, position)[0]
        return self.key(span)


def _part(view: memoryview, position: int, size: int) -> bytes | None:
    return None if size < 0 else bytes(view[position : position + size])


def _field(view: memoryview, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(view, position, len(view))
    return _part(view, position, size), position + max(size, 0)


class _Bad(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


def _take(view: memoryview, position: int, end: int) -> tuple[int, int]:
    value, position = read_varint(view, position, end)
    if position < 0:
        raise _Bad(why.BAD_VARINT)
    return value, position


def _skip(view: memoryview, position: int, end: int, lowest: int, code: int) -> tuple[int, int]:
    """Read a length and step over its bytes: the length and where the bytes begin."""
    size, position = _take(view, position, end)
    if not lowest <= size <= end - position:
        raise _Bad(code)
    return size, position


def _walk_headers(view: memoryview, position: int, end: int) -> tuple[int, int, int]:
    """Count, first byte and end of a record's headers."""
    count, position = _take(view, position, end)
    if not 0 <= count <= min(HEADERS_PER_RECORD_MAX, (end - position) // 2):
        raise _Bad(why.BAD_HEADERS)
    first = position
    for _ in range(count):
        size, position = _skip(view, position, end, 0, why.BAD_HEADERS)
        position += size
        size, position = _skip(view, position, end, -1, why.BAD_HEADERS)
        position += max(size, 0)
    return count, first, position


def read_span(view: memoryview, start: int, limit: int) -> Span:
    """The record at `start`, checked."""
    size, position = _take(view, start, limit)
    if not RECORD_BYTES_MIN - 1 <= size <= limit - position:
        raise _Bad(why.BAD_RECORD_LENGTH)
    end = position + size
    timestamp_delta, position = _take(view, position + 1, end)
    offset_delta, position = _take(view, position, end)
    key_bytes, key = _skip(view, position, end, -1, why.BAD_KEY)
    value_bytes, value = _skip(view, key + max(key_bytes, 0), end, -1, why.BAD_VALUE)
    count, headers, position = _walk_headers(view, value + max(value_bytes, 0), end)
    if position != end:
        raise _Bad(why.RECORD_TAIL)
    return Span(
        start, end, timestamp_delta, offset_delta,
        key, key_bytes, value, value_bytes, headers, count,
    )  # fmt: skip


def _check_deltas(info: BatchInfo, span: Span, last: int) -> None:
    if not last < span.offset_delta <= info.last_offset - info.base_offset:
        raise _Bad(why.BAD_OFFSET_DELTA)
    if not I64_MIN <= info.base_timestamp_ms + span.timestamp_delta <= I64_MAX:
        raise _Bad(why.BAD_TIMESTAMP)


def _check_place(info: BatchInfo, span: Span, delta: int) -> None:
    _check_deltas(info, span, delta - 1)
    if span.offset_delta != delta:
        raise _Bad(why.BAD_OFFSET_DELTA)


def walk(info: BatchInfo, view: memoryview, start: int, end: int) -> Iterator[Span]:
    """The records between `start` and `end`, each checked before it is handed out."""
    last = -1
    index = 0
    if info.count * RECORD_BYTES_MIN > end - start:
        raise why.corrupt(why.BAD_COUNT, info.position)
    try:
        while index < info.count:
            span = read_span(view, start, end)
            _check_deltas(info, span, last)
            last = span.offset_delta
            start = span.end
            yield span
            index += 1
    except _Bad as bad:
        raise why.corrupt(bad.code, info.position, index) from None
    if start != end:
        raise why.corrupt(why.BATCH_TAIL, info.position)


def _find(
    info: BatchInfo, view: memoryview, start: int, end: int, deltas: Iterable[int]
) -> Iterator[Span]:
    """The records at ascending offset deltas of a batch that has every offset, each checked.

    The others are passed over by their lengths.
    """
    index, position = 0, start
    if info.count * RECORD_BYTES_MIN > end - start:
        raise why.corrupt(why.BAD_COUNT, info.position)
    try:
        for delta in deltas:
            if delta < index:
                index, position = 0, start
            while index < delta:
                size, position = _skip(
                    view, position, end, RECORD_BYTES_MIN - 1, why.BAD_RECORD_LENGTH
                )
                position += size
                index += 1
            span = read_span(view, position, end)
            _check_place(info, span, delta)
            yield span
    except _Bad as bad:
        raise why.corrupt(bad.code, info.position, index) from None


def _open(
    buf: Buffer, position: int, records: Buffer | None, check_crc: bool
) -> tuple[BatchInfo, memoryview, int, int]:
    """Header of the batch at `position`, and the bytes that its records are in."""
    view = memoryview(buf).cast("B")
    check_span(view, position, len(view))
    info = batch_at(view, position, len(view), check_crc)
    if records is not None:
        view = memoryview(records).cast("B")
        if len(view) > INFLATED_BYTES_MAX:
            raise why.corrupt(why.BAD_INFLATED, position)
        return info, view, 0, len(view)
    if info.attributes & ATTR_CODEC_MASK:
        raise InvalidRequest(f"the batch at byte {position} is compressed: give its records")
    return info, view, position + HEADER_BYTES, position + info.size_bytes


def open_batch(
    buf: Buffer, position: int, records: Buffer | None, check_crc: bool = False
) -> Batch:
    """Decode the batch at `position`; `records` holds its inflated records, if compressed."""
    info, view, start, end = _open(buf, position, records, check_crc)
    return Batch(info, view, list(walk(info, view, start, end)))


def batch_of_places(buf: Buffer, offsets: Iterable[int]) -> Batch:
    """The plain batch at byte 0, with the records at these ascending offsets only.

    Of a batch that lost records, all records are checked; else those at the offsets.
    """
    info, view, start, end = _open(buf, 0, None, False)
    deltas = [at - info.base_offset for at in offsets if info.base_offset <= at <= info.last_offset]
    if info.count == info.last_offset - info.base_offset + 1:
        return Batch(info, view, list(_find(info, view, start, end, deltas)))
    there = {span.offset_delta: span for span in walk(info, view, start, end)}
    return Batch(info, view, [there[delta] for delta in deltas if delta in there])


def validate_records(
    buf: Buffer, pos: int = 0, records: Buffer | None = None, need_keys: bool = False
) -> int:
    """Check every record of the batch at `pos`. Returns the latest time. Raises CorruptBatch."""
    batch = open_batch(buf, pos, records)
    return latest_time(batch.info, batch.spans, need_keys)


def latest_time(info: BatchInfo, spans: Iterable[Span], need_keys: bool) -> int:
    """Check the keys of all records, if they must have one. Returns the latest time."""
    deltas: list[int] = []
    for index, span in enumerate(spans):
        if need_keys and span.key_bytes < 0:
            raise why.corrupt(why.NO_KEY, info.position, index)
        deltas.append(span.timestamp_delta)
    if info.attributes & ATTR_LOG_APPEND_TIME or not deltas:
        return info.max_timestamp_ms
    return info.base_timestamp_ms + max(deltas)


def batch_topics(buf: Buffer, pos: int = 0, records: Buffer | None = None) -> bytes:
    """u32 pairs (topic hash, offset delta), little endian, of the records that have a topic."""
    batch = open_batch(buf, pos, records)
    out = bytearray()
    for span in batch.spans:
        topic = batch.topic(span)
        if topic is not None:
            out += struct.pack("<II", crc32c(topic), span.offset_delta)
    return bytes(out)


class Slices:
    """The records of one batch as positions in its buffer; their bytes are copied when asked for.

    It keeps the buffer: while it lives, a bytearray cannot be resized, nor a mapping closed.
    """

    __slots__ = ("_batch",)

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch.spans)

    def _span(self, index: int) -> Span:
        if not 0 <= index < len(self._batch.spans):
            raise IndexError(f"record {index} of {len(self._batch.spans)}")
        return self._batch.spans[index]

    def offset(self, index: int) -> int:
        """Offset of a record."""
        return self._batch.info.base_offset + self._span(index).offset_delta

    def offsets(self) -> list[int]:
        """Offsets of all records."""
        base = self._batch.info.base_offset
        return [base + span.offset_delta for span in self._batch.spans]

    def timestamp_ms(self, index: int) -> int:
        """Timestamp of a record."""
        return self._batch.timestamp_ms(self._span(index))

    def key(self, index: int) -> bytes | None:
        """Key of a record."""
        return self._batch.key(self._span(index))

    def value(self, index: int) -> bytes | None:
        """Value of a record."""
        return self._batch.value(self._span(index))

    def topic(self, index: int) -> bytes | None:
        """Topic of a record."""
        return self._batch.topic(self._span(index))

    def record(self, index: int) -> Record:
        """(offset, timestamp_ms, key, value, headers) of a record."""
        span, batch = self._span(index), self._batch
        return (
            batch.info.base_offset + span.offset_delta,
            batch.timestamp_ms(span),
            batch.key(span),
            batch.value(span),
            batch.headers(span),
        )

    def records(self) -> list[Record]:
        """All records."""
        return [self.record(index) for index in range(len(self))]


def decode_batch(
    buf: Buffer, pos: int = 0, records: Buffer | None = None, check_crc: bool = True
) -> Slices:
    """The batch at `pos` as slices, every record checked."""
    return Slices(open_batch(buf, pos, records, check_crc))
