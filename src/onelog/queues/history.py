"""Reading the log for one queue: what it missed, or what a binding would have brought before (I2).

Rules:
- A queue that reads the log stands still (`standing.py`): what comes meanwhile lies behind what it
  reads, so topics keep their order.
- What a queue missed is read by the rules of the time when it reads. The past of a binding is what
  that binding alone matches, up to where the queue stands.
- Streams that took topics over are read after their old homes (`log/moves.py`). A partition that is
  stopped holds back no queue: what is missed of it counts when it is restored. A past that cannot
  be read is an error: at once if an object of it is gone or damaged, and after `AWAY_S` if the
  object store is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from onelog.base.errors import ColdDamaged, ColdUnavailable, OnelogError
from onelog.broker import (
    EARLIEST,
    LATEST,
    Cold,
    Live,
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


AWAY_S: Final = 30.0
"""How long a past waits for an object store that is away."""


class Moment:
    """Where the routing stood everywhere, once; it costs what the routing moved since."""

    __slots__ = ("_live", "moved")

    def __init__(self, live: Live) -> None:
        self._live = live
        self.moved: dict[SourceKey, int] = {}
        """Where it stood in the partitions in which it stands elsewhere by now."""

    def at(self, key: SourceKey) -> int:
        """Where it stood in a partition; in one that came later, at its beginning."""
        stood = self.moved.get(key)
        if stood is None:
            source = self._live.find(key)
            stood = 0 if source is None else source.position
        return stood


class History:
    """What one queue reads from the log, and how far it has come.

    Made by `missed_by` or `past_of`.
    """

    def __init__(
        self,
        follower: Follower,
        queue: Queue,
        stands: Moment,
        alone: Router | None,
        positions: Mapping[SourceKey, int],
    ) -> None:
        self._follower = follower
        self._queue = queue
        self._stands = stands
        self._alone = alone
        """The rules of the past; None: what came since is read, and all rules count."""
        self._rights = follower.rights
        self._positions = dict(positions)
        self._away_since: float | None = None

    async def take(self) -> None:
        """Give the queue all of it."""
        while (behind := self._behind()) and not self._queue.is_deleted:
            for source in behind:
                try:
                    if self._read_some(source):
                        self._away_since = None
                        await asyncio.sleep(0)
                except Cold as cold:
                    await self._bring(source, cold)

    async def _bring(self, source: LiveSource, cold: Cold) -> None:
        """Wait for cold bytes. Raises why a past cannot be read."""
        if self._alone is None:
            await source.until_here(cold)
            return
        try:
            await source.partition.bring(cold)
        except OnelogError as error:
            if isinstance(error, ColdDamaged) or not source.may_pass(error):
                raise
            now = asyncio.get_running_loop().time()
            self._away_since = self._away_since or now
            if isinstance(error, ColdUnavailable) and now - self._away_since >= AWAY_S:
                raise
            await source.until_here(cold)

    def _behind(self) -> list[LiveSource]:
        """Where there is more to read."""
        keys = self._positions.keys() | self._stands.moved.keys()
        found = (self._follower.live.find(key) for key in sorted(keys))
        return [
            source
            for source in found
            if source is not None and source.is_followed and self._is_behind(source)
        ]

    def _is_behind(self, source: LiveSource) -> bool:
        if self._alone is None and source.partition.stopped is not None:
            return False
        return self._position(source) < self._end(source)

    def _position(self, source: LiveSource) -> int:
        position = self._positions.get(source.key)
        return self._stands.at(source.key) if position is None else position

    def _end(self, source: LiveSource) -> int:
        """How far it is to read."""
        if self._alone is None:
            return source.position
        return min(source.position, self._stands.at(source.key))

    def _limit(self, source: LiveSource) -> int:
        """How far a source may be read while what comes before it is not."""
        number = int(source.partition.id)
        held = (move.end_of(number) for move in source.stream.record.moves if self._holds(move))
        return min((self._end(source), *held))

    def _holds(self, move: Move) -> bool:
        for key, end in move.after:
            old = self._follower.live.find(key)
            if old is not None and self._is_behind(old) and self._position(old) < end:
                return True
        return False

    def _read_some(self, source: LiveSource) -> bool:
        """Read on in a source; False when there is nothing to read for now. May raise Cold."""
        position, limit = self._position(source), self._limit(source)
        if position >= limit:
            return False
        records, following = self._follower.live.read(source, position, limit)
        self._positions[source.key] = int(following)
        self._follower.notice_expiry(records)
        self._queue.vhost.hub.broker.cursors.pins.claim()
        for record in records:
            if self._is_wanted(record) and not self._queue.cursor.holds(source.key, record.offset):
                self._give(source, record)
        return True

    def _give(self, source: LiveSource, record: Record) -> None:
        queue, place = self._queue, pack(source.number, record.offset)
        is_taken = queue.take_in(place, record)
        if not is_taken and self._alone is None and queue.settings.overflow == "reject-publish":
            # Its publisher has the confirm already: the queue cannot refuse it any more.
            queue.cursor.note(source.key, record.offset)
            queue.restore(place, record)

    def _is_wanted(self, record: Record) -> bool:
        queue = self._queue
        if self._alone is None:
            return queue in self._follower.queues_for(record)
        address = address_of(record.topic)
        if address.vhost != queue.vhost.name:
            return False
        headers = headers_of(record)
        further = extra_keys_of(record)
        if self._rights != self._follower.rights:  # they changed while this is read
            self._rights = self._follower.rights
            self._alone.forget()
        found = self._alone.route(address.exchange, address.routing_key, headers, further)
        return queue.name in found


def missed_by(follower: Follower, queue: Queue, stands: Moment) -> History:
    """What came since a queue stands still."""
    return History(follower, queue, stands, None, {})


async def past_of(follower: Follower, queue: Queue, binding: Binding, stands: Moment) -> History:
    """What a binding would have brought before the queue stood still, as far as it wants that."""
    sources = [row.as_source for row in follower.sources_of(queue.vhost.name, binding.source)]
    start = await _start_of(queue).settled(sources)
    positions = {}
    for source in sources:
        first = max(start.offset_in(source), source.partition.start_offset)
        positions[source.key] = min(int(first), stands.at(source.key))
    return History(follower, queue, stands, _router_of(queue, binding), positions)


def _router_of(queue: Queue, binding: Binding) -> Router:
    """What the binding leads to when there is no other."""
    alone = Router(queue.vhost.makers)
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
