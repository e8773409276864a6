"""Messages that leave a queue without being acknowledged: dropped, or sent to the dead letters.

Rules: dead letters go out in the order in which the queue gave the messages up. A dead letter needs
its record; one that is not in memory is waited for, and those behind it wait with it. A message
whose partition is stopped is not settled: it waits in the queue again after the next start.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

from onelog.base.errors import OnelogError
from onelog.broker import Cold

if TYPE_CHECKING:
    from onelog.broker import Record, Waiter
    from onelog.queues.queue import Queue


class GivingUp:
    """What one queue gives up."""

    __slots__ = ("_arrival", "_queue", "_rows")

    def __init__(self, queue: Queue) -> None:
        self._queue: Queue = weakref.proxy(queue)  # it holds us, and goes when it is deleted
        self._rows: deque[tuple[int, str, Record | None]] | None = None
        """Place, reason and record, of what is waited for and what comes behind it."""
        self._arrival: Waiter | None = None

    def add(self, place: int, reason: str, record: Record | None) -> None:
        """Give a message up; `record` if it is known."""
        queue = self._queue
        if queue.settings.dead_letter_exchange is None:
            queue.settle_run(place, 1)
            return
        if self._rows is None:
            self._rows = deque()
        self._rows.append((place, reason, record))
        if self._arrival is None:
            self._go_on()

    def _here(self, _error: OnelogError | None) -> None:
        self._arrival = None
        self._go_on()

    def _go_on(self) -> None:
        queue, rows = self._queue, self._rows
        while rows and not queue.is_deleted:
            place, reason, record = rows[0]
            try:
                record = record or queue.record_now(place)
            except Cold as cold:
                self._arrival = queue.window.when_here(place, cold, self._here)
                return
            except OnelogError:
                rows.popleft()
                continue
            rows.popleft()
            if record is None:  # retention took it
                queue.settle_run(place, 1)
            else:
                queue.vhost.dead_letters.send(queue, place, record, reason)

    def close(self) -> None:
        """The queue is gone, or the broker stops."""
        self._rows = None
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
