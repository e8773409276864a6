"""Taking history: what a binding would have brought to a queue before it was made (I2).

Rules:
- While a queue takes history it does not follow the end: what comes meanwhile is read from the log
  behind it, so topics keep their order. When it has read all there is, it follows, in that moment.
- Before the binding counts: what the binding alone matches. From then on: what all bindings match.
- Streams that took topics over are read after their old homes (`log/moves.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from onelog.base.ids import Offset
from onelog.broker import EARLIEST, LATEST, LiveSource, Record, Start
from onelog.cursors.reader import read_records
from onelog.cursors.sources import Everything
from onelog.log.moves import Move, SourceKey
from onelog.protocols.amqp.addresses import address_of
from onelog.protocols.amqp.mapping import extra_keys_of, headers_of
from onelog.protocols.amqp.queues.ready import pack
from onelog.protocols.amqp.router import Binding, Router

if TYPE_CHECKING:
    from onelog.protocols.amqp.following import Follower
    from onelog.protocols.amqp.queues.queue import Queue

_READ_ROWS: Final = 1_000


async def take_history(follower: Follower, queue: Queue, binding: Binding) -> None:
    """Give a queue the records before its time that a binding matches."""
    history = _History(follower, queue, binding)
    await follower.hold_back(queue)
    history.begin()
    known = queue.cursor.position_of
    queue.cursor.position_of = history.held.get  # a crash finds what came since then once more
    try:
        while history.is_behind() and not queue.is_deleted:
            for source in follower.live.sources():
                if history.read_some(source):
                    await asyncio.sleep(0)
    finally:
        queue.cursor.position_of = known
        follower.let_follow(queue)
    queue.wake()


class _History:
    """What one binding brings to one queue, and how far it was read."""

    def __init__(self, follower: Follower, queue: Queue, binding: Binding) -> None:
        self._follower = follower
        self._queue = queue
        self._alone = _router_of(queue, binding)
        start = _start_of(queue)
        self._since: dict[SourceKey, int] = {}
        """Where the binding began to count."""
        self.held: dict[SourceKey, int] = {}
        """Where the queue followed no more: what lies between, it was given."""
        self._positions: dict[SourceKey, int] = {}
        for source in follower.live.sources():
            self._since[source.key] = self._positions[source.key] = source.position
        for source in follower.sources_of(queue.vhost.name, binding.source):
            first = max(start.offset_in(source.as_source), source.partition.start_offset)
            self._positions[source.key] = min(first, source.position)

    def begin(self) -> None:
        """The queue follows no more."""
        self.held = {source.key: source.position for source in self._follower.live.sources()}

    def is_behind(self) -> bool:
        """Whether there is more to read."""
        return any(
            self._position(source) < source.position for source in self._follower.live.sources()
        )

    def _position(self, source: LiveSource) -> int:
        """Where it stands; a stream that came meanwhile is read from its beginning."""
        position = self._positions.get(source.key, 0)
        if position >= self._since.get(source.key, 0):
            position = max(position, self.held.get(source.key, 0))
        return position

    def _limit(self, source: LiveSource) -> int:
        """How far a source may be read while what comes before it is not."""
        number = int(source.partition.id)
        held = (move.end_of(number) for move in source.stream.record.moves if self._holds(move))
        return min((source.position, *held))

    def _holds(self, move: Move) -> bool:
        for key, end in move.after:
            old = self._follower.live.find(key)
            if old is not None and self._position(old) < min(end, old.position):
                return True
        return False

    def read_some(self, source: LiveSource) -> bool:
        """Read on in a source; False when there is nothing to read for now."""
        position, limit = self._position(source), self._limit(source)
        since = self._since.get(source.key, 0)
        if position < since:
            limit = min(limit, since)
        if position >= limit:
            return False
        wanted = Everything(source.as_source)
        records, following = read_records(
            wanted, wanted.sources[0], Offset(position), _READ_ROWS, upto=limit
        )
        self._positions[source.key] = int(following)
        self._follower.notice_expiry(records)
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
        return any(
            queue.name in self._alone.route(address.exchange, key, headers)
            for key in (address.routing_key, *extra_keys_of(record))
        )


def _router_of(queue: Queue, binding: Binding) -> Router:
    """What the binding leads to when there is no other."""
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
