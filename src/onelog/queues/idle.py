"""A queue that nobody uses for a while is deleted (x-expires).

Rules: consumers, a declaration and basic.get are use; while anybody consumes, no time runs.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onelog.queues.queue import Queue


class Idle:
    """The time that one queue is unused."""

    __slots__ = ("_queue", "_timer")

    def __init__(self, queue: Queue) -> None:
        self._queue = weakref.ref(queue)  # it holds us, and goes when it is deleted
        self._timer: asyncio.TimerHandle | None = None

    def used(self) -> None:
        """Somebody uses the queue: it does not expire for so long."""
        self.close()
        queue = self._queue()
        if queue is None or queue.settings.expires_ms is None:
            return
        if not queue.consumers and not queue.is_deleted:
            delay_s = queue.settings.expires_ms / 1000
            self._timer = queue.vhost.hub.loop.call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        queue = self._queue()
        if queue is not None:
            queue.vhost.queue_expired(queue)

    def close(self) -> None:
        """Wait for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
