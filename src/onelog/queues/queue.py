"""A queue: places of messages that wait, consumers that take them, and how messages leave.

Rules:
- The router gives it places in arrival order. It hands them out in that order, higher priorities
  first. A message that comes back goes out before messages that never left, marked as redelivered.
- A message leaves when it is acknowledged, expires, is dropped by a length limit or is given up.
  With a dead-letter exchange the last three are published there first, and only then settled.
- When a consumer has room, a new message goes out at once, whatever its TTL and the queue's length
  limit: both count only for messages that wait.
- Messages that follow each other in the log, and that need no look one by one, are taken in, handed
  out and settled as one run.
- Nothing is copied: a message is read from the log when it goes out (I1, I3).
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Final

from onelog.broker import Record, RoutedCursor
from onelog.queues.consumers import Consumers, Delivery
from onelog.queues.expiry import Expiry
from onelog.queues.length import Length
from onelog.queues.purging import Purge
from onelog.queues.ready import ReadyList, unpack
from onelog.queues.settings import PRIORITY_MAX, DeclaredSettings, QueueRecord
from onelog.queues.window import Data, Window
from onelog.record.headers import PRIORITY
from onelog.record.reserved import read_number

if TYPE_CHECKING:
    from onelog.queues.consumers import Consumer
    from onelog.queues.vhosts import VirtualHost

BATCH: Final = 64
"""Messages that are read from the log together, and about how many bytes."""
BATCH_BYTES: Final = 1024 * 1024
TURN: Final = 512
"""Messages that one queue hands out before others have their turn."""
_DELIVERY_COUNT: Final = "x-delivery-count"


class Queue:
    """One queue of a virtual host."""

    __slots__ = (
        "__weakref__", "_at_once", "_batch", "_clock", "_idle_timer", "_keys", "_length",
        "_loop", "_pumping", "_purge", "_ready", "acked", "consumers", "cursor",
        "delivered", "delivered_no_ack", "expiry", "got", "got_no_ack", "got_nothing",
        "had_consumers", "is_deleted", "owner", "published", "record", "redelivered",
        "settings", "takes_runs", "unacked", "uncertain", "vhost", "window",
    )  # fmt: skip

    def __init__(
        self,
        vhost: VirtualHost,
        record: QueueRecord,
        settings: DeclaredSettings,
        cursor: RoutedCursor,
        owner: object | None,
    ) -> None:
        self.vhost = vhost
        self.record = record
        self.settings = settings
        self.cursor = cursor
        self.owner = owner
        """The only connection that may use it."""
        self._ready = ReadyList(settings.max_priority)
        self.window = Window(vhost.hub.follower.live, self.wake)
        limited = settings.max_length is not None or settings.message_ttl_ms is not None
        self.takes_runs: bool = not limited and not self.needs_records
        """Whether messages without an expiration of their own need no look one by one."""
        self._keys = vhost.hub.follower.live.keys
        self.consumers: Consumers[Consumer] = Consumers(
            single_active=settings.single_active_consumer
        )
        self.unacked = 0
        self.had_consumers = False
        self.is_deleted = False
        self.published = 0
        self.delivered = 0
        self.acked = 0
        self.got = 0
        """Messages that were delivered by basic.get."""
        self.got_no_ack = 0
        self.got_nothing = 0
        self.redelivered = 0
        self.delivered_no_ack = 0
        self._loop = vhost.hub.loop
        self._clock = vhost.hub.clock
        self._length = Length(settings)
        self._pumping = False
        self._batch = 1
        self._at_once: set[int] = set()
        """Places that came while a consumer had room for them: they go out, even when their TTL is
        0 or the queue's limit is reached."""
        self._purge = Purge(self)
        self.uncertain: dict[int, int] = {}
        """After a crash, per partition: below this offset nobody knows which messages were handed
        out."""
        self.expiry = Expiry(self)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._used()

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def ready(self) -> ReadyList:
        """The places that wait, with all that were routed here so far."""
        self.vhost.hub.follower.settle_up()
        return self._ready

    @property
    def needs_records(self) -> bool:
        """Whether it has to look at a message when it takes it in."""
        chosen = self.settings
        return bool(chosen.max_priority) or chosen.max_length_bytes is not None

    @property
    def is_quiet(self) -> bool:
        """Whether a message may be noted in it later, because no consumer would get it now."""
        return self.takes_runs and not self.consumers

    @property
    def may_refuse(self) -> bool:
        """Whether it may refuse a message."""
        return self.settings.overflow != "drop-head"

    # -- taking in

    def take_in_run(self, place: int, count: int) -> None:
        """Take in messages that follow each other and need no look."""
        number, offset = unpack(place)
        self.cursor.note_range(self._keys[number], offset, count)
        self._ready.append_run(place, count)
        self.published += count

    def pass_on(self, place: int, count: int, data: Data) -> int:
        """Send messages that just came straight to the one consumer, if it has room for all.

        Returns how many were sent; the others are to be taken in.
        """
        consumer = self.consumers.only
        if (
            consumer is None
            or self._ready.size
            or self._pumping
            or consumer.no_ack
            or consumer.room < count
        ):
            return 0
        sent = consumer.take_run(place, count, data)
        if sent:
            number, offset = unpack(place)
            self.cursor.note_handed_out(self._keys[number], offset, sent)
            self._ready.passed(place, sent)
            self.published += sent
            self.delivered += sent
            self.unacked += sent
        return sent

    def take_in(self, place: int, record: Record | None) -> bool:
        """Take in a message. Returns False when the queue is full and refuses it."""
        chosen = self.settings
        if self.consumers and self._length.is_full(self._ready.size, record):
            self._pump()  # messages for which a consumer has room do not count
        if chosen.overflow != "drop-head" and self._length.is_full(self._ready.size, record):
            if chosen.overflow == "reject-publish-dlx":
                self._note(place)
                self.give_up(place, "maxlen")
            return False
        self._note(place)
        self.published += 1
        is_pressed = self.expiry.matters or self._length.is_full(self._ready.size, record)
        if is_pressed and self.consumers.have_room(self._ready.size + 1):
            self._at_once.add(place)
        self._ready.append(place, self._priority(record))
        self._length.add(place, record)
        if not self._at_once:
            self._drop_excess()
            self.expiry.watch()
        self.wake()
        return True

    def _note(self, place: int) -> None:
        key, offset = self.vhost.hub.place(place)
        self.cursor.note(key, offset)

    def restore(self, place: int, record: Record | None) -> None:
        """Take in a message that waited before a restart."""
        self._ready.append(place, self._priority(record))
        self._length.add(place, record)

    def _priority(self, record: Record | None) -> int:
        if not self.settings.max_priority or record is None:
            return 0
        return read_number(record.headers, PRIORITY, PRIORITY_MAX) or 0

    def _drop_excess(self) -> None:
        if self.may_refuse:
            return  # a message that comes back stays, even beyond the limit
        while self._ready.size and self._length.is_exceeded(self._ready.size):
            self.give_up(self._took(self._ready.take()), "maxlen")

    def _took(self, place: int) -> int:
        """Note that a place no longer waits. Returns it."""
        self._length.remove(place)
        return place

    # -- handing out

    def wake(self) -> None:
        """Hand out waiting messages, soon."""
        if not self._pumping and self._ready.size and self.consumers:
            self._pumping = True
            self._loop.call_soon(self._pump_soon)

    def _pump_soon(self) -> None:
        self._pumping = False
        if not self.is_deleted:
            self._pump()

    def _pump(self) -> None:
        given = 0
        while self._ready.size and given < TURN:
            consumer = self.consumers.next_ready()
            if consumer is None:
                break
            # Several consumers get one message each in turn; a single one may get many.
            most = min(consumer.room, TURN - given) if self.consumers.is_single else 1
            if self.takes_runs:
                count = self._hand_out_run(consumer, most)
                if count:
                    given += count
                    continue
                if self.window.is_waiting:
                    break
            count = min(most, self._batch, self._ready.size)
            for place, record in self._read([self._took(self._ready.take()) for _ in range(count)]):
                self._deliver(consumer, place, record)
            given += count
        if self._at_once and self.consumers.have_room(1):
            self.wake()  # other queues and channels have their turn in between
        else:
            self._at_once.clear()
            if not self.takes_runs:
                self._drop_excess()
            self.expiry.watch()
        self.window.leave()
        if given >= TURN:
            self.wake()

    def pump(self) -> None:
        """Hand out waiting messages now, unless that will happen soon anyhow."""
        if not self._pumping:
            self.hand_out()

    def hand_out(self) -> None:
        """Hand out waiting messages, now."""
        if self._ready.size and self.consumers and not self.is_deleted:
            self._pump()

    def _hand_out_run(self, consumer: Consumer, most: int) -> int:
        """Send the plain messages at the head as one run. Returns how many."""
        place, count = self._ready.run(most)
        number, offset = unpack(place)
        if not count or offset < self.uncertain.get(number, 0):
            return 0
        key = self._keys[number]
        data = self.window.at(number, offset)
        if data is None or not self.cursor.are_fresh(key, offset, count):
            return 0
        count = consumer.take_run(place, count, data)
        if count:
            self._ready.take_run(place, count)
            self.cursor.hand_out_range(key, offset, count)
            self.delivered += count
            self.unacked += count
            if consumer.no_ack:
                self.delivered_no_ack += count
                self.ack_run(place, count)
        return count

    def _read(self, places: list[int]) -> list[tuple[int, Record]]:
        """The records of places, in their order. Missing and expired ones are settled."""
        found = self._records(places)
        now_ms = self._clock.now_ms()
        answer: list[tuple[int, Record]] = []
        for place in places:
            row = found.get(place)
            if row is None:
                self.settle_run(place, 1)  # retention took it
            elif self.expiry.ends_ms(row, now_ms) <= now_ms and place not in self._at_once:
                self.give_up(place, "expired", row)
            else:
                answer.append((place, row))
        if self._at_once:
            self._at_once.difference_update(places)
        return answer

    def _records(self, places: list[int]) -> dict[int, Record]:
        """The records of places that still exist."""
        found: dict[int, Record] = {}
        size = 0
        for number, group in groupby(sorted(places), key=lambda place: unpack(place)[0]):
            rows = {unpack(place)[1]: place for place in group}
            for record in self.vhost.hub.read(number, list(rows)):
                found[rows[record.offset]] = record
                size += len(record.value or b"")
        self._batch = min(BATCH, max(1, BATCH_BYTES * len(places) // max(size, 1)))
        return found

    def _deliver(self, consumer: Consumer, place: int, record: Record) -> None:
        delivery = self._hand_out(place, record)
        taker = consumer if consumer.take(delivery) else self.consumers.give(delivery)
        if not taker:
            self.reject(place)  # no other consumer takes it, either
        elif taker.no_ack:
            self.delivered_no_ack += 1
            self.ack(place)

    def _hand_out(self, place: int, record: Record) -> Delivery:
        key, offset = self.vhost.hub.place(place)
        count = self.cursor.handed_out(key, offset)
        self.delivered += 1
        self.unacked += 1
        self.redelivered += count > 0
        again = count > 0 or offset < self.uncertain.get(unpack(place)[0], 0)
        headers = {_DELIVERY_COUNT: count} if count and self.settings.type == "quorum" else {}
        return Delivery(place, record, again, headers)

    def get(self) -> Delivery | None:
        """The next message for basic.get."""
        self._used()
        found: Delivery | None = None
        while self.ready.size and found is None:
            for place, record in self._read([self._took(self._ready.take())]):
                found = self._hand_out(place, record)
                self.got += 1
        self.got_nothing += found is None
        self.expiry.watch()
        return found

    # -- settling

    def ack(self, place: int) -> None:
        """Settle the message."""
        self.ack_run(place, 1)

    def ack_run(self, place: int, count: int) -> None:
        """Settle messages that follow each other."""
        self.unacked -= count
        self.acked += count
        self.settle_run(place, count)
        self.wake()

    def requeue(self, places: list[int]) -> None:
        """Messages come back, and keep their order."""
        limit = self.settings.deliveries_max
        for place in places:
            self.unacked -= 1
            key, offset = self.vhost.hub.place(place)
            if limit is not None and self.cursor.times_handed_out(key, offset) > limit:
                self.give_up(place, "delivery_limit")
                continue
            record = self.record_at(place) if self.needs_records else None
            self._ready.put_back(place, self._priority(record))
            self._length.add(place, record)
        if not self._at_once:
            self._drop_excess()
        self.expiry.watch()
        self.wake()

    def reject(self, place: int) -> None:
        """The consumer does not want the message, and no other consumer gets it."""
        self.unacked -= 1
        self.give_up(place, "rejected")
        self.wake()

    def purge(self) -> int:
        """Settle all waiting messages. Returns how many there were."""
        gone = self.ready.cut()
        self._length.clear()
        self._at_once.clear()
        count = gone.size
        self._purge.add(gone)
        return count

    def settle_run(self, place: int, count: int) -> None:
        """Messages that follow each other leave the queue."""
        number, offset = unpack(place)
        if self._ready.remembers:
            self._ready.forget(place, count)
        self.cursor.settle_range(self._keys[number], offset, count)

    def settled_elsewhere(self, place: int) -> None:
        """The dead letter of a message is durable: settle the message."""
        self.settle_run(place, 1)

    def settled_again(self, places: dict[int, str]) -> None:
        """Repeat the settlements of a commit that a crash interrupted: its messages wait again."""
        if not places.keys().isdisjoint(self._ready.places()):
            self._length.clear()
            for row in self._ready.clear():
                if row not in places:
                    self.restore(row, self.record_at(row) if self.needs_records else None)
        for place, kind in places.items():
            key, offset = self.vhost.hub.place(place)
            if not self.cursor.holds(key, offset):
                continue
            if kind == "reject":
                self.give_up(place, "rejected")
            else:
                self.settle_run(place, 1)

    def record_at(self, place: int) -> Record | None:
        """The record at a place; None: retention took it."""
        number, offset = unpack(place)
        found = self.vhost.hub.read(number, [offset])
        return found[0] if found else None

    def give_up(self, place: int, reason: str, record: Record | None = None) -> None:
        """A message that no longer waits leaves, to the dead-letter exchange if there is one."""
        if self.is_deleted:
            return
        if self.settings.dead_letter_exchange is None:
            self.settle_run(place, 1)
            return
        record = record or self.record_at(place)
        if record is None:
            self.settle_run(place, 1)
        else:
            self.vhost.dead_letters.send(self, place, record, reason)

    def expire_head(self, now_ms: int) -> bool:
        """Give the head up if it has expired. Returns whether it had."""
        place = self._ready.peek()
        if place is None or place in self._at_once or self.is_deleted:
            return False
        record = self.record_at(place)
        if record is not None and self.expiry.ends_ms(record, now_ms) > now_ms:
            return False
        self._took(self._ready.take())
        if record is None:
            self.settle_run(place, 1)
        else:
            self.give_up(place, "expired", record)
        return True

    # -- use

    def _used(self) -> None:
        """The queue is in use: its own expiry (x-expires) begins again."""
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
        """Add a consumer. Raises NotAuthorized when another one is exclusive."""
        was_quiet = self.is_quiet
        self.consumers.add(consumer, f"queue '{self.name}' in vhost '{self.vhost.name}'")
        if was_quiet:
            self.vhost.hub.follower.queue_wakes()
        self.had_consumers = True
        self._used()
        self.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer. An auto-delete queue is deleted with its last one."""
        self.consumers.remove(consumer)
        self._used()
        self.wake()
        if self.record.auto_delete and self.had_consumers and not self.consumers:
            self.vhost.queue_unused(self)

    def close(self) -> None:
        """The queue was deleted, or the broker stops."""
        self.is_deleted = True
        self.window.close()
        self._purge.settle()
        self.expiry.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
