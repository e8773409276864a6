"""A queue: places of messages that wait, consumers that take them, and how messages leave.

Rules:
- The router gives it places in arrival order. It hands them out in that order, higher priorities
  first; what comes back goes out again before what never left, marked as redelivered.
- A message leaves when it is acknowledged, expires, is dropped by a length limit or is given up;
  with a dead-letter exchange the last three are published there first, and only then settled.
- Message TTL counts at the head, as in a classic queue of RabbitMQ; a timer waits for the head.
- Nothing is copied: a message is read from the log when it goes out (I1, I3).
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Final

from onelog.broker import Record, RoutedCursor
from onelog.protocols.amqp.mapping import PRIORITY
from onelog.protocols.amqp.queues.consumers import Consumers
from onelog.protocols.amqp.queues.ready import ReadyList, unpack
from onelog.protocols.amqp.queues.settings import QueueRecord, QueueSettings
from onelog.record.headers import EXPIRY, find_header

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection
    from onelog.protocols.amqp.queues.consumers import Consumer
    from onelog.protocols.amqp.vhosts import VirtualHost

BATCH: Final = 64
"""Messages that are read from the log together."""
TURN: Final = 512
"""Messages that one queue hands out before others have their turn."""
_DIGITS_MAX: Final = 19


class Queue:
    """One queue of a virtual host."""

    def __init__(
        self,
        vhost: VirtualHost,
        record: QueueRecord,
        settings: QueueSettings,
        cursor: RoutedCursor,
        owner: Connection | None,
    ) -> None:
        self.vhost = vhost
        self.record = record
        self.settings = settings
        self.cursor = cursor
        self.owner = owner
        """The connection that alone may use it."""
        self.ready = ReadyList(settings.max_priority)
        self.consumers = Consumers(settings)
        self.unacked = 0
        self.had_consumers = False
        self.is_deleted = False
        self.published = 0
        self.delivered = 0
        self.acked = 0
        self._loop = vhost.hub.loop
        self._clock = vhost.hub.clock
        self._sizes: dict[int, int] = {}
        self._ready_bytes = 0
        self._pumping = False
        self._ttl_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._used()

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def needs_records(self) -> bool:
        """Whether it has to look at a message when it takes it."""
        chosen = self.settings
        return bool(chosen.max_priority) or chosen.max_length_bytes is not None

    # -- taking in

    def take_in(self, place: int, record: Record | None) -> bool:
        """A message was routed here; False when the queue is full and refuses it."""
        chosen = self.settings
        size = 0
        if chosen.max_length_bytes is not None and record is not None:
            size = len(record.value or b"")
        if chosen.overflow != "drop-head" and self._is_full(size):
            if chosen.overflow == "reject-publish-dlx":
                self._note(place)
                self._give_up(place, "maxlen")
            return False
        self._note(place)
        self.ready.append(place, self._priority(record))
        self.published += 1
        if chosen.max_length_bytes is not None:
            self._sizes[place] = size
            self._ready_bytes += size
        self._drop_excess()
        if chosen.message_ttl_ms is not None or self.vhost.hub.saw_expiry:
            self._watch_head()
        self.wake()
        return True

    def _note(self, place: int) -> None:
        key, offset = self.vhost.hub.place(place)
        self.cursor.note(key, offset)

    def restore(self, place: int, record: Record | None) -> None:
        """A message that waited before a restart."""
        self.ready.append(place, self._priority(record))
        if self.settings.max_length_bytes is not None and record is not None:
            self._sizes[place] = len(record.value or b"")
            self._ready_bytes += self._sizes[place]

    def _priority(self, record: Record | None) -> int:
        if not self.settings.max_priority or record is None:
            return 0
        found = find_header(record.headers, PRIORITY)
        return int(found) if found is not None and found.isdigit() and len(found) <= 3 else 0

    def _is_full(self, size: int) -> bool:
        chosen = self.settings
        if chosen.max_length is not None and self.ready.size >= chosen.max_length:
            return True
        limit = chosen.max_length_bytes
        return limit is not None and self._ready_bytes + size > limit

    def _drop_excess(self) -> None:
        chosen = self.settings
        while self.ready.size and (
            (chosen.max_length is not None and self.ready.size > chosen.max_length)
            or (chosen.max_length_bytes is not None and self._ready_bytes > chosen.max_length_bytes)
        ):
            self._give_up(self._took(self.ready.take_oldest()), "maxlen")

    def _took(self, place: int) -> int:
        """A place is no longer ready."""
        if self._sizes:
            self._ready_bytes -= self._sizes.pop(place, 0)
        return place

    # -- handing out

    def wake(self) -> None:
        """Hand out what waits, soon."""
        if not self._pumping and self.ready.size and self.consumers:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        given = 0
        while self.ready.size and given < TURN and not self.is_deleted:
            consumer = self.consumers.next_ready()
            if consumer is None:
                return
            count = min(consumer.room, BATCH, self.ready.size)
            # With several consumers each gets one in turn; one alone may get many.
            count = count if self.consumers.is_single else 1
            places = [self._took(self.ready.take()) for _ in range(count)]
            for place, record in self._read(places):
                if record is not None:
                    self._deliver(consumer, place, record)
            given += count
        self._watch_head()
        self.wake()

    def _read(self, places: list[int]) -> list[tuple[int, Record | None]]:
        """The records of places, in their order; gone and expired ones are dealt with."""
        hub = self.vhost.hub
        found: dict[int, Record] = {}
        for number, group in groupby(sorted(places), key=lambda place: unpack(place)[0]):
            rows = {unpack(place)[1]: place for place in group}
            for record in hub.read(number, list(rows)):
                found[rows[record.offset]] = record
        now_ms = self._clock.now_ms()
        answer: list[tuple[int, Record | None]] = []
        for place in places:
            row = found.get(place)
            if row is None:
                self._settle(place)  # retention took it
            elif self._ends_ms(row, now_ms) <= now_ms:
                self._give_up(place, "expired", row)
                row = None
            answer.append((place, row))
        return answer

    def _ends_ms(self, record: Record, now_ms: int) -> int:
        """When a message expires; later than `now_ms` when it does not."""
        ends = now_ms + 1
        own = find_header(record.headers, EXPIRY)
        if own is not None and own.isdigit() and len(own) <= _DIGITS_MAX:
            ends = int(own)
        ttl_ms = self.settings.message_ttl_ms
        if ttl_ms is not None:
            limit = record.timestamp_ms + ttl_ms
            ends = min(ends, limit) if own is not None else limit
        return ends

    def _deliver(self, consumer: Consumer, place: int, record: Record) -> None:
        key, offset = self.vhost.hub.place(place)
        count = self.cursor.handed_out(key, offset)
        self.delivered += 1
        self.unacked += 1
        consumer.deliver(self, place, record, count)
        if consumer.no_ack:
            self.ack(place)

    def get(self) -> tuple[int, Record, int] | None:
        """The next message for basic.get: its place, the record, how often it was out before."""
        self._used()
        while self.ready.size:
            place = self._took(self.ready.take())
            ((_place, record),) = self._read([place])
            if record is not None:
                key, offset = self.vhost.hub.place(place)
                count = self.cursor.handed_out(key, offset)
                self.delivered += 1
                self.unacked += 1
                return place, record, count
        return None

    # -- settling

    def ack(self, place: int) -> None:
        """The message is done with."""
        self.unacked -= 1
        self.acked += 1
        self._settle(place)
        self.wake()

    def requeue(self, places: list[int]) -> None:
        """Messages come back, in the order they had."""
        limit = self.settings.delivery_limit
        if limit is None and self.settings.type == "quorum":
            limit = 20
        for place in places:
            self.unacked -= 1
            key, offset = self.vhost.hub.place(place)
            if limit is not None and self.cursor.times_handed_out(key, offset) > limit:
                self._give_up(place, "delivery_limit")
            elif self.cursor.holds(key, offset):
                record = self._record(place) if self.needs_records else None
                self.ready.put_back(place, self._priority(record))
                if self.settings.max_length_bytes is not None and record is not None:
                    self._sizes[place] = len(record.value or b"")
                    self._ready_bytes += self._sizes[place]
        self._watch_head()
        self.wake()

    def reject(self, place: int) -> None:
        """The consumer does not want the message, and it is not to come again."""
        self.unacked -= 1
        self._give_up(place, "rejected")
        self.wake()

    def purge(self) -> int:
        """Settle everything that waits; how many that were."""
        places = self.ready.clear()
        self._sizes.clear()
        self._ready_bytes = 0
        for place in places:
            self._settle(place)
        return len(places)

    def _settle(self, place: int) -> None:
        key, offset = self.vhost.hub.place(place)
        self.cursor.settle(key, offset)

    def settled_elsewhere(self, place: int) -> None:
        """A dead letter is safe where it went."""
        self._settle(place)

    def settled_again(self, place: int) -> None:
        """A commit that a crash interrupted had settled this message."""
        if place in set(self.ready.places()):
            kept = [row for row in self.ready.clear() if row != place]
            for row in kept:
                self.ready.append(row, self._priority(self._record(row)))
            self._settle(place)

    def _record(self, place: int) -> Record | None:
        number, offset = unpack(place)
        found = self.vhost.hub.read(number, [offset])
        return found[0] if found else None

    def _give_up(self, place: int, reason: str, record: Record | None = None) -> None:
        if self.settings.dead_letter_exchange is None:
            self._settle(place)
            return
        record = record or self._record(place)
        if record is None:
            self._settle(place)
        else:
            self.vhost.dead_letters.send(self, place, record, reason)

    # -- time

    def _watch_head(self) -> None:
        """Be woken when the message at the head expires."""
        if self._ttl_timer is not None or not self.ready.size:
            return
        if self.settings.message_ttl_ms is None and not self.vhost.hub.saw_expiry:
            return
        place = self.ready.peek()
        assert place is not None
        record = self._record(place)
        now_ms = self._clock.now_ms()
        ends = now_ms if record is None else self._ends_ms(record, now_ms)
        if ends == now_ms + 1:
            return  # the head does not expire, and nothing behind it does before it leaves
        delay_s = max(0, ends - now_ms) / 1000
        self._ttl_timer = self._loop.call_later(delay_s, self._head_is_due)

    def _head_is_due(self) -> None:
        self._ttl_timer = None
        now_ms = self._clock.now_ms()
        for _ in range(TURN):
            place = self.ready.peek()
            if place is None or self.is_deleted:
                return
            record = self._record(place)
            if record is not None and self._ends_ms(record, now_ms) > now_ms:
                break
            self._took(self.ready.take())
            if record is None:
                self._settle(place)
            else:
                self._give_up(place, "expired", record)
        self._watch_head()

    def _used(self) -> None:
        """Somebody uses the queue: it does not expire for so long (x-expires)."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self.settings.expires_ms is not None and not self.consumers and not self.is_deleted:
            delay_s = self.settings.expires_ms / 1000
            self._idle_timer = self._loop.call_later(delay_s, self.vhost.queue_expired, self)

    def declared_again(self) -> None:
        """A declaration counts as use."""
        self._used()

    # -- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """Somebody consumes from here. Raises AmqpError when somebody else does exclusively."""
        self.consumers.add(consumer, self.name, self.vhost.name)
        self.had_consumers = True
        self._used()
        self.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Somebody stops to consume; an auto-delete queue goes with the last one."""
        self.consumers.remove(consumer)
        self._used()
        self.wake()
        if self.record.auto_delete and self.had_consumers and not self.consumers:
            self.vhost.queue_unused(self)

    def close(self) -> None:
        """The queue is gone, or the broker stops."""
        self.is_deleted = True
        for timer in (self._ttl_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._ttl_timer = self._idle_timer = None
