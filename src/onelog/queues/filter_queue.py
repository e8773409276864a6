"""A queue of everything that matches a filter, drained by consumers that come and go.

Rules:
- Messages wait in the log, not in a list: a queue cursor (`cursors/queue.py`) knows which were
  settled, whether there are consumers or not. A routed queue (`queue.py`) is for messages that
  bindings choose.
- A message is with one consumer at a time (`consumers.py` says with which). A message that comes
  back goes to another consumer, lowest offset first.
- A consumer without room is passed over, and wakes the queue when it has room. A message that no
  consumer can have is given up.
- A message that no consumer has the right to is withheld, and those behind it go on. It is offered
  again when a consumer comes or rights change. If more are withheld than the bound, the oldest one
  is given up.
- Messages go out at the end of a pass of the event loop, so that those that come back together go
  out in their order. After a bounded number, others have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from onelog.base.clock import Clock
from onelog.base.errors import Closed, NotFound, OnelogError
from onelog.base.limits import WITHHELD_MESSAGES_MAX
from onelog.broker import QueueCursor
from onelog.observe import get_logger
from onelog.queues.consumers import Consumer, Consumers, Delivery, Strategy
from onelog.record.reserved import read_expiry_ms

if TYPE_CHECKING:
    from onelog.broker import QueueWait, Record

PASS_RECORDS: Final = 256
"""Messages that a queue hands out before others have a turn."""

_log = get_logger("queues")


class FilterConsumer(Consumer, Protocol):
    """A consumer that collects its messages of a pass, and that the queue asks for room."""

    def may_have(self, record: Record) -> bool:
        """Whether it has the right to a message."""
        del record
        return True

    def flush(self) -> None:
        """Send the messages of this pass now."""

    def ask_for_room(self) -> None:
        """Messages wait and it has no room: wake the queue when there is some."""


class FilterQueue:
    """One queue: its cursor and its consumers."""

    __slots__ = ("_clock", "_is_due", "_loop", "_wait", "_withheld", "consumers", "cursor")

    def __init__(
        self,
        cursor: QueueCursor,
        strategy: Strategy,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.cursor = cursor
        self.consumers: Consumers[FilterConsumer] = Consumers(strategy=strategy)
        self._loop = loop
        self._clock = clock
        self._is_due = False
        self._wait: QueueWait | None = None
        self._withheld: dict[int, None] = {}
        """Messages that no consumer has the right to, the oldest first."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.cursor.name

    # -- consumers

    def add_consumer(self, consumer: FilterConsumer) -> None:
        """Add a consumer. Raises NotAuthorized when another one is exclusive."""
        if consumer not in self.consumers:
            self.consumers.add(consumer, f"queue {self.name!r}")
            self.offer_withheld()
        self.wake()

    def remove_consumer(self, consumer: FilterConsumer) -> None:
        """Remove a consumer, also one that was never added."""
        self.consumers.remove(consumer)
        if not self.consumers:
            self._stop_waiting()

    # -- rights

    def offer_withheld(self) -> None:
        """A consumer may have messages now that none had the right to."""
        withheld, self._withheld = self._withheld, {}
        for place in withheld:
            try:
                self.cursor.release(place, delay_ms=0, count=False)
            except NotFound:  # the queue was purged or deleted in between
                continue
        if withheld:
            self.wake()

    def _withhold(self, place: int) -> None:
        self.cursor.withhold(place)
        self._withheld[place] = None
        if len(self._withheld) > min(
            WITHHELD_MESSAGES_MAX, self.cursor.settings.in_flight_max // 2
        ):
            oldest = next(iter(self._withheld))
            del self._withheld[oldest]
            self.cursor.reject(oldest)

    # -- settling

    def ack(self, place: int) -> None:
        """Settle the message."""
        self.settle(place)
        self.wake()

    def settle(self, place: int) -> None:
        """A message leaves the queue."""
        self.cursor.ack(place)

    def reject(self, place: int) -> None:
        """The consumer does not want the message, and no other consumer gets it."""
        self.cursor.reject(place)
        self.wake()

    def requeue(self, places: Iterable[int]) -> None:
        """Messages come back, for other consumers."""
        for place in places:
            try:
                self.cursor.release(place, delay_ms=0)
            except OnelogError as error:  # the queue was deleted in between
                _log.info(
                    "a shared message could not be requeued", queue=self.name, reason=str(error)
                )
        self.wake()

    # -- handing out

    def wake(self) -> None:
        """Hand out waiting messages, at the end of this pass."""
        if not self._is_due and self.consumers:
            self._is_due = True
            self._loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._is_due = False
        self._stop_waiting()
        try:
            self._hand_out_some()
        except Closed:
            return  # deleted; the next consumer makes it anew
        except OnelogError as error:
            _log.error("a queue cannot be read", queue=self.name, reason=str(error))

    def _hand_out_some(self) -> None:
        room = sum(member.room for member in self.consumers)
        if room == 0:
            self._ask_for_room()
            return
        cursor, consumers = self.cursor, self.consumers
        now_ms = self._clock.now_ms()
        served: set[FilterConsumer] = set()
        is_stuck = False
        for found in cursor.acquire(self.name, min(room, PASS_RECORDS)):
            token, record = found.token, found.record
            ends_ms = read_expiry_ms(record.headers)
            if ends_ms is not None and ends_ms <= now_ms:
                cursor.ack(token)
                continue
            taker = consumers.give(Delivery(token, record, found.redelivered, {}))
            if taker:
                served.add(taker)
            elif not any(member.may_have(record) for member in consumers):
                self._withhold(token)
            elif taker is None:  # only a consumer without room can have it
                is_stuck = True
                cursor.release(token, delay_ms=0, count=False)
            else:
                cursor.reject(token)
        for member in served:
            member.flush()
        if is_stuck:
            self._ask_for_room()
        elif not cursor.is_full and (cursor.has_returned or cursor.reading.may_go_on()):
            self.wake()
        else:
            self._wait = cursor.when_available(self._available)

    def _ask_for_room(self) -> None:
        for member in self.consumers:
            if member.room == 0:
                member.ask_for_room()

    def _available(self) -> None:
        self._wait = None
        self.wake()

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
