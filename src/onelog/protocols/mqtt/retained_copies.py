"""Copies of retained messages whose records leave their stream: `~retained`, compacted by topic.

Rules:
- A retained message is written once, to its home stream (I1). Only when retention is about to take
  that record, or compaction may, it is copied here, and the table points to the copy from then on.
- The copy and the table are durable before the record leaves.
- A copy names the stream of its original, and ends with that stream. A time to live of the stream
  becomes the expiry of the copy.
- When a newer retained message replaces a copy, or clears it, a tombstone removes the copy.
- On several nodes each has a table of its own. The leader of a partition copies what leaves it into
  any partition of `~retained` that it leads, and says which record that was; the other nodes follow
  `~retained`, and move what is still that record in their tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import Conflict, NotLeader, OnelogError
from onelog.broker import (
    Broker,
    Cleanup,
    Live,
    Position,
    Record,
    Retention,
    Source,
    SourceKey,
    StreamConfig,
    TableCursor,
    check_known,
    kept_batches,
)
from onelog.kernel import BatchBuilder
from onelog.observe import get_logger
from onelog.protocols.mqtt.mapping import expiry_ms
from onelog.record.batch import iterate_batches
from onelog.record.headers import EXPIRY, TOPIC, Headers
from onelog.record.reserved import OFFSET_MAX, parse_number, read_text

STREAM: Final = "~retained"
STREAM_CONFIG: Final = StreamConfig(
    name=STREAM,
    cleanup=Cleanup.COMPACT,
    retention=Retention(age_ms=-1),
    segment_bytes=16 * 1024 * 1024,
)

PLACE: Final = b"~rp"
"""In a copy for other nodes: partition and offset of the original."""
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
        self,
        broker: Broker,
        live: Live,
        clock: Clock,
        table: TableCursor,
        sources: Sequence[Source],
        *,
        is_kept: bool,
    ) -> None:
        self._broker = broker
        self._live = live
        self._clock = clock
        self._table = table
        self._sources = {source.key: source for source in sources}
        self._is_kept = is_kept
        """Whether the table is kept, with the places of copies."""
        self._dropped: dict[SourceKey, list[str]] = {}
        self._undo = ExitStack()

    @classmethod
    async def open(
        cls,
        broker: Broker,
        live: Live,
        clock: Clock,
        table: TableCursor,
        cleared: Container[str] | None = None,
    ) -> Copies:
        """Let the table read copies. The stream is created at the first start.

        `cleared` are topics without a retained message, for a table that was made anew; None: it is
        kept. Raises Unavailable when the stream is damaged.
        """
        is_kept = cleared is None
        count = 1 if is_kept else len(broker.shards)
        stream = await broker.own_stream(msgspec.structs.replace(STREAM_CONFIG, partitions=count))
        for partition in stream.partitions:
            check_known(partition)
        live.know(stream)
        sources = [Source(stream, partition) for partition in stream.partitions]
        copies = cls(broker, live, clock, table, sources, is_kept=is_kept)
        table.elsewhere, table.counts = copies._sources, copies._counts
        if cleared is not None:
            for source in sources:
                await copies._find(source, cleared)
        return copies

    def close(self) -> None:
        """Follow the copies of other nodes no more. Idempotent."""
        self._undo.close()

    # -- copies of other nodes

    async def _find(self, source: Source, cleared: Container[str]) -> None:
        """Find copies for a table that was made anew, which are older than what it has; then follow
        those that come."""
        found: dict[str, tuple[int, int]] = {}
        async for _info, slices in kept_batches(source.partition):
            for index in range(len(slices)):
                offset, time_ms, key, value, _headers = slices.record(index)
                topic = (key or b"").decode()
                if value is None:
                    found.pop(topic, None)
                else:
                    found[topic] = (offset, time_ms)
        for topic, (offset, time_ms) in found.items():
            if topic in cleared:
                continue
            known = self._table.place_of(topic)
            if known is not None and not self._is_older_copy(topic, time_ms):
                continue
            self._table.note(topic, source.key, offset, present=True)
        feed = partial(self._copied, source)
        source.partition.follow(feed)
        self._undo.callback(source.partition.unfollow, feed)

    def _is_older_copy(self, topic: str, time_ms: int) -> bool:
        """Whether the table has a copy from another partition, of an older message."""
        if topic not in self:
            return False
        record = self._table.get(topic)
        return record is None or record.timestamp_ms < time_ms

    def _copied(self, source: Source, data: bytes | bytearray) -> None:
        """The leader of a partition of `~retained` wrote copies, or dropped them."""
        if not isinstance(source.partition.refusal, NotLeader):
            return  # it is this node
        for _info, slices in iterate_batches(data):
            for index in range(len(slices)):
                offset, _time, key, value, headers = slices.record(index)
                topic = (key or b"").decode()
                place = self._table.place_of(topic)
                if value is None:
                    if place is not None and (place.stream_id, place.partition) == source.key:
                        self._table.note(topic, source.key, offset, present=False)
                elif place is None or _origin(headers) == place:
                    self._table.note(topic, source.key, offset, present=True)

    def __contains__(self, topic: str) -> bool:
        place = self._table.place_of(topic)
        return place is not None and self._is_own(place)

    def _is_own(self, place: Position) -> bool:
        return (place.stream_id, place.partition) in self._sources

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
        async for row in self._leaving(key, upto, is_wanted):
            rows.append(row)
            size_bytes += len(row[2].value or b"")
            if len(rows) == CHUNK_RECORDS or size_bytes >= CHUNK_BYTES:
                await self._append(key[0], rows)
                carried += len(rows)
                rows, size_bytes = [], 0
        if rows:
            await self._append(key[0], rows)
        if (rows or carried) and self._is_kept:
            await self._broker.cursors.save(self._table)

    async def check_carried(
        self, key: tuple[str, int], upto: int, is_wanted: Callable[[Record], Awaitable[bool]]
    ) -> None:
        """Raise Conflict while the table of a node that only copies a partition still points to
        records that leave: what its leader copied is not here yet."""
        async for _number, _place, record in self._leaving(key, upto, is_wanted):
            raise Conflict(f"the copy of what {record.topic} retains is not here yet")

    async def _leaving(
        self, key: tuple[str, int], upto: int, is_wanted: Callable[[Record], Awaitable[bool]]
    ) -> AsyncIterator[_Row]:
        """The rows of the table that point to wanted records of a partition below an offset."""
        for at, number in enumerate(self._table.numbers()):
            if at % _LOOK_ROWS == _LOOK_ROWS - 1:
                await asyncio.sleep(0)
            place = self._table.place(number)
            if place is None or (place.stream_id, place.partition) != key or place.offset >= upto:
                continue
            record = await self._table.record(number)
            if record is None or not await is_wanted(record):
                continue
            if self._table.place(number) == place:  # else a newer one came while it was read
                yield number, place, record

    async def _append(self, origin: str, rows: list[_Row]) -> None:
        source = self._led()
        builder = BatchBuilder(True)
        for _number, place, record in rows:
            topic, headers = record.topic.encode(), self._headers(origin, record)
            if not self._is_kept:
                headers = (*headers, (PLACE, b"%d/%d" % (place.partition, place.offset)))
            builder.add(topic, topic, record.value, headers, record.timestamp_ms)
        appended = source.partition.append_built(builder, index_topics=False)
        await source.partition.wait_visible(appended.last_offset)
        for index, (number, place, record) in enumerate(rows):
            to = Position(*source.key, appended.base_offset + index)
            if not self._table.move(number, place, to):
                self._drop(record.topic, source.key)  # a newer one came meanwhile

    def _led(self) -> Source:
        for source in self._sources.values():
            if not isinstance(source.partition.refusal, NotLeader):
                return source
        raise NotLeader(
            f"no partition of {STREAM} has its leader here: what is retained is copied later"
        )

    def _headers(self, origin: str, record: Record) -> Headers:
        own = (TOPIC, EXPIRY, ORIGIN, PLACE)
        kept = tuple(pair for pair in record.headers if pair[0] not in own)
        ends_ms = expiry_ms(record.headers)
        ttl_ms = self._broker.streams.get(record.stream).config.message_ttl_ms
        if ttl_ms >= 0:
            end_ms = record.timestamp_ms + ttl_ms
            ends_ms = end_ms if ends_ms is None else min(ends_ms, end_ms)
        expiry = () if ends_ms is None else ((EXPIRY, b"%d" % ends_ms),)
        return (*kept, *expiry, (ORIGIN, origin.encode()))

    # -- dropping

    def drop(self, topic: str) -> None:
        """The copy in the table is no longer needed; all of a pass are removed in one batch."""
        place = self._table.place_of(topic)
        if place is not None:
            self._drop(topic, (place.stream_id, place.partition))

    def _drop(self, topic: str, key: SourceKey) -> None:
        if not self._dropped:
            asyncio.get_running_loop().call_soon(self._write_dropped)
        self._dropped.setdefault(key, []).append(topic)

    def _write_dropped(self) -> None:
        dropped, self._dropped = self._dropped, {}
        now_ms = self._clock.now_ms()
        for key, topics in dropped.items():
            builder = BatchBuilder(False)
            builder.extend([(None, topic.encode(), None, (), now_ms) for topic in topics])
            try:
                self._sources[key].partition.append_built(builder, index_topics=False)
            except NotLeader:
                pass  # their leader drops them
            except OnelogError as error:  # the table knows: a copy that is left costs disk only
                _log.warning("copies of retained messages are left", reason=str(error))


def _origin(headers: Headers) -> Position | None:
    """Which record a copy is of."""
    partition, _slash, offset = read_text(headers, PLACE).partition("/")
    number, at = parse_number(partition.encode()), parse_number(offset.encode(), OFFSET_MAX)
    if number is None or at is None:
        return None
    return Position(read_text(headers, ORIGIN), number, at)
