"""Taking history: records from before a binding was made that it would have brought to a queue
(I2).

Rules:
- While a queue takes history it does not follow the end: new records are read from the log behind
  the history, so topics keep their order. When it has read everything, it follows from that moment.
- For records from before the binding: only the new binding counts. For records from after it: all
  bindings count.
- Streams that took topics over are read after their old homes (`log/moves.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from onelog.broker import (
    EARLIEST,
    LATEST,
    Cold,
    LiveSource,
    Move,
    Record,
    SourceKey,
    Start,
)
from onelog.queues.addresses import address_of
from onelog.queues.exchanges import Binding
from onelog.queues.headers import extra_keys_of, headers_of
from onelog.queues.ready import pack
from onelog.queues.router import Router

if TYPE_CHECKING:
    from onelog.queues.following import Follower
    from onelog.queues.queue import Queue


class Absence:
    """The time in which a queue does not follow, however many bindings bring it history."""

    __slots__ = ("given", "lock", "readers")

    def __init__(self, given: dict[SourceKey, int]) -> None:
        self.readers = 0
        self.lock = asyncio.Lock()
        """Held while a history is read: one at a time."""
        self.given = given
        """The offsets up to which the queue has the records of its bindings."""


class History:
    """The history that one binding brings to one queue, and how far it was read.

    It begins when it is made: from then on the queue does not follow, until `end`.
    """

    def __init__(self, follower: Follower, queue: Queue, binding: Binding) -> None:
        self._follower = follower
        self._queue = queue
        self._alone = _router_of(queue, binding)
        self._since = follower.positions()
        """The offsets at which the binding began to count."""
        self._positions = dict(self._since)
        self._past = [
            (source.as_source, source.position)
            for source in follower.sources_of(queue.vhost.name, binding.source)
        ]
        """Where the binding would have brought something from, and up to where."""
        self._absence = follower.hold_back(queue)

    async def take(self) -> None:
        """Give the queue the whole history."""
        cursor = self._queue.cursor
        async with self._absence.lock:
            known = cursor.position_of
            cursor.position_of = self._absence.given.get  # after a crash the rest is read again
            try:
                await self._begin()
                while self.is_behind() and not self._queue.is_deleted:
                    for source in self._follower.live.sources():
                        try:
                            if self._read_some(source):
                                await asyncio.sleep(0)
                        except Cold as cold:
                            await source.until_here(cold)
                self._absence.given = self._follower.positions()
            finally:
                cursor.position_of = known
        self._queue.wake()

    async def _begin(self) -> None:
        """Find where the history begins that the queue wants."""
        start = await _start_of(self._queue).settled(source for source, _end in self._past)
        for source, end in self._past:
            first = max(start.offset_in(source), source.partition.start_offset)
            self._positions[source.key] = min(first, end)

    def end(self) -> None:
        """Let the queue follow again."""
        self._follower.let_follow(self._queue)

    def is_behind(self) -> bool:
        """Whether there is more to read."""
        return any(
            self._position(source) < source.position for source in self._follower.live.sources()
        )

    def _position(self, source: LiveSource) -> int:
        """Its position; a stream that was made meanwhile is read from its beginning."""
        position = self._positions.get(source.key, 0)
        if position >= self._since.get(source.key, 0):
            position = max(position, self._absence.given.get(source.key, 0))
        return position

    def _limit(self, source: LiveSource) -> int:
        """Up to where a source may be read while its old homes are not read to the end."""
        number = int(source.partition.id)
        held = (move.end_of(number) for move in source.stream.record.moves if self._holds(move))
        return min((source.position, *held))

    def _holds(self, move: Move) -> bool:
        for key, end in move.after:
            old = self._follower.live.find(key)
            if old is not None and self._position(old) < min(end, old.position):
                return True
        return False

    def _read_some(self, source: LiveSource) -> bool:
        """Read on in a source. Returns False when there is nothing to read for now. May raise
        Cold."""
        position, limit = self._position(source), self._limit(source)
        since = self._since.get(source.key, 0)
        if position < since:
            limit = min(limit, since)
        if position >= limit:
            return False
        records, following = self._follower.live.read(source, position, limit)
        self._positions[source.key] = int(following)
        self._follower.notice_expiry(records)
        self._queue.vhost.hub.broker.cursors.pins.claim()
        for record in records:
            if self._is_wanted(record, since) and not self._queue.cursor.holds(
                source.key, record.offset
            ):
                self._queue.take_in(pack(source.number, record.offset), record)
        return True

    def _is_wanted(self, record: Record, since: int) -> bool:
        queue = self._queue
        if record.offset >= since:
            return queue in self._follower.queues_for(record)
        address = address_of(record.topic)
        if address.vhost != queue.vhost.name:
            return False
        headers = headers_of(record)
        further = extra_keys_of(record)
        found = self._alone.route(address.exchange, address.routing_key, headers, further)
        return queue.name in found


def _router_of(queue: Queue, binding: Binding) -> Router:
    """A router with this binding only."""
    alone = Router()
    for record in queue.vhost.router.exchanges():
        if alone.find(record.name) is None:
            alone.add_exchange(record)
    alone.add_queue(queue.name)
    if binding.source:
        alone.bind(binding)
    return alone


def _start_of(queue: Queue) -> Start:
    chosen = queue.settings.start
    if chosen == "earliest":
        return EARLIEST
    if isinstance(chosen, int):
        return Start("offset", chosen)
    if isinstance(chosen, str) and chosen.startswith("timestamp:"):
        return Start("time", int(chosen.partition(":")[2]))
    return LATEST
