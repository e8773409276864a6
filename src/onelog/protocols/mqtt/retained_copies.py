"""Copies of retained messages whose records leave their stream: `~retained`, compacted by topic.

Rules:
- A retained message is written once, to its home stream (I1). Only when retention is about to take
  that record, or compaction may, it is copied here, and the table points to the copy from then on.
- The copy and the table are durable before the record leaves.
- A copy names the stream of its original, and ends with that stream. A time to live of the stream
  becomes the expiry of the copy.
- When a newer retained message replaces a copy, or clears it, a tombstone removes the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from onelog.base.clock import Clock
from onelog.base.errors import OnelogError
from onelog.broker import (
    Broker,
    Cleanup,
    Live,
    Position,
    Record,
    Retention,
    Source,
    StreamConfig,
    TableCursor,
    check_known,
)
from onelog.kernel import BatchBuilder
from onelog.observe import get_logger
from onelog.protocols.mqtt.mapping import expiry_ms
from onelog.record.headers import EXPIRY, TOPIC, Headers
from onelog.record.reserved import read_text

STREAM: Final = "~retained"
STREAM_CONFIG: Final = StreamConfig(
    name=STREAM,
    cleanup=Cleanup.COMPACT,
    retention=Retention(age_ms=-1),
    segment_bytes=16 * 1024 * 1024,
)

ORIGIN: Final = b"~ro"
"""In a copy: the id of the stream that the message was published to."""

CHUNK_RECORDS: Final = 256
CHUNK_BYTES: Final = 1024 * 1024
_LOOK_ROWS: Final = 4096
"""Rows of the table that are looked at before others have a turn."""

_log = get_logger("mqtt")
_Row = tuple[int, Position, Record]


class Copies:
    """The stream of copies. Make one with `Copies.open`."""

    def __init__(
        self, broker: Broker, live: Live, clock: Clock, table: TableCursor, source: Source
    ) -> None:
        self._broker = broker
        self._live = live
        self._clock = clock
        self._table = table
        self._source = source
        self._dropped: list[str] = []

    @classmethod
    async def open(cls, broker: Broker, live: Live, clock: Clock, table: TableCursor) -> Copies:
        """Let the table read copies. The stream is created at the first start.

        Raises Unavailable when the stream is damaged.
        """
        stream = broker.streams.find(STREAM) or await broker.streams.create(STREAM_CONFIG)
        check_known(stream.partitions[0])
        live.know(stream)
        copies = cls(broker, live, clock, table, Source(stream, stream.partitions[0]))
        table.elsewhere, table.counts = copies._source, copies._counts
        return copies

    def __contains__(self, topic: str) -> bool:
        place = self._table.place_of(topic)
        return place is not None and self._is_own(place)

    def _is_own(self, place: Position) -> bool:
        return (place.stream_id, place.partition) == self._source.key

    def _counts(self, record: Record) -> bool:
        """Whether a copy counts: the stream that it is of is there."""
        return self._live.find((read_text(record.headers, ORIGIN), 0)) is not None

    # -- copying

    async def carry(
        self, key: tuple[str, int], upto: int, is_wanted: Callable[[Record], Awaitable[bool]]
    ) -> None:
        """Copy the retained messages of a partition below an offset. They are durable when it
        returns."""
        rows: list[_Row] = []
        size_bytes = carried = 0
        for at, number in enumerate(self._table.numbers()):
            if at % _LOOK_ROWS == _LOOK_ROWS - 1:
                await asyncio.sleep(0)
            place = self._table.place(number)
            if place is None or (place.stream_id, place.partition) != key or place.offset >= upto:
                continue
            record = await self._table.record(number)
            if record is None or not await is_wanted(record):
                continue
            if self._table.place(number) != place:
                continue  # a newer one came while this one was read
            rows.append((number, place, record))
            size_bytes += len(record.value or b"")
            if len(rows) == CHUNK_RECORDS or size_bytes >= CHUNK_BYTES:
                await self._append(key[0], rows)
                carried += len(rows)
                rows, size_bytes = [], 0
        if rows:
            await self._append(key[0], rows)
        if rows or carried:
            await self._broker.cursors.save(self._table)

    async def _append(self, origin: str, rows: list[_Row]) -> None:
        builder = BatchBuilder(True)
        for _number, _place, record in rows:
            topic = record.topic.encode()
            builder.add(
                topic, topic, record.value, self._headers(origin, record), record.timestamp_ms
            )
        appended = self._source.partition.append_built(builder, index_topics=False)
        await self._source.partition.wait_visible(appended.last_offset)
        for index, (number, place, record) in enumerate(rows):
            to = Position(*self._source.key, appended.base_offset + index)
            if not self._table.move(number, place, to):
                self.drop(record.topic)  # a newer one came meanwhile

    def _headers(self, origin: str, record: Record) -> Headers:
        kept = tuple(pair for pair in record.headers if pair[0] not in (TOPIC, EXPIRY, ORIGIN))
        ends_ms = expiry_ms(record.headers)
        ttl_ms = self._broker.streams.get(record.stream).config.message_ttl_ms
        if ttl_ms >= 0:
            end_ms = record.timestamp_ms + ttl_ms
            ends_ms = end_ms if ends_ms is None else min(ends_ms, end_ms)
        expiry = () if ends_ms is None else ((EXPIRY, b"%d" % ends_ms),)
        return (*kept, *expiry, (ORIGIN, origin.encode()))

    # -- dropping

    def drop(self, topic: str) -> None:
        """A copy is no longer needed; all of a pass are removed in one batch."""
        self._dropped.append(topic)
        if len(self._dropped) == 1:
            asyncio.get_running_loop().call_soon(self._write_dropped)

    def _write_dropped(self) -> None:
        dropped, self._dropped = self._dropped, []
        builder = BatchBuilder(False)
        now_ms = self._clock.now_ms()
        builder.extend([(None, topic.encode(), None, (), now_ms) for topic in dropped])
        try:
            self._source.partition.append_built(builder, index_topics=False)
        except OnelogError as error:  # the table knows: a copy that is left costs disk only
            _log.warning("copies of retained messages are left", reason=str(error))
