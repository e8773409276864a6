"""The queue cursor: many consumers share one backlog (`queues/filter_queue.py`, embedded programs).

Rules:
- A record is with one consumer at a time. It is settled by `ack`, or it comes back: by `release`,
  when its deadline passes, or when its consumer leaves. Records that came back are handed out
  before new ones, lowest offset first (I5), after their back-off if there is one.
- A record that came back `deliveries_max` times, was rejected or has expired goes to the
  dead-letter hook. It is settled only when the hook says that the dead letter is durable elsewhere.
- A record that comes back or is given up, and is not in memory, waits until it is; others go on.
- Records in flight are bounded; the kept state is that of the lanes (`cursors/lane.py`). Nothing is
  copied or deleted.
- With `priority_header` it hands out higher priorities first (`cursors/priorities.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotFound, OnelogError, PartitionStopped
from onelog.cursors.backoff import BackOff, backoff_ms
from onelog.cursors.cursor import (
    CursorKind,
    CursorState,
    Position,
    Reading,
    ignore_change,
    known_end,
)
from onelog.cursors.delivery import Acquired, DeadLetter, QueueSettings, Reason
from onelog.cursors.holdings import Holdings, Unsettled
from onelog.cursors.lane import Lane, LaneState
from onelog.cursors.priorities import PriorityWindow
from onelog.cursors.pull import next_acquired
from onelog.cursors.reader import expires_at
from onelog.cursors.sources import SourceRegistry
from onelog.cursors.start import Start
from onelog.cursors.wait import QueueWait
from onelog.log.handle import Cold
from onelog.record.record import Record

_LOOKED_AT_MAX: Final = 10_000
"""Records that one call looks at: a long stretch of expired ones must not hold the loop."""


class _Body(msgspec.Struct, array_like=True):
    lanes: list[LaneState]
    settings: QueueSettings


_NO_LANES: Final[dict[tuple[str, int], Lane]] = {}
"""The lanes of a queue that has handed out nothing. Shared: a queue copies it to add a lane."""

DEFAULT_SETTINGS: Final = QueueSettings()
"""Shared by every queue with default settings."""


class QueueCursor:
    """A shared backlog."""

    __slots__ = (
        "_by_priority", "_clock", "_closed", "_delayed", "_held", "_lanes", "_listeners", "_timer",
        "dead_letter", "dropped", "name", "on_change", "reading", "settings",
    )  # fmt: skip

    kind = CursorKind.QUEUE

    def __init__(self, name: str, reading: Reading, clock: Clock, settings: QueueSettings) -> None:
        self.name = name
        self.on_change: Callable[[], None] = ignore_change
        self.reading = reading
        self.settings = settings
        self.dead_letter: Callable[[DeadLetter], None] | None = None
        self.dropped = 0
        self._clock = clock
        self._lanes = _NO_LANES
        self._held = Holdings()
        # An idle queue is small: attributes that most queues never need are made when needed.
        self._delayed: BackOff | None = None
        self._by_priority: PriorityWindow | None = None
        self._listeners: list[Callable[[], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @classmethod
    def create(
        cls,
        name: str,
        registry: SourceRegistry,
        filters: tuple[str, ...],
        start: Start,
        *,
        clock: Clock,
        settings: QueueSettings | None = None,
    ) -> QueueCursor:
        """A new queue."""
        reading = Reading(registry, registry.resolve(filters), start.offset_in)
        return cls(name, reading, clock, settings or DEFAULT_SETTINGS)

    @classmethod
    def restore(cls, registry: SourceRegistry, state: CursorState, *, clock: Clock) -> QueueCursor:
        """Go on from the floor: unsettled records are handed out again, with their counts."""
        body = msgspec.msgpack.decode(state.body, type=_Body)
        reading = Reading.restore(registry, state.filters, state.positions)
        cursor = cls(state.name, reading, clock, body.settings)
        ends = {source.key: known_end(source) for source in reading.sources.sources}
        for row in body.lanes:
            key = (row.stream_id, row.partition)
            if key in ends:
                cursor._lanes = {**cursor._lanes, key: Lane.restore(row, ends[key])}
        return cursor

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it reads."""
        return self.reading.filters

    # -- handing out

    def acquire(self, consumer: str, limit: int = 1) -> list[Acquired]:
        """Up to `limit` records for a consumer: records that came back first, then new ones."""
        self.reading.check()
        self._wake_delayed()
        found: list[Acquired] = []
        while self._room(limit, found):
            delivery = self._acquire_again(consumer)
            if delivery is None:
                break
            found.append(delivery)
        if self.settings.priority_header is not None:
            window = self._look_ahead(self.settings.priority_header)
            while self._room(limit, found) and window:
                key, offset = window.peek()
                try:
                    delivery = self._reread(consumer, self._lane(key), offset)
                except Cold:
                    break
                window.pop()
                if delivery is not None:
                    found.append(delivery)
        else:
            self._acquire_new(consumer, limit, found)
        self._set_timer()
        if found:
            self.on_change()
        return found

    def _room(self, limit: int, found: list[Acquired]) -> int:
        """How many more to hand out. Records that become dead letters count as handed out."""
        return max(0, min(limit - len(found), self.settings.in_flight_max - len(self._held)))

    @property
    def is_full(self) -> bool:
        """Whether nothing can be handed out before a record is settled or comes back."""
        return len(self._held) >= self.settings.in_flight_max

    async def next(
        self, consumer: str, limit: int = 1, timeout_s: float | None = None
    ) -> list[Acquired]:
        """As `acquire`, waiting for a record; empty when the time ran out."""
        return await next_acquired(self, consumer, limit, timeout_s)

    def when_available(self, callback: Callable[[], None]) -> QueueWait:
        """Call back once, when there may be something to acquire."""
        return QueueWait(self, callback)

    def _acquire_again(self, consumer: str) -> Acquired | None:
        for _ in range(_LOOKED_AT_MAX):
            lanes = [lane for lane in self._lanes.values() if self._may_return(lane)]
            if not lanes or self.is_full:
                return None
            lane = min(lanes, key=lambda lane: (lane.next_again(), lane.key))
            offset = lane.take_again()
            try:
                delivery = self._reread(consumer, lane, offset)
            except Cold:
                lane.hand_back(offset)
                continue
            if delivery is not None:
                return delivery
        return None

    def _may_return(self, lane: Lane) -> bool:
        return bool(lane.waiting) and self.reading.may_read(*lane.key)

    def _acquire_new(self, consumer: str, limit: int, found: list[Acquired]) -> None:
        looked_at = 0
        while looked_at < _LOOKED_AT_MAX and (room := self._room(limit, found)):
            read = self.reading.read(room)
            if not read:
                return
            looked_at += len(read)
            for index, record in read:
                lane = self._lane(self.reading.sources.sources[index].key)
                if lane.take_new(record.offset):
                    delivery = self._hand_out(consumer, lane, record)
                    if delivery is not None:
                        found.append(delivery)

    def _look_ahead(self, header: bytes) -> PriorityWindow:
        if self._by_priority is None:
            self._by_priority = PriorityWindow()
        window = self._by_priority
        most = self.settings.priority_window
        window.fill(self.reading, lambda key, at: self._lane(key).take_new(at), header, most)
        return window

    def _reread(self, consumer: str, lane: Lane, offset: int) -> Acquired | None:
        record = self.reading.record_now(*lane.key, offset)
        if record is None:  # retention took it, or its stream is gone
            lane.settle(offset)
            self.dropped += 1
            return None
        return self._hand_out(consumer, lane, record)

    def _hand_out(self, consumer: str, lane: Lane, record: Record) -> Acquired | None:
        token = self._hold(consumer, lane, record.offset)
        count, limit = lane.counts[record.offset] + 1, self.settings.deliveries_max
        if limit and count > limit:  # a crash came before its dead letter was durable
            self._bury(token, record, "delivery_limit")
            return None
        ends = expires_at(record, self._ttl_ms(lane))
        if ends is not None and ends <= self._clock.now_ms():
            self._bury(token, record, "expired")
            return None
        lane.counts[record.offset] = count
        return Acquired(token, record, count)

    def _ttl_ms(self, lane: Lane) -> int:
        index = self.reading.find(*lane.key)
        assert index is not None, "its record was just read"
        return self.reading.sources.sources[index].stream.config.message_ttl_ms

    def _hold(self, consumer: str, lane: Lane, offset: int) -> int:
        return self._held.add(
            Unsettled(lane, offset, consumer, self._deadline(self.settings.lock_ms))
        )

    def _deadline(self, delay_ms: int) -> float:
        return self._clock.monotonic() + delay_ms / 1000 if delay_ms else 0.0

    def _lane(self, key: tuple[str, int]) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = Lane(key)
            self._lanes = {**self._lanes, key: lane}
        return lane

    # -- settling

    def ack(self, token: int) -> None:
        """Settle the record. Raises NotFound when the token is not (or no longer) held."""
        self._holding(token)
        self._settle(token)

    def release(self, token: int, *, delay_ms: int | None = None, count: bool = True) -> None:
        """Hand the record back; `count=False` when nobody looked at it."""
        held = self._take(token)
        if not count:
            held.lane.counts[held.offset] -= 1
            self.on_change()
        self._hand_back(held, delay_ms)
        self._notify()

    def reject(self, token: int) -> None:
        """Give the record up: it goes to the dead-letter hook or, without one, is settled."""
        self._holding(token)
        self._bury_unread(token, "rejected")

    def extend(self, token: int) -> None:
        """Start the record's deadline again."""
        self._holding(token)
        if self.settings.lock_ms:
            self._held.set_deadline(token, self._deadline(self.settings.lock_ms))
            self._set_timer()

    def withhold(self, token: int) -> None:
        """Nobody is to have the record now: it stays held, without a deadline, until `release`."""
        self._holding(token).deadline = 0.0

    def release_consumer(self, consumer: str) -> int:
        """A consumer left: every record that it has comes back, in offset order."""
        tokens = self._held.of_consumer(consumer)
        for token in tokens:
            self._hand_back(self._take(token), 0)
        self._notify()  # only now, so that waiting consumers get the lowest offset first
        return len(tokens)

    def retry_dead_letter(self, token: int, delay_ms: int) -> None:
        """The dead letter could not be handed over: the hook gets it again later."""
        held = self._held.get(token)
        if held is not None and held.reason is not None:
            self._held.set_deadline(token, self._deadline(delay_ms))
            self._set_timer()

    def settle_dead_letter(self, token: int) -> None:
        """The dead letter is durable elsewhere: settle its record."""
        held = self._held.get(token)
        if held is not None and held.reason is not None:
            self._settle(token)

    def _settle(self, token: int) -> None:
        was_full = self.is_full
        held = self._held.pop(token)
        held.lane.settle(held.offset)
        self.on_change()
        if was_full:
            self._notify()

    def _take(self, token: int) -> Unsettled:
        self._holding(token)
        return self._held.pop(token)

    def _holding(self, token: int) -> Unsettled:
        held = self._held.get(token)
        if held is None or held.reason is not None:
            raise NotFound(f"delivery {token} of queue {self.name} is not held (any more)")
        return held

    def _hand_back(self, held: Unsettled, delay_ms: int | None) -> None:
        count = held.lane.counts[held.offset]
        limit = self.settings.deliveries_max
        if limit and count >= limit:
            token = self._hold("", held.lane, held.offset)
            self._bury_unread(token, "delivery_limit")
            return
        if delay_ms is None:
            delay_ms = backoff_ms(count, self.settings.backoff_ms, self.settings.backoff_max_ms)
        if delay_ms > 0:
            if self._delayed is None:
                self._delayed = BackOff()
            self._delayed.add(self._deadline(delay_ms), held.lane.key, held.offset)
            self._set_timer()
        else:
            held.lane.hand_back(held.offset)

    def _bury(self, token: int, record: Record | None, reason: Reason) -> None:
        """Give a record up; None: retention took it, or its stream is gone."""
        held = self._held.give_up(token, reason)
        if self.dead_letter is None or record is None:
            self.dropped += 1
            self._settle(token)
        else:
            count = held.lane.counts[held.offset]
            self.dead_letter(DeadLetter(token, record, reason, count))

    def _bury_unread(self, token: int, reason: Reason) -> None:
        """Give up a record that its dead letter needs: read it first, or wait until it is here."""
        record = None
        if self.dead_letter is not None:
            held = self._held.get(token)
            assert held is not None

            def bury(_error: OnelogError | None) -> None:
                """The record is here; one of a stopped partition stays held."""
                if self._held.get(token) is held and not self._closed:
                    with contextlib.suppress(PartitionStopped):
                        self._bury_unread(token, reason)

            try:
                record = self.reading.record_now(*held.lane.key, held.offset, bury)
            except Cold:
                self._held.give_up(token, reason)
                return
        self._bury(token, record, reason)

    # -- moving

    def seek(self, stream_id: str, partition: int, offset: int) -> None:
        """Hand out everything of a partition from `offset` on, and nothing below (`lane.py`)."""
        index = self.reading.index(stream_id, partition)
        lane = self._lane((stream_id, partition))
        lane.seek(offset, self._held.offsets_in(lane))
        if self._delayed is not None:
            self._delayed.drop(lane.key)
        if self._by_priority is not None:
            self._by_priority.drop(lane.key)
        self.reading.seek(index, offset)
        self._moved()

    def revive(self, stream_id: str, partition: int, offset: int) -> bool:
        """Hand out a settled record again. Returns False when it is not settled, or not read."""
        index = self.reading.find(stream_id, partition)
        if index is None:
            return False
        lane = self._lane((stream_id, partition))
        revived = lane.revive(offset, self.reading.position(index))
        if revived:
            self._moved()
        return revived

    def _moved(self) -> None:
        self._set_timer()
        self.on_change()
        self._notify()
        self.reading.wake()

    # -- time

    def run_due(self) -> None:
        """Take back records whose deadline has passed, and wake those whose back-off is over."""
        returned = False
        for token in self._held.due(self._clock.monotonic()):
            held = self._held.get(token)
            assert held is not None
            if held.reason is None:
                self._hand_back(self._held.pop(token), None)
                returned = True
            else:
                self._bury_unread(token, held.reason)
        if not self._wake_delayed() and returned:
            self._notify()
        self._set_timer()

    def _wake_delayed(self) -> bool:
        woken = False
        if self._delayed is not None:
            for key, offset in self._delayed.take_due(self._clock.monotonic()):
                self._lane(key).hand_back(offset)
                woken = True
        if woken:
            self._notify()
        return woken

    def _set_timer(self) -> None:
        ready = None if self._delayed is None else self._delayed.next_at()
        times = [at for at in (self._held.next_deadline(), ready) if at is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times and not self._closed:
            delay = max(0.0, min(times) - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self.run_due)

    # -- who waits

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a record came back or room was made, until `ignore`."""
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        """Stop calling the listener."""
        if self._listeners and listener in self._listeners:
            self._listeners.remove(listener)
            self._listeners = self._listeners or None

    def _notify(self) -> None:
        if self._listeners:
            self.reading.troubles.tell("queue-listener", self._listeners)

    @property
    def has_returned(self) -> bool:
        """Whether a record that came back waits to be handed out."""
        return any(self._may_return(lane) for lane in self._lanes.values())

    # -- state

    def state(self) -> CursorState:
        """The state to keep."""
        lanes = [self._lane_state(row) for row in self.reading.positions()]
        body = _Body([lane for lane in lanes if lane is not None], self.settings)
        return CursorState(
            self.name, self.kind, self.filters, self.positions(), msgspec.msgpack.encode(body)
        )

    def _lane_state(self, row: Position) -> LaneState | None:
        lane = self._lanes.get((row.stream_id, row.partition))
        return None if lane is None else lane.state(row.offset)

    def positions(self) -> list[Position]:
        """The lowest offset that is not settled, per partition."""
        found = []
        for row in self.reading.positions():
            lane = self._lanes.get((row.stream_id, row.partition))
            found.append(row if lane is None else lane.position(row.offset))
        return found

    def lag(self) -> int:
        """Offsets to the end."""
        return self.reading.lag()

    def pending(self) -> int:
        """Records with consumers."""
        return len(self._held)

    def close(self) -> None:
        """Stop the timer and refuse further reads. Unsettled records are handed out again later."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.reading.close()
        self._notify()
