"""The builder of batches, interpreted, and the re-encoding for compaction.

Rules: a refused record leaves the builder as it was. The first record's timestamp is the batch's
base. A topic that is not the record's key is written as the first header `~t`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from onelog.base.errors import InvalidRequest, LimitExceeded, MessageTooLarge
from onelog.base.limits import BATCH_BYTES_MAX, HEADERS_PER_RECORD_MAX, RECORDS_PER_BATCH_MAX
from onelog.kernel import corruption as why
from onelog.kernel.pure.crc import crc32c
from onelog.kernel.pure.records import Batch, Span, open_batch
from onelog.kernel.pure.scan import CRC_FROM, HEADER
from onelog.kernel.pure.varint import I64_MAX, I64_MIN, encode_varint
from onelog.kernel.types import (
    ATTR_CODEC_MASK,
    ATTR_DELETE_HORIZON,
    ATTR_LOG_APPEND_TIME,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TIMESTAMP_MS_MAX,
    TOPIC_HEADER,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onelog.kernel.types import BinaryColumn, Buffer, Headers, Message


def put_field(out: bytearray, data: Buffer | None) -> None:
    """Write a field with its length in front."""
    if data is None:
        out.append(1)
        return
    raw = memoryview(data).cast("B")
    out += encode_varint(len(raw))
    out += raw


def seal_fields(fields: tuple[int, ...], records: bytes | bytearray) -> bytes:
    """Header and records with length, magic and CRC filled in.

    `fields`: base offset, epoch, attributes, last delta, base and max timestamp, producer id and
    epoch, sequence, count.
    """
    base, epoch, *rest = fields
    size = HEADER_BYTES + len(records)
    out = bytearray(HEADER.pack(base, size - PREFIX_BYTES, epoch, MAGIC, 0, *rest))
    out += records
    struct.pack_into(">I", out, CRC_FROM - 4, crc32c(memoryview(out)[CRC_FROM:]))
    return bytes(out)


class BatchBuilder:
    """Stages messages and seals them as one batch."""

    __slots__ = ("_base_ts", "_count", "_data", "_max_ts", "_tag_topics", "_topics")

    def __init__(self, tag_topics: bool) -> None:
        self._tag_topics = tag_topics
        self._clear()

    def _clear(self) -> None:
        self._data = bytearray()
        self._topics = bytearray()
        self._count = self._base_ts = self._max_ts = 0

    def another(self) -> BatchBuilder:
        """An empty builder with the same settings."""
        return BatchBuilder(self._tag_topics)

    @property
    def count(self) -> int:
        """Messages staged."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch that `seal` would make."""
        return HEADER_BYTES + len(self._data)

    @property
    def max_timestamp_ms(self) -> int:
        """The highest timestamp staged."""
        return self._max_ts

    def add(
        self,
        topic: bytes | None,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> int:
        """Stage one message. Returns its index in the batch."""
        if not -1 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            raise InvalidRequest(f"timestamp {timestamp_ms} is not between -1 and 2**62-1 ms")
        if self._count >= RECORDS_PER_BATCH_MAX:
            raise LimitExceeded(f"a batch holds at most {RECORDS_PER_BATCH_MAX} records")
        base = timestamp_ms if self._count == 0 else self._base_ts
        body = bytearray(b"\0") + encode_varint(timestamp_ms - base) + encode_varint(self._count)
        put_field(body, key)
        put_field(body, value)
        tag = self._tag_topics and topic is not None and _needs_tag(topic, key, headers)
        if len(headers) + tag > HEADERS_PER_RECORD_MAX:
            raise LimitExceeded(f"a record has at most {HEADERS_PER_RECORD_MAX} headers")
        body += encode_varint(len(headers) + tag)
        if tag:
            put_field(body, TOPIC_HEADER)
            put_field(body, topic)
        for name, content in headers:
            put_field(body, bytes(name))
            put_field(body, content)
        length = encode_varint(len(body))
        if self.size_bytes + len(length) + len(body) > BATCH_BYTES_MAX:
            raise MessageTooLarge(f"a batch holds at most {BATCH_BYTES_MAX} bytes")
        self._data += length
        self._data += body
        if self._tag_topics and topic is not None:
            self._topics += struct.pack("<II", crc32c(topic), self._count)
        self._base_ts = base
        self._max_ts = timestamp_ms if self._count == 0 else max(self._max_ts, timestamp_ms)
        self._count += 1
        return self._count - 1

    def extend(self, messages: Sequence[Message]) -> None:
        """Stage many messages, or none of them."""
        before = (self._count, self._base_ts, self._max_ts, len(self._data), len(self._topics))
        try:
            for topic, key, value, headers, timestamp_ms in messages:
                self.add(topic, key, value, headers, timestamp_ms)
        except BaseException:
            self._count, self._base_ts, self._max_ts, size, topics = before
            del self._data[size:], self._topics[topics:]
            raise

    def extend_columns(
        self,
        keys: BinaryColumn | None,
        values: BinaryColumn,
        first: int,
        end: int,
        timestamp_ms: int,
    ) -> None:
        """Stage the rows [first, end) of columns, or none of them; `keys` may be None."""
        if not 0 <= first <= end:
            raise InvalidRequest(f"rows {first} to {end} are no rows of a column")
        rows = range(first, end)
        keyed = [None] * len(rows) if keys is None else items_of(keys, rows)
        found = zip(keyed, items_of(values, rows), strict=True)
        self.extend([(None, key, value, (), timestamp_ms) for key, value in found])

    def topics(self) -> bytes:
        """u32 pairs (topic hash, index), little endian, of the staged messages with a topic."""
        return bytes(self._topics)

    def seal(
        self,
        base_offset: int,
        leader_epoch: int = 0,
        attributes: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
    ) -> bytes:
        """Seal the staged messages as one batch. The builder is empty again."""
        if self._count == 0:
            raise InvalidRequest("nothing is staged: a batch needs a message")
        if base_offset < 0:
            raise InvalidRequest(f"base offset {base_offset} is negative")
        batch = seal_fields(
            (
                base_offset, leader_epoch, attributes, self._count - 1, self._base_ts,
                self._max_ts, producer_id, producer_epoch, base_sequence, self._count,
            ),
            self._data,
        )  # fmt: skip
        self._clear()
        return batch


def items_of(column: BinaryColumn, rows: range) -> list[bytes | None]:
    """The items of some rows."""
    bits, ends, data = (memoryview(part).cast("B") for part in column)
    if len(bits) and len(bits) < (rows.stop + 7) // 8:
        raise InvalidRequest(f"a column of {rows.stop} rows has {len(bits)} bytes of validity bits")
    if len(ends) < 4 * (rows.stop + 1):
        raise InvalidRequest(f"a column of {rows.stop} rows has {len(ends)} bytes of offsets")
    found: list[bytes | None] = []
    for row in rows:
        if len(bits) and not bits[row >> 3] >> (row & 7) & 1:
            found.append(None)
            continue
        start, end = struct.unpack_from("<ii", ends, 4 * row)
        if not 0 <= start <= end <= len(data):
            raise InvalidRequest(f"the offsets of row {row} lie outside of its column's data")
        found.append(bytes(data[start:end]))
    return found


def _needs_tag(topic: bytes, key: Buffer | None, headers: Headers) -> bool:
    """Whether the topic must be written: the key is another, or a header would be read first."""
    if key is None or bytes(key) != topic:
        return True
    return len(headers) > 0 and bytes(headers[0][0]) == TOPIC_HEADER


def _moved(batch: Batch, span: Span, base_timestamp_ms: int, at: int) -> bytes:
    """A record's bytes with its timestamp counted from another base."""
    view, start = batch.view, span.start
    delta = batch.info.base_timestamp_ms + span.timestamp_delta - base_timestamp_ms
    if not I64_MIN <= delta <= I64_MAX:
        raise why.corrupt(why.BAD_TIMESTAMP, batch.info.position, at)
    while view[start] & 0x80:
        start += 1
    attributes = start + 1
    start = attributes + 1
    while view[start] & 0x80:
        start += 1
    body = (
        bytes(view[attributes : attributes + 1])
        + encode_varint(delta)
        + bytes(view[start + 1 : span.end])
    )
    return encode_varint(len(body)) + body


def keep_records(
    buf: Buffer,
    pos: int,
    keep: Sequence[bool] | bytes,
    records: Buffer | None = None,
    delete_horizon_ms: int = -1,
) -> bytes:
    """The batch at `pos` with only the kept records, uncompressed; no offset moves.

    A `delete_horizon_ms` becomes the base timestamp and sets the attribute that says so, as Kafka
    does. The max timestamp is that of the kept records (of the old batch if none is kept or the
    broker stamped them).
    """
    batch = open_batch(buf, pos, records)
    info = batch.info
    if len(keep) != info.count:
        raise InvalidRequest(f"the mask has {len(keep)} entries for {info.count} records")
    kept = [(at, span) for at, span in enumerate(batch.spans) if keep[at]]
    attributes = info.attributes & ~ATTR_CODEC_MASK
    base_ts, max_ts = info.base_timestamp_ms, info.max_timestamp_ms
    if kept and not attributes & ATTR_LOG_APPEND_TIME:
        max_ts = max(batch.timestamp_ms(span) for _, span in kept)
    if delete_horizon_ms >= 0:
        attributes |= ATTR_DELETE_HORIZON
        base_ts = delete_horizon_ms
        data = b"".join(_moved(batch, span, base_ts, at) for at, span in kept)
    else:
        data = b"".join(bytes(batch.view[span.start : span.end]) for _, span in kept)
    if HEADER_BYTES + len(data) > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"the kept records need more than {BATCH_BYTES_MAX} bytes")
    return seal_fields(
        (
            info.base_offset, info.leader_epoch, attributes, info.last_offset - info.base_offset,
            base_ts, max_ts, info.producer_id, info.producer_epoch, info.base_sequence, len(kept),
        ),
        data,
    )  # fmt: skip
