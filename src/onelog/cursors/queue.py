"""The queue cursor: many consumers share one backlog (AMQP queues, `$share`, Kafka share groups).

Rules:
- A record is with one consumer at a time. It is settled by `ack`, or it comes back: by `release`,
  when its deadline passes, or when its consumer leaves. What comes back is handed out before
  anything new, lowest offset first (I5), after its back-off if there is one.
- A record that came back `deliveries_max` times, was rejected or has expired is handed over to
  the dead-letter hook, and settled only when the hook says it is safe elsewhere.
- Records in flight are bounded; state is what `lane` keeps. Nothing is copied or deleted.
- With `priority_header` the reader looks ahead (bounded) and hands out higher priorities first.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotFound
from onelog.base.ids import Offset
from onelog.cursors.cursor import (
    CursorKind,
    CursorState,
    Position,
    Reading,
    Start,
    Wait,
    ignore_change,
)
from onelog.cursors.delivery import DeadLetter, Delivery, QueueSettings, Reason
from onelog.cursors.lane import Lane, LaneState
from onelog.cursors.reader import expires_at, read_at
from onelog.cursors.sources import SourceRegistry
from onelog.record.headers import find_header
from onelog.record.record import Record


class _Held(msgspec.Struct, gc=False):
    lane: Lane
    offset: int
    consumer: str
    deadline: float


class _Body(msgspec.Struct, array_like=True):
    lanes: list[LaneState]
    settings: QueueSettings


class QueueCursor:
    """A shared backlog."""

    __slots__ = (
        "_by_priority",
        "_clock",
        "_deadlines",
        "_delayed",
        "_held",
        "_lanes",
        "_listeners",
        "_timer",
        "_token",
        "dead_letter",
        "dropped",
        "name",
        "on_change",
        "reading",
        "settings",
    )

    kind = CursorKind.QUEUE

    def __init__(self, name: str, reading: Reading, clock: Clock, settings: QueueSettings) -> None:
        self.name = name
        self.on_change: Callable[[], None] = ignore_change
        self.reading = reading
        self.settings = settings
        self.dead_letter: Callable[[DeadLetter], None] | None = None
        self.dropped = 0
        self._clock = clock
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._held: dict[int, _Held] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._delayed: list[tuple[float, int, Lane]] = []
        self._by_priority: list[tuple[int, tuple[str, int], int]] = []
        self._listeners: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._token = 0

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
        return cls(name, reading, clock, settings or QueueSettings())

    @classmethod
    def restore(cls, registry: SourceRegistry, state: CursorState, *, clock: Clock) -> QueueCursor:
        """Go on from the floor: what was not settled is handed out again, counted."""
        body = msgspec.msgpack.decode(state.body, type=_Body)
        reading = Reading.restore(registry, state.filters, state.positions)
        cursor = cls(state.name, reading, clock, body.settings)
        cursor._lanes = {(row.stream_id, row.partition): Lane.restore(row) for row in body.lanes}
        return cursor

    @property
    def filters(self) -> tuple[str, ...]:
        """What it reads."""
        return self.reading.filters

    # -- handing out

    def acquire(self, consumer: str, limit: int = 1) -> list[Delivery]:
        """Up to `limit` records for a consumer: what came back first, then new ones."""
        limit = min(limit, self.settings.in_flight_max - len(self._held))
        self._wake_delayed()
        found: list[Delivery] = []
        while len(found) < limit:
            delivery = self._acquire_again(consumer)
            if delivery is None:
                break
            found.append(delivery)
        if self.settings.priority_header is not None:
            self._look_ahead()
            while len(found) < limit and self._by_priority:
                _rank, key, offset = heapq.heappop(self._by_priority)
                delivery = self._reread(consumer, self._lane(key), offset)
                if delivery is not None:
                    found.append(delivery)
        else:
            self._acquire_new(consumer, limit, found)
        self._set_timer()
        if found:
            self.on_change()
        return found

    async def next(
        self, consumer: str, limit: int = 1, timeout_s: float | None = None
    ) -> list[Delivery]:
        """As `acquire`, waiting for a record; empty when the time ran out."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            found = self.acquire(consumer, limit)
            left = None if deadline is None else deadline - loop.time()
            if found or (left is not None and left <= 0):
                return found
            if self.reading.is_behind() and len(self._held) < self.settings.in_flight_max:
                await asyncio.sleep(0)
                continue
            available = asyncio.Event()
            wait = QueueWait(self, available.set)
            try:
                await asyncio.wait_for(available.wait(), left)
            except TimeoutError:
                return []
            finally:
                wait.cancel()

    def when_available(self, callback: Callable[[], None]) -> QueueWait:
        """Call back once, when there may be something to acquire."""
        return QueueWait(self, callback)

    def _acquire_again(self, consumer: str) -> Delivery | None:
        while True:
            lanes = [lane for lane in self._lanes.values() if lane.waiting]
            if not lanes:
                return None
            lane = min(lanes, key=lambda lane: (lane.next_again(), lane.key))
            delivery = self._reread(consumer, lane, lane.take_again())
            if delivery is not None:
                return delivery

    def _acquire_new(self, consumer: str, limit: int, found: list[Delivery]) -> None:
        while len(found) < limit:
            read = self.reading.read(limit - len(found))
            if not read:
                return
            for index, record in read:
                lane = self._lane(self.reading.sources.sources[index].key)
                if lane.take_new(record.offset):
                    delivery = self._hand_out(consumer, lane, index, record)
                    if delivery is not None:
                        found.append(delivery)

    def _look_ahead(self) -> None:
        """Fill the priority window: offsets only, highest priority first, then offset order."""
        header = self.settings.priority_header
        assert header is not None
        room = self.settings.priority_window - len(self._by_priority)
        for index, record in self.reading.read(room) if room > 0 else ():
            key = self.reading.sources.sources[index].key
            if self._lane(key).take_new(record.offset):
                value = find_header(record.headers, header)
                rank = int(value) if value is not None and value.isdigit() else 0
                heapq.heappush(self._by_priority, (-rank, key, record.offset))

    def _reread(self, consumer: str, lane: Lane, offset: int) -> Delivery | None:
        wanted = self.reading.sources
        index = self.reading.index_of(*lane.key)
        record = read_at(wanted, wanted.sources[index], Offset(offset))
        if record is None:  # retention took it
            lane.settle(offset)
            self.dropped += 1
            return None
        return self._hand_out(consumer, lane, index, record)

    def _hand_out(self, consumer: str, lane: Lane, index: int, record: Record) -> Delivery | None:
        token = self._hold(consumer, lane, record.offset)
        stream = self.reading.sources.sources[index].stream
        ends = expires_at(record, stream.config.message_ttl_ms)
        if ends is not None and ends <= self._clock.now_ms():
            self._bury(token, record, "expired")
            return None
        count = lane.counts[record.offset] + 1
        lane.counts[record.offset] = count
        return Delivery(token, record, count)

    def _hold(self, consumer: str, lane: Lane, offset: int) -> int:
        self._token += 1
        deadline = 0.0
        if self.settings.lock_ms:
            deadline = self._clock.monotonic() + self.settings.lock_ms / 1000
            heapq.heappush(self._deadlines, (deadline, self._token))
        self._held[self._token] = _Held(lane, offset, consumer, deadline)
        return self._token

    def _lane(self, key: tuple[str, int]) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        return lane

    # -- settling

    def ack(self, token: int) -> None:
        """The record is done with; NotFound when the token is not (or no longer) held."""
        held = self._take(token)
        held.lane.settle(held.offset)
        self.on_change()
        self._notify()

    def release(self, token: int, *, delay_ms: int | None = None, count: bool = True) -> None:
        """Hand the record back; `count=False` forgets this hand-out (it was never looked at)."""
        held = self._take(token)
        if not count:
            held.lane.counts[held.offset] -= 1
        self._hand_back(held, delay_ms)

    def reject(self, token: int) -> None:
        """Give the record up: it goes to the dead-letter hook, or is settled without one."""
        held = self._holding(token)
        record = self._record_of(held)
        if record is None:
            self.ack(token)
        else:
            self._bury(token, record, "rejected")

    def extend(self, token: int) -> None:
        """Begin the record's deadline anew."""
        held = self._holding(token)
        if self.settings.lock_ms:
            held.deadline = self._clock.monotonic() + self.settings.lock_ms / 1000
            if len(self._deadlines) > 2 * len(self._held) + 64:
                self._deadlines = [(row.deadline, key) for key, row in self._held.items()]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (held.deadline, token))
            self._set_timer()

    def release_consumer(self, consumer: str) -> int:
        """A consumer left: everything it holds comes back, in offset order."""
        tokens = [token for token, held in self._held.items() if held.consumer == consumer]
        for token in tokens:
            self._hand_back(self._take(token), 0)
        return len(tokens)

    def _take(self, token: int) -> _Held:
        held = self._holding(token)
        del self._held[token]
        return held

    def _holding(self, token: int) -> _Held:
        held = self._held.get(token)
        if held is None:
            raise NotFound(f"delivery {token} of queue {self.name} is not held (any more)")
        return held

    def _record_of(self, held: _Held) -> Record | None:
        wanted = self.reading.sources
        index = self.reading.index_of(*held.lane.key)
        return read_at(wanted, wanted.sources[index], Offset(held.offset))

    def _hand_back(self, held: _Held, delay_ms: int | None) -> None:
        count = held.lane.counts[held.offset]
        limit = self.settings.deliveries_max
        if limit and count >= limit:
            record = self._record_of(held)
            if record is not None:
                token = self._hold("", held.lane, held.offset)
                self._bury(token, record, "delivery_limit")
                return
        if delay_ms is None:
            delay_ms = self._backoff_ms(count)
        if delay_ms > 0:
            ready = self._clock.monotonic() + delay_ms / 1000
            heapq.heappush(self._delayed, (ready, held.offset, held.lane))
            self._set_timer()
        else:
            held.lane.hand_back(held.offset)
            self._notify()

    def _backoff_ms(self, count: int) -> int:
        base = self.settings.backoff_ms
        return min(base << min(max(count - 1, 0), 30), self.settings.backoff_max_ms) if base else 0

    def _bury(self, token: int, record: Record, reason: Reason) -> None:
        held = self._held[token]
        held.consumer, held.deadline = "", 0.0
        if self.dead_letter is None:
            self.dropped += 1
            self.ack(token)
        else:
            count = held.lane.counts[held.offset]
            self.dead_letter(DeadLetter(token, record, reason, count))

    # -- time

    def run_due(self) -> None:
        """Take back what passed its deadline, wake what waited out its back-off."""
        now = self._clock.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, token = heapq.heappop(self._deadlines)
            held = self._held.get(token)
            if held is not None and held.deadline == deadline:
                self._hand_back(self._take(token), None)
        self._wake_delayed()
        self._set_timer()

    def _wake_delayed(self) -> None:
        now = self._clock.monotonic()
        woken = False
        while self._delayed and self._delayed[0][0] <= now:
            _ready, offset, lane = heapq.heappop(self._delayed)
            lane.hand_back(offset)
            woken = True
        if woken:
            self._notify()

    def _set_timer(self) -> None:
        times = [heap[0][0] for heap in (self._deadlines, self._delayed) if heap]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            delay = max(0.0, min(times) - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self.run_due)

    # -- who waits

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when something came back or room was made, until it is ignored."""
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        """Stop calling."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    @property
    def has_returned(self) -> bool:
        """Whether something that came back waits to be handed out."""
        return any(lane.waiting for lane in self._lanes.values())

    # -- state

    def state(self) -> CursorState:
        """What to keep of it."""
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
        """Stop the timer and refuse further reads; what is held is handed out again later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.reading.close()


class QueueWait:
    """One wait for a queue to have something: news in the log, or something that came back."""

    __slots__ = ("_callback", "_cursor", "_done", "_wait")

    def __init__(self, cursor: QueueCursor, callback: Callable[[], None]) -> None:
        self._cursor = cursor
        self._callback = callback
        self._done = False
        self._wait: Wait | None = None
        cursor.listen(self._fire)
        if cursor.has_returned:
            self._fire()
        elif len(cursor._held) < cursor.settings.in_flight_max:
            self._wait = cursor.reading.when_readable(lambda _error: self._fire())

    def _fire(self) -> None:
        if not self._done:
            self.cancel()
            self._callback()

    def cancel(self) -> None:
        """Never call back."""
        self._done = True
        self._cursor.ignore(self._fire)
        if self._wait is not None:
            self._wait.cancel()
