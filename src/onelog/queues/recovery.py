"""Recovery: after a restart every queue gets its places again, and the records since the last save.

Rules:
- Each partition is routed again from the lowest position that a queue kept. A queue takes only
  records beyond its own position.
- Records may come from any client. One that cannot be routed is reported and left out. For a
  partition that cannot be read, the routing position stays; other partitions do not wait for it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.broker import Cold, Move
from onelog.observe import get_logger
from onelog.queues.addresses import (
    QUEUES_STREAM,
    ROOT_EXCHANGE,
    STREAM_PREFIX,
    capture_of,
    queue_topic,
)
from onelog.queues.lining_up import QueuedMessage, line_up
from onelog.queues.ready import pack, unpack

if TYPE_CHECKING:
    from onelog.broker import LiveSource, RoutedCursor
    from onelog.queues.hub import QueueHub
    from onelog.queues.queue import Queue
    from onelog.queues.vhosts import VirtualHost

_log = get_logger("amqp")

_READ_ROWS: Final = 1_000

Waiting = tuple[int, QueuedMessage]
"""The number of a partition, and a record in it."""


def own_key(hub: QueueHub, queue: Queue) -> tuple[str, int] | None:
    """The partition of messages that the default exchange sends to a queue."""
    stream = hub.broker.streams.find(QUEUES_STREAM)
    if stream is None:
        return None
    topic = queue_topic(queue.vhost.name, queue.name)
    return stream.record.id, int(stream.partition_of(topic.encode()).id)


class Recovery:
    """The work of a start, before the first client is accepted."""

    def __init__(self, hub: QueueHub) -> None:
        self._hub = hub
        self._follower = hub.follower
        self._live = hub.follower.live

    async def catch_up(
        self, queues: list[Queue], created_ms: dict[str, int], *, is_clean: bool
    ) -> None:
        """Route the records after the positions that queues kept, up to the end.

        Records that become visible meanwhile wait for `Live.go`. After a crash nobody knows which
        messages were handed out since the last checkpoint.
        """
        follower = self._follower
        self._live.start(
            follower, unconcerned=follower.unconcerned, queue_feed=follower.feed, waits=True
        )
        fresh: dict[Queue, list[Waiting]] = {queue: [] for queue in queues}
        for source in list(self._live.sources()):
            starts = self._starts(source, queues, created_ms)
            if starts:
                await self._route_again(source, starts, fresh)
        for queue in queues:
            await self._restore(queue, fresh[queue])
            if not is_clean:
                queue.uncertain = {row.number: row.position for row in self._live.sources()}
            self._follower.keep_informed(queue)

    def _starts(
        self, source: LiveSource, queues: list[Queue], created_ms: dict[str, int]
    ) -> dict[Queue, int]:
        """The offset from which each queue may lack records of a partition."""
        found: dict[Queue, int] = {}
        if source.partition.stopped is not None:
            return found  # its kept state counts when it is restored
        reached: dict[str, set[str]] = {}
        for queue in queues:
            vhost = queue.vhost
            if vhost.name not in reached:
                reached[vhost.name] = self._reached(vhost, source)
            if queue.name not in reached[vhost.name] and source.key != own_key(self._hub, queue):
                continue
            kept = queue.cursor.routed_to(source.key)
            if kept is None:
                # The stream is younger than the queue and its bindings, which noted the streams of
                # their time: all of its records are new. An older stream did not matter then, and
                # does not now.
                younger = source.stream.record.created_ms >= created_ms.get(queue.cursor.name, 0)
                kept = 0 if younger else source.position
            queue.cursor.set_routed_to(source.key, source.position)
            if kept < source.position:
                found[queue] = kept
        return found

    def _reached(self, vhost: VirtualHost, source: LiveSource) -> set[str]:
        """The queues that bindings reach from the records of a partition."""
        for record in vhost.router.exchanges():
            own = capture_of(vhost.name, record.name) if record.name else None
            if own is not None and own[0] == source.stream.name:
                return vhost.router.queues_behind(record.name)
        if source.stream.name.startswith(STREAM_PREFIX):
            return set()
        return vhost.router.queues_behind(ROOT_EXCHANGE)

    async def _route_again(
        self, source: LiveSource, starts: dict[Queue, int], fresh: dict[Queue, list[Waiting]]
    ) -> None:
        position = max(min(starts.values()), int(source.partition.start_offset))
        end = source.position
        while position < end:
            try:
                try:
                    records, following = self._live.read(source, position, end)
                except Cold as cold:
                    await source.until_here(cold)
                    continue
            except OnelogError as error:
                # The partition is stopped and reported as such. Its routing position is kept.
                _log.error("a partition cannot be routed", place=str(source.key), why=str(error))
                source.position = position
                return
            if following <= position:  # the copy is made anew, and the live feed goes on from here
                source.position = position
                return
            position = following
            for record in records:
                place = QueuedMessage(record.timestamp_ms, int(record.offset), is_new=True)
                for queue in self._follower.route_safely(record):
                    start = starts.get(queue)
                    if start is None or start > record.offset:
                        continue
                    if not queue.cursor.holds(source.key, place.offset):
                        fresh[queue].append((source.number, place))
            await asyncio.sleep(0)

    async def _restore(self, queue: Queue, fresh: list[Waiting]) -> None:
        """Give a queue its places again: those that it kept, and those of later records."""
        cursor, kept = queue.cursor, []
        for key in cursor.partitions():
            source = self._live.find(key)
            if source is None:
                cursor.forget(key)
            elif source.partition.stopped is None:
                cursor.forget_from(key, int(source.partition.end_offset))
                kept.append(source)
        new: dict[int, list[QueuedMessage]] = {}
        for number, place in fresh:
            new.setdefault(number, []).append(place)
        numbers = {source.number for source in kept} | new.keys()
        if len(numbers) <= 1:
            # The places of one partition are in order already, however many there are.
            for source in kept:
                for offset in cursor.offsets(source.key):
                    await self._restore_place(queue, pack(source.number, offset), is_new=False)
            for number, place in fresh:
                await self._restore_place(queue, pack(number, place.offset), is_new=True)
            return
        lines = {
            self._live.keys[number]: await self._line(number, cursor, new.get(number, []))
            for number in numbers
        }
        for key, place in list(line_up(lines, self._moves_of)):
            source = self._live.find(key)
            assert source is not None
            at = pack(source.number, place.offset)
            await self._restore_place(queue, at, is_new=place.is_new)

    def _moves_of(self, key: tuple[str, int]) -> tuple[Move, ...]:
        source = self._live.find(key)
        return () if source is None else source.stream.record.moves

    async def _line(
        self, number: int, cursor: RoutedCursor, new: list[QueuedMessage]
    ) -> Iterator[QueuedMessage]:
        """The places of a queue in one partition: those that it kept, and those of later
        records."""
        kept = await self._timed(number, cursor.offsets(self._live.keys[number]))
        return heapq.merge(kept, new, key=lambda place: place.offset)

    async def _timed(self, number: int, offsets: Iterator[int]) -> list[QueuedMessage]:
        found: list[QueuedMessage] = []
        while some := list(islice(offsets, _READ_ROWS)):
            found += [
                QueuedMessage(record.timestamp_ms, int(record.offset), is_new=False)
                for record in await self._hub.find_records(number, some)
            ]
        return found

    async def _restore_place(self, queue: Queue, place: int, *, is_new: bool) -> None:
        key, offset = self._hub.place(place)
        if is_new and queue.cursor.holds(key, offset):
            return
        record = None
        if queue.needs_records:
            found = await self._hub.find_records(unpack(place)[0], [offset])
            record = found[0] if found else None
        if is_new:
            queue.take_in(place, record)
        else:
            queue.restore(place, record)
