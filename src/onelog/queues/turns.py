"""Turns: how the queues that a channel consumes from share what the channel may be sent.

A channel is whatever has one bound for consumers of several queues: AMQP's channel, a session.

Rules:
- A prefetch of the channel, its bound of unacknowledged messages and its socket are shared. When
  there is room again, each queue is asked in turn and gets its share of it, and then goes to the
  end of the line. So no queue keeps the others waiting, however many messages it has.
- While a round is due, no queue takes room outside of its turn: otherwise the queue that wakes
  first, or that just got a message, would take all room that was acknowledged.
- Where a channel consumes from one queue only, there is nothing to share, and nothing is asked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from onelog.queues.queue import Queue


class Sharing(Protocol):
    """A channel, as its turns see it."""

    @property
    def delivered(self) -> int:
        """Messages that it has been sent so far."""

    @property
    def room(self) -> int:
        """How many it may be sent now."""


class Turns:
    """The queues of one channel, the next one first."""

    __slots__ = ("_loop", "_now", "_queues", "_upto", "is_due")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[Queue, int] = {}
        """Queue → how many consumers the channel has there."""
        self.is_due = False
        """Whether a round is due, so that no queue takes room outside of its turn."""
        self._now: Queue | None = None
        self._upto = 0
        """The number of messages that the channel has been sent when that queue's share is used
        up."""

    def add(self, queue: Queue) -> None:
        """The channel has one more consumer of a queue."""
        self._queues[queue] = self._queues.get(queue, 0) + 1

    def remove(self, queue: Queue) -> None:
        """It has one less."""
        if self._queues[queue] == 1:
            del self._queues[queue]
        else:
            self._queues[queue] -= 1

    def room(self, queue: Queue, room: int, delivered: int) -> int:
        """How much of the channel's room a queue may use while a round is due."""
        return min(room, self._upto - delivered) if queue is self._now else 0

    def begin(self, channel: Sharing) -> None:
        """There may be room again: share it among the queues, soon."""
        if len(self._queues) == 1:
            for queue in self._queues:
                queue.wake()
        elif self._queues and not self.is_due:
            self.is_due = True
            self._loop.call_soon(self._go_round, channel)

    def _go_round(self, channel: Sharing) -> None:
        before = channel.delivered
        try:
            left = len(self._queues)
            for queue in list(self._queues):
                room, at = channel.room, channel.delivered
                if room <= 0:
                    break
                self._now, self._upto = queue, at + max(1, room // left)
                left -= 1
                queue.hand_out()
                if channel.delivered > at and queue in self._queues:
                    self._queues[queue] = self._queues.pop(queue)  # to the end of the line
        finally:
            self.is_due, self._now = False, None
        if channel.room > 0 and channel.delivered > before:
            self.begin(channel)  # a queue may have more, and others have their turn in between
