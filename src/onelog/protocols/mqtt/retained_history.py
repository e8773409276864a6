"""Retained messages in history that lies in the object store and that the table never read.

A stream that was restored from a bucket has such history, and so has every stream with a tier when
MQTT runs for the first time. Rules:

- A start waits for none of it. One task reads it afterwards, one partition at a time, also while
  the store is away for a while.
- A partition is read from its first record to where the live feed stands. What is retained then is
  known, and only then the table learns it: a message that was cleared later never shows up.
- Messages that lie in the store only are copied (`retained_copies`): a SUBSCRIBE never reads the
  store. A partition that was not read to its end is kept with the offset `UNREAD`, so that the next
  start reads it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import Broker, Cold, Live, LiveSource, TableCursor
from onelog.kernel import ATTR_CODEC_MASK, ATTR_CONTROL, ATTR_TRANSACTIONAL, scan_batches
from onelog.protocols.mqtt.mapping import is_retained
from onelog.protocols.mqtt.retained_copies import Copies
from onelog.record.headers import RETAIN

UNREAD: Final = -1
HISTORY: Final = "mqtt-retained-history"
"""Incidents: history could not be read; the next start tries again."""
MARK: Final = bytes((len(RETAIN) << 1,)) + RETAIN + b"\x021"
"""The retain header as a record holds it: a batch without these bytes has no retained message."""
SPECIAL: Final = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
"""Attributes of batches whose records have to be read."""
_READ_BYTES: Final = 1024 * 1024

Key = tuple[str, int]
Note = Callable[[bytes, LiveSource, int, bool], None]
"""(topic, source, offset, whether it is there): the table learns of a message."""


class RetainedHistory:
    """Reads what the table never read."""

    def __init__(
        self, broker: Broker, live: Live, table: TableCursor, copies: Copies, note: Note
    ) -> None:
        self._broker = broker
        self._live = live
        self._table = table
        self._copies = copies
        self._note = note
        self._unread: dict[Key, int] = dict(table.unread)
        self._known: set[Key] = {source.key for source in table.reading.sources.sources}
        self._task: asyncio.Task[None] | None = None

    def position_of(self, key: Key) -> int | None:
        """Up to where the records of a partition are known."""
        if key in self._unread:
            return UNREAD
        source = self._live.find(key)
        return None if source is None else source.position

    def look(self) -> None:
        """Streams came: those with history are read. Called when the feed runs, and at changes."""
        for name in self._broker.streams.changed:
            stream = self._broker.streams.find(name)
            if stream is None:
                continue
            for partition in stream.partitions:
                key = (stream.record.id, int(partition.id))
                if key in self._known or partition.stopped is not None:
                    continue
                self._known.add(key)
                first = partition.start_offset
                if first < partition.local_start_offset:
                    self._unread[key] = int(first)
        if self._unread and self._task is None:
            self._task = asyncio.create_task(self._read_all(), name="mqtt-retained-history")

    async def close(self) -> None:
        """Read no more. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _read_all(self) -> None:
        failed: set[Key] = set()
        while left := [key for key in self._unread if key not in failed]:
            key = left[0]
            source = self._live.find(key)
            if source is None:
                del self._unread[key]  # its stream is gone
                continue
            try:
                await self._read(source, self._unread[key])
            except OnelogError as error:
                failed.add(key)
                place = f"{source.stream.name}/{source.partition.id}"
                self._broker.troubles.note(HISTORY, place, error)
        self._task = None

    async def _read(self, source: LiveSource, start: int) -> None:
        found: dict[str, tuple[int, bool]] = {}
        at = max(start, int(source.partition.start_offset))
        while at < source.position and source.is_followed:
            try:
                at = self._read_some(source, at, found)
            except Cold as cold:
                await source.until_here(cold)
                continue
            await asyncio.sleep(0)
        # Nothing runs between the last read and this: all that was found is so now.
        for topic, (offset, is_there) in found.items():
            self._learn(source, topic, offset, is_there)
        upto = source.partition.local_start_offset
        await self._copies.carry(source.key, int(upto), _is_wanted)
        self._unread.pop(source.key, None)
        with contextlib.suppress(OnelogError):  # the next change saves it
            await self._broker.cursors.save(self._table)

    def _read_some(self, source: LiveSource, at: int, found: dict[str, tuple[int, bool]]) -> int:
        """Read on; where the next read begins. May raise Cold."""
        end = source.position
        data = source.partition.read_now(Offset(at), _READ_BYTES)
        infos = scan_batches(data, 0, False)
        if not infos:
            return end
        behind = min(end, infos[-1].last_offset + 1)
        if MARK not in bytes(data) and not any(info.attributes & SPECIAL for info in infos):
            return behind
        records, following = self._live.read(source, at, behind)
        for record in records:
            if is_retained(record.headers):
                found[record.topic] = (int(record.offset), bool(record.value))
        return max(int(following), at + 1)

    def _learn(self, source: LiveSource, topic: str, offset: int, is_there: bool) -> None:
        place = self._table.place_of(topic)
        if place is not None and (place.stream_id, place.partition) != source.key:
            return  # a copy of it, or a newer one in the topic's new home
        if place is not None and place.offset >= offset:
            return
        if is_there or place is not None:
            self._note(topic.encode(), source, offset, is_there)


async def _is_wanted(_record: object) -> bool:
    return True
