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
- Nothing is copied: a message is read from the log when it goes out (I1, I3). Where it is not in
  memory, it waits until it is, together with the messages behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.broker import Cold, Record, RoutedCursor
from onelog.kernel import QueueEnd
from onelog.queues.consumers import Consumers, Delivery
from onelog.queues.expiry import Expiry
from onelog.queues.giving_up import GivingUp
from onelog.queues.idle import Idle
from onelog.queues.length import Length, size_of
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


class Queue(QueueEnd):
    """One queue of a virtual host."""

    __slots__ = (
        "__weakref__", "_at_once", "_batch", "_clock", "_giving_up", "_idle", "_length", "_loop",
        "_out", "consumers", "delivered_no_ack", "expiry", "got", "got_no_ack", "got_nothing",
        "had_consumers", "owner", "purging", "record", "redelivered", "settings", "takes_runs",
        "uncertain", "vhost", "window",
    )  # fmt: skip

    cursor: RoutedCursor

    def __init__(
        self,
        vhost: VirtualHost,
        record: QueueRecord,
        settings: DeclaredSettings,
        cursor: RoutedCursor,
        owner: object | None,
    ) -> None:
        super().__init__()
        self.vhost = vhost
        self.record = record
        self.settings = settings
        self.cursor = cursor
        self.owner = owner
        """The only connection that may use it."""
        self._ready: ReadyList = ReadyList(settings.max_priority)
        self.window = Window(vhost.hub, self.wake)
        limited = settings.max_length is not None or settings.message_ttl_ms is not None
        self.takes_runs: bool = not limited and not self.needs_records
        """Whether messages without an expiration of their own need no look one by one."""
        self._keys = vhost.hub.follower.live.keys
        self.consumers: Consumers[Consumer] = Consumers(
            single_active=settings.single_active_consumer
        )
        self._line = self.consumers.all
        self.had_consumers = False
        self.got = 0
        """Messages that were delivered by basic.get."""
        self.got_no_ack = 0
        self.got_nothing = 0
        self.redelivered = 0
        self.delivered_no_ack = 0
        self._loop = vhost.hub.loop
        self._clock = vhost.hub.clock
        self._length = Length(settings)
        self._batch = 1
        self._at_once: set[int] = set()
        """Places that came while a consumer had room for them: they go out, even when their TTL is
        0 or the queue's limit is reached."""
        self._out: dict[int, tuple[int, int]] = {}
        """Priority and bytes of messages with consumers, where both count when they come back."""
        self.purging = Purge(self)
        self._giving_up = GivingUp(self)
        self.uncertain: dict[int, int] = {}
        """After a crash, per partition: below this offset nobody knows which messages were handed
        out."""
        self.expiry = Expiry(self)
        self._idle = Idle(self)
        self._idle.used()

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
        sent = self.pass_short(place, count, data)
        if sent:
            return sent
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
                self.give_up(place, "maxlen", record)
            return False
        self._note(place)
        self.published += 1
        is_pressed = self.expiry.matters or self._length.is_full(self._ready.size, record)
        if is_pressed and self.consumers.have_room(self._ready.size + 1):
            self._at_once.add(place)
        self.restore(place, record)
        if not self._at_once:
            self._drop_excess()
            self.expiry.watch()
        self.wake()
        return True

    def _note(self, place: int) -> None:
        key, offset = self.vhost.hub.place(place)
        self.cursor.note(key, offset)

    def restore(self, place: int, record: Record | None) -> None:
        """Let a message wait: one that came, or that waited before a restart."""
        self._ready.append(place, self._priority(record))
        self._length.add(place, size_of(record))

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
            try:
                rows = self._take(min(most, self._batch, self._ready.size))
            except Cold:
                break
            for place, record in self._sort_out(rows):
                self._deliver(consumer, place, record)
            given += len(rows)
        if self._at_once and self.consumers.have_room(1) and not self.window.is_waiting:
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

    def _take(self, count: int) -> dict[int, Record | None]:
        """Take the next messages, which are to go out: places in their order, with what is there
        of their records. Cold, with nothing taken, while these are on their way from the disk.
        """
        places = self._ready.first(count)
        found = self._records(places)
        for _ in places:
            self._took(self._ready.take())
        return {place: found.get(place) for place in places}

    def _sort_out(self, rows: dict[int, Record | None]) -> list[tuple[int, Record]]:
        """Messages that were taken, in their order; gone and expired ones are dealt with."""
        now_ms = self._clock.now_ms()
        answer: list[tuple[int, Record]] = []
        for place, row in rows.items():
            if row is None:
                self.settle_run(place, 1)  # retention took it
            elif self.expiry.ends_ms(row, now_ms) <= now_ms and place not in self._at_once:
                self.give_up(place, "expired", row)
            else:
                answer.append((place, row))
        if self._at_once:
            self._at_once.difference_update(rows)
        return answer

    def _records(self, places: list[int]) -> dict[int, Record]:
        """The records of places that still exist; or Cold."""
        found = self.window.records(places)
        size = sum(map(size_of, found.values()))
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
        if self.needs_records:
            self._out[place] = (self._priority(record), size_of(record))
        again = count > 0 or offset < self.uncertain.get(unpack(place)[0], 0)
        headers = {_DELIVERY_COUNT: count} if count and self.settings.type == "quorum" else {}
        return Delivery(place, record, again, headers)

    def get(self) -> Delivery | None:
        """The next message for basic.get; Cold while it is on its way (`window.wait`)."""
        self._idle.used()
        found: Delivery | None = None
        while self.ready.size and found is None and not self.is_deleted:
            for place, record in self._sort_out(self._take(1)):
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
            priority, size_bytes = self._out.pop(place, (0, 0))
            self._ready.put_back(place, priority)
            self._length.add(place, size_bytes)
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
        self.purging.add(gone)
        return count

    def settle_run(self, place: int, count: int) -> None:
        """Messages that follow each other leave the queue."""
        number, offset = unpack(place)
        if self._ready.remembers:
            self._ready.forget(place, count)
        if self._out:
            for gone in range(place, place + count):
                self._out.pop(gone, None)
        self.cursor.settle_range(self._keys[number], offset, count)

    def settled_elsewhere(self, place: int) -> None:
        """The dead letter of a message is durable: settle the message."""
        self.settle_run(place, 1)

    def settled_again(self, places: dict[int, str]) -> None:
        """Repeat the settlements of a commit that a crash interrupted: its messages wait again."""
        if not places.keys().isdisjoint(self._ready.places()):
            rows = self._ready.ranked()
            self._ready.clear()
            for place, priority in rows:
                if place in places:
                    self._length.remove(place)
                else:
                    self._ready.append(place, priority)
        for place, kind in places.items():
            key, offset = self.vhost.hub.place(place)
            if not self.cursor.holds(key, offset):
                continue
            if kind == "reject":
                self.give_up(place, "rejected")
            else:
                self.settle_run(place, 1)

    def record_now(self, place: int) -> Record | None:
        """The record at a place; None: retention took it; or Cold."""
        number, offset = unpack(place)
        found = self.vhost.hub.read(number, [offset])
        return found[0] if found else None

    def give_up(self, place: int, reason: str, record: Record | None = None) -> None:
        """A message that no longer waits leaves, to the dead-letter exchange if there is one."""
        if not self.is_deleted:
            self._giving_up.add(place, reason, record)

    def expire_head(self, now_ms: int) -> bool:
        """Give the head up if it has expired. Returns whether it had."""
        place = self._ready.peek()
        if place is None or place in self._at_once or self.is_deleted:
            return False
        try:
            record = self.record_now(place)
        except Cold:
            return False  # who watches the head waits for it
        if record is not None and self.expiry.ends_ms(record, now_ms) > now_ms:
            return False
        self._took(self._ready.take())
        if record is None:
            self.settle_run(place, 1)
        else:
            self.give_up(place, "expired", record)
        return True

    # -- use

    def declared_again(self) -> None:
        """A declaration counts as use."""
        self._idle.used()

    # -- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer. Raises NotAuthorized when another one is exclusive."""
        was_quiet = self.is_quiet
        self.consumers.add(consumer, f"queue '{self.name}' in vhost '{self.vhost.name}'")
        if was_quiet:
            self.vhost.hub.follower.queue_wakes()
        self.had_consumers = True
        self._idle.used()
        self.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer. An auto-delete queue is deleted with its last one."""
        self.consumers.remove(consumer)
        self._idle.used()
        self.wake()
        if self.record.auto_delete and self.had_consumers and not self.consumers:
            self.vhost.queue_unused(self)

    def close(self) -> None:
        """The queue was deleted, or the broker stops."""
        self.is_deleted = True
        self.window.close()
        self.purging.settle()
        self._giving_up.close()
        self.expiry.close()
        self._idle.close()
