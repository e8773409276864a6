"""Standing still: queues take nothing while the rules that lead to them change.

Rules:
- A change of the rules counts for a queue from where the queue stands still. That is kept with the
  queue before the row is written, and the queue goes on when the fate of the row is known: it reads
  what it missed from the log, by the rules that count then. So a crash at any time comes to the
  same messages, whether the row was written or not, and a refused change takes nothing from a
  queue and gives it nothing.
- Changes that come together share one standstill. Once one of them is done with, later ones wait
  for the next: so a queue goes on however often its bindings change.
- A change of several queues begins in all of them at once: no two changes wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from onelog.queues.exchanges import Binding, Destination
from onelog.queues.history import missed_by, past_of

if TYPE_CHECKING:
    from onelog.queues.following import Follower
    from onelog.queues.hub import QueueHub
    from onelog.queues.queue import Queue

MISSED: Final = "amqp-missed"
"""Incidents: a queue could not read what came while it stood still."""


class Standstill:
    """One queue stands still, for as long as changes that share this are under way."""

    __slots__ = ("changes", "ended", "is_open", "lock", "stands")

    def __init__(self, follower: Follower) -> None:
        self.stands = follower.moment()
        """Up to where the queue was given what its bindings bring."""
        self.changes = 0
        self.is_open = True
        """Whether another change may share it."""
        self.lock = asyncio.Lock()
        """Pasts are read one after the other."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Standing:
    """Which queues stand still."""

    def __init__(self, hub: QueueHub, follower: Follower) -> None:
        self._hub = hub
        self._follower = follower
        self.queues: dict[Queue, Standstill] = {}

    @asynccontextmanager
    async def still(self, queues: Sequence[Queue]) -> AsyncIterator[None]:
        """These queues stand still for the length of the block; at its end they have it all.

        The block is not to be cancelled: whoever may be runs it as a task of its own.
        """
        while closed := [row for row in map(self.queues.get, queues) if row and not row.is_open]:
            await asyncio.wait([closed[0].ended])
        for queue in queues:
            self._begin(queue)
        try:
            yield
        finally:
            await self._end(queues)

    def _begin(self, queue: Queue) -> None:
        if queue not in self.queues:
            self._follower.queue_wakes()
            self.queues[queue] = Standstill(self._follower)
        self.queues[queue].changes += 1

    async def _end(self, queues: Sequence[Queue]) -> None:
        """A change is done with in all of its queues; wait until they go on."""
        shared, last = [], []
        for queue in queues:
            standstill = self.queues[queue]
            standstill.is_open = False
            standstill.changes -= 1
            if standstill.changes:
                shared.append(standstill.ended)
            else:
                last.append((queue, standstill))
        for queue, standstill in last:
            await self._go_on(queue, standstill)
        if shared:
            await asyncio.wait(shared)

    async def _go_on(self, queue: Queue, standstill: Standstill) -> None:
        """Let a queue follow again when it has what it missed."""
        try:
            await missed_by(self._follower, queue, standstill.stands).take()
        except Exception as error:  # noqa: BLE001 - the row is written all the same
            place = f"{queue.vhost.name} {queue.name}"
            self._hub.broker.troubles.note(MISSED, place, error)
        finally:
            self._follower.forget_moment(standstill.stands)
            self._follower.queue_wakes()
            del self.queues[queue]
            standstill.ended.set_result(None)
            queue.wake()

    async def take_own_past(self, queue: Queue) -> None:
        """Give a queue what was sent to its name before it was there."""
        to = Destination("queue", queue.name)
        async with self.still([queue]):
            own = Binding(source="", destination=to, routing_key=queue.name)
            await self.take_past(queue, own)

    async def take_past(self, queue: Queue, binding: Binding) -> None:
        """Give a queue that stands still what a binding would have brought before."""
        standstill = self.queues[queue]
        async with standstill.lock:
            past = await past_of(self._follower, queue, binding, standstill.stands)
            await past.take()
