"""The table cursor: the latest record per topic (retained messages, KV buckets, last-value views).

Rules: it holds an offset per topic, never a value; a look-up reads the log. `get` and `find` block
while bytes are cold; `look_up` and `look_for` let others run meanwhile, and `record_now` raises
Cold. A record without a
value (null or empty) removes its topic. The state is kept in shards, and only changed shards are
written, so that one change among a million topics writes one small record.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import Closed, OnelogError
from onelog.base.ids import Offset
from onelog.cursors.cursor import (
    CursorKind,
    CursorState,
    Position,
    Reading,
    ignore_change,
    known_end,
)
from onelog.cursors.reader import expires_at, read_at, read_places
from onelog.cursors.session import always
from onelog.cursors.sources import Source, SourceRegistry
from onelog.cursors.start import Start
from onelog.cursors.wait import Wait
from onelog.kernel import TopicTrie, topic_hash
from onelog.log.handle import Cold
from onelog.log.wakeup import Callback, as_future
from onelog.record.record import Record

SHARDS: Final = 64


class _TableRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic: str
    stream_id: str
    partition: int
    offset: int


class TableCursor:
    """A topic → latest record map over the log."""

    __slots__ = (
        "_accepts",
        "_clock",
        "_dirty",
        "_follow",
        "_ids",
        "_next_id",
        "_rows",
        "_shards",
        "_trie",
        "counts",
        "elsewhere",
        "name",
        "on_change",
        "position_of",
        "reading",
        "unread",
    )

    kind = CursorKind.TABLE

    def __init__(
        self, name: str, reading: Reading, clock: Clock, accepts: Callable[[Record], bool]
    ) -> None:
        self.name = name
        self.reading = reading
        self.on_change: Callable[[], None] = ignore_change
        self.position_of: Callable[[tuple[str, int]], int | None] | None = None
        """How far the owner has noted records, when the table does not follow by itself."""
        self.elsewhere: dict[tuple[str, int], Source] = {}
        """Where the owner moved records to, beside what the table reads by itself."""
        self.counts: Callable[[Record], bool] = always
        """Whether a record that was moved counts."""
        self.unread: dict[tuple[str, int], int] = {}
        """Partitions with records in the object store that the table never read, and from where
        on."""
        self._clock = clock
        self._accepts = accepts
        self._ids: dict[str, int] = {}
        self._next_id = 0
        self._rows: dict[int, _TableRow] = {}
        self._trie: TopicTrie | None = None  # made with the first row
        self._shards: dict[int, set[int]] = {}
        self._dirty = 0
        """Shards that changed, a bit each."""
        self._follow: Wait | None = None

    @classmethod
    def create(
        cls,
        name: str,
        registry: SourceRegistry,
        filters: tuple[str, ...],
        start: Start,
        *,
        clock: Clock,
        accepts: Callable[[Record], bool] = always,
    ) -> TableCursor:
        """A new table. `accepts` says which records count (e.g. those with the retain flag)."""
        reading = Reading(registry, registry.resolve(filters), start.offset_in)
        return cls(name, reading, clock, accepts)

    @classmethod
    def restore(
        cls,
        registry: SourceRegistry,
        state: CursorState,
        parts: dict[str, bytes],
        *,
        clock: Clock,
        accepts: Callable[[Record], bool] = always,
    ) -> TableCursor:
        """Go on from the kept shards."""
        reading = Reading.restore(registry, state.filters, state.positions)
        table = cls(state.name, reading, clock, accepts)
        for blob in parts.values():
            for row in msgspec.msgpack.decode(blob, type=list[_TableRow]):
                table._set(row)
        table._dirty = 0
        kept = {(row.stream_id, row.partition): row.offset for row in state.positions}
        if any(kept.get(row.key, 0) > known_end(row) for row in reading.sources.sources):
            table._begin_anew()
        return table

    def _begin_anew(self) -> None:
        """A log lost its end, with records that had replaced or removed rows: read everything
        again."""
        read = {source.key for source in self.reading.sources.sources}
        for row in [row for row in self._rows.values() if (row.stream_id, row.partition) in read]:
            self._remove(row.topic)
        for index in range(len(self.reading.sources.sources)):
            self.reading.seek(index, 0)

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        return self.reading.filters

    def __len__(self) -> int:
        return len(self._ids)

    # -- following

    def catch_up(self, limit: int = 10_000) -> bool:
        """Read forward. Returns False when there is more to read (call again after letting others
        run)."""
        for index, record in self.reading.read(limit):
            key = self.reading.sources.sources[index].key
            if not self._accepts(record) or self._has_newer(index, key, record):
                continue
            if record.value:
                self._set(_TableRow(record.topic, *key, record.offset))
            else:
                self._remove(record.topic)
        if self._dirty:
            self.on_change()
        return not self.reading.is_behind()

    def _has_newer(self, index: int, key: tuple[str, int], record: Record) -> bool:
        """Whether the row of a topic already lies in the topic's new home.

        While an old home is stopped, the new one is read ahead of it.
        """
        number, gates = self._ids.get(record.topic), self.reading.sources.gates
        if number is None or gates is None:
            return False
        row = self._rows[number]
        if (row.stream_id, row.partition) == key:
            return False
        at = self.reading.find(row.stream_id, row.partition)
        return at is not None and any(
            row.offset >= end and any(old == index and record.offset < upto for old, upto in after)
            for end, after in gates.get(at, ())
        )

    async def start_following(self, *, once: bool = False) -> None:
        """Catch up, then stay at the end by wake-up. Returns when it has caught up once.

        With `once` it does not stay: the owner notes new records (`note`).
        """
        loop = asyncio.get_running_loop()
        while not self.catch_up():
            if not self.reading.may_go_on():
                await self.reading.wait_readable()
                continue
            turn: asyncio.Future[None] = loop.create_future()
            loop.call_soon(turn.set_result, None)  # let others run between two reads
            await turn
        if not once:
            self._follow = self.reading.when_readable(self._news)

    def _news(self, error: OnelogError | None) -> None:
        try:
            if error is not None:
                raise error
            self.catch_up()
        except Closed:
            return
        except OnelogError:
            # All partitions stopped, or the stream was deleted: another stream may hold the topics.
            self._follow = self.reading.when_streams_change(self._news)
            return
        if self.reading.may_go_on():
            asyncio.get_running_loop().call_soon(self._news, None)
        else:
            self._follow = self.reading.when_readable(self._news)

    def note(self, topic: str, source: tuple[str, int], offset: int, *, present: bool) -> None:
        """The owner saw a record of a topic: it is the latest one, or removes the topic."""
        if present:
            self._set(_TableRow(topic, *source, offset))
        else:
            self._remove(topic)
        self.on_change()

    # -- looking up

    def get(self, topic: str) -> Record | None:
        """The latest record of a topic, unless it has expired."""
        number = self._ids.get(topic)
        return None if number is None else self._read_in_place(number)

    async def look_up(self, topic: str) -> Record | None:
        """As `get`, while others run."""
        number = self._ids.get(topic)
        return None if number is None else await self.record(number)

    def find(self, text: str, limit: int = 1_000_000) -> list[Record]:
        """The latest records of every topic that a filter matches."""
        found: list[Record] = []
        for number in self.matching(text):
            if len(found) >= limit:
                break
            record = self._read_in_place(number)
            if record is not None:
                found.append(record)
        return found

    async def look_for(self, text: str, limit: int = 1_000_000) -> list[Record]:
        """As `find`, while others run: topics that match now, each with its latest record then."""
        found: list[Record] = []
        for number in self.matching(text):
            if len(found) >= limit:
                break
            record = await self.record(number)
            if record is not None:
                found.append(record)
        return found

    def matching(self, text: str) -> array[int]:
        """Numbers of the topics that a filter matches now, for `record_now`."""
        return array("Q", () if self._trie is None else self._trie.covered(text.encode()))

    def record_now(self, number: int, here: Callback | None = None) -> Record | None:
        """The latest record of a topic by its number; None: it has none any more.

        Cold where it is not in memory: `here` is called when it came.
        """
        row = self._rows.get(number)
        if row is None:
            return None
        source = self._source(row)
        try:
            return self._read(row, source)
        except Cold as cold:
            if here is not None and source is not None:
                source.partition.when_here(cold, here)
            raise

    async def record(self, number: int) -> Record | None:
        """As `record_now`, waiting for what is cold while others run."""
        while (row := self._rows.get(number)) is not None:  # another one may come meanwhile
            source = self._source(row)
            try:
                return self._read(row, source)
            except Cold as error:
                cold = error
            assert source is not None, "what is cold lies somewhere"
            await as_future(partial(source.partition.when_here, cold))
        return None

    def _read_in_place(self, number: int) -> Record | None:
        row = self._rows[number]
        source = self._source(row)
        read = partial(self._read, row, source)
        return read() if source is None else source.partition.in_place(read)

    def numbers(self) -> array[int]:
        """The numbers of all topics."""
        return array("Q", self._rows)

    def place(self, number: int) -> Position | None:
        """Where the latest record of a topic is, by its number."""
        row = self._rows.get(number)
        return None if row is None else Position(row.stream_id, row.partition, row.offset)

    def place_of(self, topic: str) -> Position | None:
        """Where the latest record of a topic is."""
        number = self._ids.get(topic)
        return None if number is None else self.place(number)

    def move(self, number: int, was: Position, to: Position) -> bool:
        """The owner copied a record: read the copy from now on. Returns False if a newer record
        came."""
        if self.place(number) != was:
            return False
        topic = self._rows[number].topic
        self._set(_TableRow(topic, to.stream_id, to.partition, to.offset))
        self.on_change()
        return True

    def __contains__(self, topic: str) -> bool:
        return topic in self._ids

    def _source(self, row: _TableRow) -> Source | None:
        """Where the record of a row lies; None: its stream is gone."""
        index = self.reading.find(row.stream_id, row.partition)
        if index is not None:
            return self.reading.sources.sources[index]
        return self.elsewhere.get((row.stream_id, row.partition))

    def _read(self, row: _TableRow, source: Source | None) -> Record | None:
        record: Record | None = None
        ttl_ms = -1
        if source is None:
            pass
        elif source.key in self.elsewhere:
            found = read_places(source, (row.offset,))
            record = found[0] if found and self.counts(found[0]) else None
        else:
            ttl_ms = source.stream.config.message_ttl_ms
            record = read_at(self.reading.sources, source, Offset(row.offset))
        if record is not None:
            ends = expires_at(record, ttl_ms)
            if ends is None or ends > self._clock.now_ms():
                return record
        # Retention took it, its stream is gone, or it has expired.
        self._remove(row.topic)
        return None

    def _set(self, row: _TableRow) -> None:
        topic = row.topic.encode()
        number = self._ids.get(row.topic)
        if number is None:
            number = self._ids[row.topic] = self._next_id
            self._next_id += 1
            if self._trie is None:
                self._trie = TopicTrie()
            self._trie.add(topic, number)
        self._rows[number] = row
        shard = topic_hash(topic) % SHARDS
        self._shards.setdefault(shard, set()).add(number)
        self._dirty |= 1 << shard

    def _remove(self, topic: str) -> None:
        number = self._ids.pop(topic, None)
        if number is not None and self._trie is not None:
            encoded = topic.encode()
            self._trie.remove(encoded, number)
            del self._rows[number]
            shard = topic_hash(encoded) % SHARDS
            self._shards[shard].discard(number)
            self._dirty |= 1 << shard

    # -- state

    def state(self) -> CursorState:
        """Its positions; the rows are in `parts`."""
        return CursorState(self.name, self.kind, self.filters, self.positions())

    def take_parts(self) -> dict[str, bytes]:
        """The shards that changed since the last call."""
        dirty, self._dirty = self._dirty, 0
        return {
            str(shard): msgspec.msgpack.encode([self._rows[n] for n in self._shards[shard]])
            for shard in range(SHARDS)
            if dirty >> shard & 1
        }

    def put_back(self, parts: Iterable[str]) -> None:
        """These shards could not be written: they still count as changed."""
        for shard in parts:
            self._dirty |= 1 << int(shard)

    def positions(self) -> list[Position]:
        """Up to where it knows the records of each partition."""
        rows = self.reading.positions()
        if self.position_of is None:
            return rows
        known = ((row, self.position_of((row.stream_id, row.partition))) for row in rows)
        return [
            row if offset is None else Position(row.stream_id, row.partition, offset)
            for row, offset in known
        ]

    def lag(self) -> int:
        """Offsets to the end."""
        ends = (source.partition for source in self.reading.sources.sources)
        return sum(
            max(0, end.high_watermark - max(row.offset, end.start_offset))
            for end, row in zip(ends, self.positions(), strict=True)
        )

    def pending(self) -> int:
        """Nothing is ever pending."""
        return 0

    def close(self) -> None:
        """Stop following."""
        if self._follow is not None:
            self._follow.cancel()
        self.reading.close()
