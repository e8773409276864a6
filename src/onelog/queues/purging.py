"""Purging: all waiting messages of a queue are settled, in turns, so that others have theirs."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onelog.queues.queue import Queue
    from onelog.queues.ready import ReadyList

TURN: Final = 1024
"""Runs that are settled in one turn."""
RUN_MAX: Final = 1 << 30


class Purge:
    """Messages that were purged from a queue and are not settled yet."""

    __slots__ = ("_gone", "_queue", "_waiting")

    def __init__(self, queue: Queue) -> None:
        self._queue: Queue = weakref.proxy(queue)  # it holds us, and goes when it is deleted
        self._gone: deque[ReadyList] = deque()
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, gone: ReadyList) -> None:
        """One more purge."""
        self._gone.append(gone)
        self.settle()

    def settle(self) -> None:
        """Settle one turn of them; all of them when the queue is deleted."""
        queue = self._queue
        while self._gone:
            gone = self._gone[0]
            for _ in range(TURN):
                if not gone.size:
                    break
                place, count = gone.run(RUN_MAX)
                if count:
                    gone.take_run(place, count)
                    queue.settle_run(place, count)
                else:
                    queue.settle_run(gone.take(), 1)
            if not gone.size:
                self._gone.popleft()
            elif not queue.is_deleted:
                queue.vhost.hub.loop.call_soon(self.settle)
                return
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def done(self) -> None:
        """Wait until all of them are settled."""
        if self._gone:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
