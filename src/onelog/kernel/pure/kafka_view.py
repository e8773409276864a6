"""The batches that a view shows, and the records that are written through one, interpreted.

Rules: a batch whose records all match is returned by its position. Of a mixed batch only the
matching records are written again, with the same offsets and without a producer; for one exact
topic such a batch ends with its last match, as the view does. Records in a stream of one topic do
not carry their topic: for a filter they are written again with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.base.errors import MessageTooLarge
from onelog.base.limits import BATCH_BYTES_MAX, HEADERS_PER_RECORD_MAX, INFLATED_BYTES_MAX
from onelog.kernel import corruption as why
from onelog.kernel.pure.build import seal_fields
from onelog.kernel.pure.records import Batch, Span, open_batch, walk
from onelog.kernel.pure.scan import batch_at, check_span
from onelog.kernel.pure.varint import encode_varint, read_varint
from onelog.kernel.types import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_LOG_APPEND_TIME,
    ATTR_TRANSACTIONAL,
    HEADER_BYTES,
    TOPIC_HEADER,
    BatchInfo,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onelog.kernel.pure.filters import TopicFilter
    from onelog.kernel.types import AbortedRow, Buffer, ViewPiece

NAMED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of records that are written with their topic in one call, unless one alone has more."""


def _is_hidden(info: BatchInfo, aborted: Sequence[AbortedRow]) -> bool:
    if info.attributes & ATTR_CONTROL:
        return True
    return bool(info.attributes & ATTR_TRANSACTIONAL) and any(
        producer_id == info.producer_id and first <= info.base_offset <= last
        for producer_id, first, last in aborted
    )


def _write_again(batch: Batch, kept: list[Span], last_delta: int) -> bytes:
    records = b"".join(bytes(batch.view[span.start : span.end]) for span in kept)
    if HEADER_BYTES + len(records) > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"the kept records need more than {BATCH_BYTES_MAX} bytes")
    return _seal_again(batch, kept, records, last_delta)


def _seal_again(batch: Batch, kept: list[Span], records: bytes, last_delta: int) -> bytes:
    info = batch.info
    max_ts = info.max_timestamp_ms
    if not info.attributes & ATTR_LOG_APPEND_TIME:
        max_ts = max(batch.timestamp_ms(span) for span in kept)
    return seal_fields(
        (
            info.base_offset, info.leader_epoch,
            info.attributes & ~(ATTR_CODEC_MASK | ATTR_TRANSACTIONAL),
            last_delta, info.base_timestamp_ms, max_ts,
            -1, -1, -1, len(kept),
        ),
        records,
    )  # fmt: skip


class _Look:
    """One call of `view_batches` under way."""

    def __init__(
        self, view: memoryview, wanted: TopicFilter, start_offset: int, default: bytes | None
    ) -> None:
        self._view = view
        self._wanted = wanted
        self._start_offset = start_offset
        self.all_match = default is not None and wanted.matches(default)
        self.none_matches = default is not None and not self.all_match
        self._topic = default if self.all_match and not wanted.exact else None
        """The topic to write records with; None: they go out as they are."""
        self.cut_at: int | None = None
        """The first offset for which there was no more room."""
        self.pieces: list[ViewPiece] = []

    def is_whole(self, info: BatchInfo) -> bool:
        """Whether a batch goes out as it is, without a look at its records."""
        dense = info.count == info.last_offset - info.base_offset + 1
        sure = self.all_match and self._topic is None
        return sure and (self._start_offset <= info.base_offset or dense)

    def _add_stored(self, info: BatchInfo) -> None:
        end = info.position + info.size_bytes
        if self.pieces:
            base, start, last_end, made = self.pieces[-1]
            if made is None and last_end == info.position:
                self.pieces[-1] = (base, start, end, None)
                return
        self.pieces.append((info.base_offset, info.position, end, None))

    def see(self, info: BatchInfo, records: Buffer | None) -> None:
        """Show one batch."""
        if self.is_whole(info):
            self._add_stored(info)
            return
        if records is None:
            source, start, end = self._view, info.position + HEADER_BYTES, info.position
            end += info.size_bytes
        else:
            source = memoryview(records).cast("B")
            start, end = 0, len(source)
        batch = Batch(info, source, [])
        if self._topic is not None:
            self._see_named(batch, list(walk(info, source, start, end)), self._topic)
            return
        kept = []
        for span in walk(info, source, start, end):
            topic = None if self.all_match else batch.topic(span)
            if self.all_match or (topic is not None and self._wanted.matches(topic)):
                kept.append(span)
        if not kept or info.base_offset + kept[-1].offset_delta < self._start_offset:
            return
        last_delta = info.last_offset - info.base_offset
        if self._wanted.exact and not self.all_match:
            # A reader that went on behind the topic's end would not know that it ended.
            last_delta = kept[-1].offset_delta
        if len(kept) == info.count and info.base_offset + last_delta == info.last_offset:
            self._add_stored(info)
        else:
            self.pieces.append((info.base_offset, 0, 0, _write_again(batch, kept, last_delta)))

    def _see_named(self, batch: Batch, spans: list[Span], topic: bytes) -> None:
        """Show a batch whose records have one topic and may lack it."""
        info = batch.info
        shown = [row for row in spans if info.base_offset + row.offset_delta >= self._start_offset]
        if not shown:
            return
        is_huge = any(HEADER_BYTES + row.end - row.start > BATCH_BYTES_MAX for row in shown)
        named = [_named(batch, row, topic) for row in shown]
        if is_huge or all(row is None for row in named):
            # A batch that would be too large stays as it was compressed.
            self._add_stored(info)
            return
        parts: list[bytes] = []
        size = HEADER_BYTES
        for row, made in zip(shown, named, strict=True):
            part = bytes(batch.view[row.start : row.end]) if made is None else made
            if parts and size + len(part) > NAMED_BYTES_MAX:
                self.cut_at = info.base_offset + row.offset_delta
                break
            parts.append(part)
            size += len(part)
        kept = shown[: len(parts)]
        last_delta = info.last_offset - info.base_offset
        if self.cut_at is not None:
            last_delta = kept[-1].offset_delta
        made = _seal_again(batch, kept, b"".join(parts), last_delta)
        self.pieces.append((info.base_offset, 0, 0, made))


def _named(batch: Batch, span: Span, topic: bytes) -> bytes | None:
    """A record with its topic; None: it has it, or has no room for it."""
    if batch.topic(span) == topic or span.header_count >= HEADERS_PER_RECORD_MAX:
        return None
    made = _tagged(batch, span, topic)
    return made if HEADER_BYTES + len(made) <= BATCH_BYTES_MAX else None


def view_batches(
    data: Buffer,
    position: int,
    topic_filter: TopicFilter,
    start_offset: int,
    aborted: Iterable[AbortedRow] = (),
    default_topic: bytes | None = None,
    records: Buffer | None = None,
) -> tuple[list[ViewPiece], int, int]:
    """The batches that a view shows, from `position` on: (pieces, reached, position).

    A piece is (base offset, start, end, None) for stored batches that match as they are, or (base
    offset, 0, 0, batch) for one that was written again. Control batches and those of `aborted`
    (producer id, first offset, last offset) are hidden, and so are batches without a match at or
    after `start_offset`. Everything below `reached` was looked at. It stops before a compressed
    batch: then the caller gives its inflated `records`, and only that batch is looked at.

    `default_topic` is the topic of records that do not carry one. For a filter with wildcards such
    a batch is written again with the topic in each record, some MiB per call: then `position` is
    the end of the data, and the records from `reached` on are to be read again. A record without
    room for one more header stays as it is.
    """
    view = memoryview(data).cast("B")
    check_span(view, position, len(view))
    if records is not None and len(memoryview(records).cast("B")) > INFLATED_BYTES_MAX:
        raise why.corrupt(why.BAD_INFLATED, position)
    hidden = list(aborted)
    look = _Look(view, topic_filter, start_offset, default_topic)
    reached = start_offset
    while position < len(view):
        info = batch_at(view, position, len(view), check_crc=True)
        if (
            info.last_offset >= start_offset
            and info.count
            and not look.none_matches
            and not _is_hidden(info, hidden)
        ):
            compressed = info.attributes & ATTR_CODEC_MASK
            if compressed and records is None and not look.is_whole(info):
                break
            look.see(info, records)
            if look.cut_at is not None:
                return look.pieces, look.cut_at, len(view)
        position += info.size_bytes
        reached = max(reached, info.last_offset + 1)
        if records is not None:
            break
    return look.pieces, reached, position


# -- writing through a view


def tag_batch(data: Buffer, topic: bytes, producer_id: int, records: Buffer | None = None) -> bytes:
    """The batch at the start of `data`, uncompressed, with this topic in every record.

    A record whose key is the topic carries it already. `producer_id` replaces the batch's;
    `records` holds its inflated records, if it is compressed.
    """
    batch = open_batch(data, 0, records)
    info = batch.info
    out = b"".join(
        bytes(batch.view[span.start : span.end])
        if batch.topic(span) == topic
        else _checked_tag(batch, span, topic, index)
        for index, span in enumerate(batch.spans)
    )
    if HEADER_BYTES + len(out) > BATCH_BYTES_MAX:
        raise MessageTooLarge(f"the tagged records need more than {BATCH_BYTES_MAX} bytes")
    return seal_fields(
        (
            info.base_offset, info.leader_epoch, info.attributes & ~ATTR_CODEC_MASK,
            info.last_offset - info.base_offset, info.base_timestamp_ms, info.max_timestamp_ms,
            producer_id, info.producer_epoch, info.base_sequence, info.count,
        ),
        out,
    )  # fmt: skip


def _checked_tag(batch: Batch, span: Span, topic: bytes, index: int) -> bytes:
    if span.header_count >= HEADERS_PER_RECORD_MAX:
        raise why.corrupt(why.BAD_HEADERS, batch.info.position, index)
    return _tagged(batch, span, topic)


def _tagged(batch: Batch, span: Span, topic: bytes) -> bytes:
    view = batch.view
    start = read_varint(view, span.start, span.end)[1]
    count_at = span.value + max(span.value_bytes, 0)
    body = b"".join(
        (
            bytes(view[start:count_at]),
            encode_varint(span.header_count + 1),
            encode_varint(len(TOPIC_HEADER)) + TOPIC_HEADER,
            encode_varint(len(topic)) + topic,
            bytes(view[span.headers : span.end]),
        )
    )
    return encode_varint(len(body)) + body
