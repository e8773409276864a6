"""Stream queues (`x-queue-type: stream`): every consumer reads every message, from a position of
its choice.

Rules (RabbitMQ, streams):
- A message has a number, from 0 on, in the header `x-stream-offset`. A consumer begins at the
  number, time, `first`, `last` or `next` of its `x-stream-offset`, and reads on from there; an
  acknowledgement of any kind only makes room for more messages. Reading settles nothing.
- Messages leave by age (`x-max-age`) or size (`x-max-length-bytes`), or with their stream's own
  retention, the oldest first.
"""

from __future__ import annotations

import datetime
import re
from array import array
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import InvalidRequest, OnelogError
from onelog.broker import Cold
from onelog.queues.consumers import Delivery
from onelog.queues.errors import NotSupported
from onelog.queues.length import size_of
from onelog.queues.queue import TURN, Queue
from onelog.queues.settings import interval_ms

if TYPE_CHECKING:
    from onelog.broker import Record
    from onelog.queues.consumers import Consumer

OFFSET: Final = "x-stream-offset"
TRIM_EVERY_S: Final = 1.0
_SLACK: Final = 4096
_INTERVAL: Final = re.compile(r"\d+[YMDhms]")


class StreamLog:
    """The places of a stream by their number, the oldest first."""

    def __init__(self, *, weighs: bool) -> None:
        self._places: array[int] = array("Q")
        self._sizes: array[int] | None = array("Q") if weighs else None
        """Bytes of each, where they count."""
        self.size_bytes = 0
        self._head = 0
        self.first = 0
        """The number of the oldest message."""

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._places) - self._head

    @property
    def next(self) -> int:
        """The number that the next message gets."""
        return self.first + self.size

    def append(self, place: int, size_bytes: int) -> None:
        """A new message."""
        self._places.append(place)
        if self._sizes is not None:
            self._sizes.append(size_bytes)
            self.size_bytes += size_bytes

    def slice(self, number: int, count: int) -> list[int]:
        """Places from a number on."""
        at = self._head + max(number - self.first, 0)
        return self._places[at : at + count].tolist()

    def drop(self) -> int:
        """Take the oldest."""
        place = self._places[self._head]
        if self._sizes is not None:
            self.size_bytes -= self._sizes[self._head]
        self._head += 1
        self.first += 1
        if self._head >= _SLACK and self._head * 2 > len(self._places):
            del self._places[: self._head]
            if self._sizes is not None:
                del self._sizes[: self._head]
            self._head = 0
        return place

    def peek(self) -> int | None:
        """The oldest place; None when there is none."""
        return self._places[self._head] if self.size else None

    remembers = False
    """No place is ever out."""

    def forget(self, place: int, count: int = 1) -> None:
        """No place is ever out."""

    def places(self) -> list[int]:
        """Every place."""
        return self._places[self._head :].tolist()


class StreamQueue(Queue):
    """A queue whose consumers each have their own position."""

    _ready: StreamLog  # type: ignore[assignment]

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.takes_runs = False  # each message gets a number
        self._ready = StreamLog(weighs=self.needs_records)
        kept = self.cursor.settings.split()
        self._ready.first = int(kept[1]) if len(kept) > 1 else 0
        self._positions: dict[Consumer, int] = {}
        self._is_trimming = False
        """Whether the oldest message is on its way from the disk, to be looked at."""
        self._trimmed_at = self._loop.time()

    @property
    def needs_records(self) -> bool:
        """Whether it has to look at a message when it takes it."""
        return self.settings.max_length_bytes is not None

    # -- taking in

    def take_in(self, place: int, record: Record | None) -> bool:
        """A message was routed here."""
        self._note(place)
        self.published += 1
        self.restore(place, record)
        self._trim()
        self.wake()
        return True

    def restore(self, place: int, record: Record | None) -> None:
        """A message that was here before a restart."""
        self._ready.append(place, size_of(record))

    def _trim(self) -> None:
        limit = self.settings.max_length_bytes
        if limit is not None:
            while self._ready.size_bytes > limit and self._ready.size > 1:
                self._drop_oldest()
        now_s = self._loop.time()
        if now_s >= self._trimmed_at + TRIM_EVERY_S and not self._is_trimming:
            self._trimmed_at = now_s
            self._trim_old()

    def _trim_old(self, _error: OnelogError | None = None) -> None:
        """Drop what is too old; where the oldest is not in memory, when it is."""
        self._is_trimming = False
        age_ms = self.settings.max_age_ms
        if age_ms is None or self.is_deleted:
            return
        oldest_ms = self._clock.now_ms() - age_ms
        while (place := self._ready.peek()) is not None:
            try:
                record = self.record_now(place)
            except Cold as cold:
                self._is_trimming = True
                self.window.when_here(place, cold, self._trim_old)
                return
            if record is not None and record.timestamp_ms >= oldest_ms:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        place = self._ready.drop()
        self.settle_run(place, 1)
        created = (self.cursor.settings.split() or [b"0"])[0]
        self.cursor.keep(b"%b %d" % (created, self._ready.first))

    # -- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer. Raises InvalidRequest or NotAuthorized.

        Cold while records are brought that say where it begins (`window.wait`).
        """
        where = f"queue '{self.name}' in vhost '{self.vhost.name}'"
        if consumer.no_ack:
            raise NotSupported(f"automatic acknowledgement not supported by stream {where}")
        if consumer.shares_prefetch:
            raise NotSupported(f"{where} does not support global qos")
        if not consumer.prefetch:
            raise InvalidRequest(f"consumer prefetch count is not set for stream {where}")
        self._positions[consumer] = self._start(consumer.arguments.get(OFFSET, "next"))
        try:
            super().add_consumer(consumer)
        except OnelogError:
            del self._positions[consumer]
            raise

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer stops reading."""
        self._positions.pop(consumer, None)
        super().remove_consumer(consumer)

    def _start(self, chosen: Any) -> int:
        log = self._ready
        fixed = {"first": log.first, "next": log.next, "last": max(log.first, log.next - 1)}
        if isinstance(chosen, str) and chosen in fixed:
            return fixed[chosen]
        if isinstance(chosen, int) and not isinstance(chosen, bool) and chosen >= 0:
            return min(max(chosen, log.first), log.next)
        if isinstance(chosen, datetime.datetime):
            return self._number_at(int(chosen.timestamp() * 1000))
        if isinstance(chosen, str) and _INTERVAL.fullmatch(chosen):
            return self._number_at(self._clock.now_ms() - interval_ms(chosen))
        raise InvalidRequest(
            f"invalid arg '{OFFSET}' for queue '{self.name}' in vhost '{self.vhost.name}':"
            " expected first, last, next, an offset, a time or an interval such as 1h",
        )

    def _number_at(self, time_ms: int) -> int:
        """The number of the first message that is not older than a time."""
        low, high = self._ready.first, self._ready.next
        while low < high:
            middle = (low + high) // 2
            place = self._ready.slice(middle, 1)[0]
            record = self.window.records([place]).get(place)
            if record is None or record.timestamp_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # -- handing out

    def _pump(self) -> None:
        log, given, more = self._ready, 0, False
        for consumer in list(self.consumers):
            position = max(self._positions[consumer], log.first)
            count = min(consumer.room, self._batch, log.next - position)
            if count <= 0:
                continue
            places = log.slice(position, count)
            try:
                rows = self._read_all(places)
            except Cold:
                break
            numbers = {place: position + at for at, place in enumerate(places)}
            for place, record in rows:
                self.delivered += 1
                self.unacked += 1
                headers = {OFFSET: numbers[place]}
                consumer.take(Delivery(place, record, redelivered=False, headers=headers))
            self._positions[consumer] = position + len(places)
            given += len(places)
            more = more or (consumer.room > 0 and self._positions[consumer] < log.next)
        if self.window.is_waiting:
            return
        if more and given < TURN:
            self.wake()
        elif more:
            self._loop.call_soon(self.wake)

    def _read_all(self, places: list[int]) -> list[tuple[int, Record]]:
        """The records of places, in their order, without those that retention took; or Cold."""
        found = self._records(places)
        return [(place, found[place]) for place in places if place in found]

    # -- acknowledgements only make room

    def ack_run(self, place: int, count: int) -> None:
        """The consumer has room again."""
        del place
        self.unacked -= count
        self.acked += count
        self.wake()

    def reject(self, place: int) -> None:
        """The same as `ack_run`."""
        self.ack(place)

    def requeue(self, places: list[int]) -> None:
        """The same: a stream repeats a message only for a consumer that begins again."""
        for place in places:
            self.ack(place)

    def settled_again(self, places: dict[int, str]) -> None:
        """Nothing in a stream is ever settled."""

    def purge(self) -> int:
        """A stream cannot be purged."""
        raise NotSupported(f"purge not supported by stream '{self.name}'")
