"""When messages of a queue end: their own expiration, and the queue's message TTL.

Rules: as in a classic queue of RabbitMQ a message ends when it is at the head, so that an earlier
one that lives longer keeps it; one timer waits for the head. Until any message with an expiration
was seen, queues without a TTL look at nothing. A head that is not in memory is looked at once it
is.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.broker import Cold
from onelog.record.reserved import read_expiry_ms

if TYPE_CHECKING:
    from onelog.broker import Record, Waiter
    from onelog.queues.queue import Queue

TURN: Final = 512
"""Messages that expire in one turn before others have theirs."""


class Expiry:
    """Watches the head of one queue for its expiry."""

    __slots__ = ("_arrival", "_queue", "_timer", "_watched")

    def __init__(self, queue: Queue) -> None:
        self._queue: Queue = weakref.proxy(queue)  # it holds us, and goes when it is deleted
        self._timer: asyncio.TimerHandle | None = None
        self._watched: int | None = None
        self._arrival: Waiter | None = None
        """Set while the head is on its way from the disk."""

    @property
    def matters(self) -> bool:
        """Whether any message of the queue may expire."""
        queue = self._queue
        return queue.settings.message_ttl_ms is not None or queue.vhost.hub.saw_expiry

    def ends_ms(self, record: Record, now_ms: int) -> int:
        """When a message expires; later than `now_ms` when it does not."""
        ends = now_ms + 1
        own = read_expiry_ms(record.headers)
        if own is not None:
            ends = own
        ttl_ms = self._queue.settings.message_ttl_ms
        if ttl_ms is not None:
            limit = record.timestamp_ms + ttl_ms
            ends = min(ends, limit) if own is not None else limit
        return ends

    def watch(self) -> None:
        """Set the timer for when the message at the head expires."""
        queue = self._queue
        if not self.matters or queue.is_deleted:
            return
        place = queue.ready.peek()
        if place == self._watched:
            return
        self.close()
        if place is None:
            return
        self._watched = place
        try:
            record = queue.record_now(place)
        except Cold as cold:
            self._arrival = queue.window.when_here(place, cold, self._here)
            return
        now_ms = queue.vhost.hub.clock.now_ms()
        ends = now_ms if record is None else self.ends_ms(record, now_ms)
        if record is None or self._has_ttl or read_expiry_ms(record.headers) is not None:
            delay_s = max(0, ends - now_ms) / 1000
            self._timer = queue.vhost.hub.loop.call_later(delay_s, self._due)

    def _here(self, _error: OnelogError | None) -> None:
        self._arrival = self._watched = None
        self.watch()

    @property
    def _has_ttl(self) -> bool:
        return self._queue.settings.message_ttl_ms is not None

    def _due(self) -> None:
        self.close()
        now_ms = self._queue.vhost.hub.clock.now_ms()
        for _ in range(TURN):
            if not self._queue.expire_head(now_ms):
                break
        self.watch()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._watched = None
