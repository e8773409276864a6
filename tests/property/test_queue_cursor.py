"""The queue cursor against a simple model, with time, restarts and dead letters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from onelog.base.clock import ManualClock
from onelog.base.errors import NotFound
from onelog.cursors.cursor import CursorState
from onelog.cursors.delivery import DeadLetter, QueueSettings
from onelog.cursors.queue import QueueCursor
from onelog.cursors.start import EARLIEST
from onelog.log.syncer import Syncer
from tests.support.logs import OneStream

LOCK_MS, LIMIT, BACKOFF_MS, BACKOFF_MAX_MS, IN_FLIGHT = 1_000, 4, 100, 250, 5
RETRY_MS = 700
SETTINGS = QueueSettings(
    lock_ms=LOCK_MS,
    deliveries_max=LIMIT,
    backoff_ms=BACKOFF_MS,
    backoff_max_ms=BACKOFF_MAX_MS,
    in_flight_max=IN_FLIGHT,
)


@dataclass
class Holding:
    """A record with a consumer."""

    offset: int
    consumer: str
    deadline: float


@dataclass
class Model:
    """What the queue must know."""

    offsets: list[int] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    read: int = 0
    held: dict[int, Holding] = field(default_factory=dict)
    letters: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Token → offset, and when the hook gets it again (0: it has it)."""
    delayed: dict[int, float] = field(default_factory=dict)
    back: set[int] = field(default_factory=set)

    def unsettled(self) -> list[int]:
        """Everything that still has to come."""
        return [offset for offset in self.offsets if offset not in self.settled]

    def with_consumers(self) -> set[int]:
        """What consumers have, and what is on its way to the dead letters."""
        letters = {offset for offset, _at in self.letters.values()}
        return letters | {held.offset for held in self.held.values()}

    def outstanding(self) -> set[int]:
        """What was read and is not settled."""
        return self.with_consumers() | self.delayed.keys() | self.back


class QueueMachine(RuleBasedStateMachine):
    """Drives both."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.syncer = self.loop.run_until_complete(self._make_syncer())
        self.log = OneStream(self.clock, self.syncer)
        self.registry = self.log.registry()
        self.model = Model()
        self.letters: list[DeadLetter] = []
        self.changes = 0
        self._use(
            QueueCursor.create(
                "q", self.registry, ("t/#",), EARLIEST, clock=self.clock, settings=SETTINGS
            )
        )
        self.checkpoint()

    async def _make_syncer(self) -> Syncer:
        return Syncer(1)

    def _use(self, queue: QueueCursor) -> None:
        self.queue = queue
        queue.dead_letter = self.letters.append

    def run(self, call: object) -> object:
        """Call on the loop, for the timers."""

        async def inside() -> object:
            return call()  # type: ignore[operator]

        return self.loop.run_until_complete(inside())

    def now(self) -> float:
        return self.clock.monotonic()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for _ in range(40 * (len(self.model.offsets) + 1)):  # nothing unacked is lost
            if not self.model.unsettled():
                break
            self.advance(2_000)
            for token in list(self.model.letters):
                self._letter_is_safe(token)
            self.acquire("last", 10)
            for token in list(self.model.held):
                self._ack(token)
        assert not self.model.unsettled()
        assert self.queue.pending() == 0
        self.run(self.queue.close)
        self.loop.run_until_complete(self.syncer.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    # -- the log grows

    @rule(count=st.integers(1, 4), noise=st.booleans())
    def publish(self, count: int, noise: bool) -> None:
        for _ in range(count):
            if noise:
                self.log.write("other", b"no match")
            offset = self.log.write("t/1", b"x")
            self.model.offsets.append(offset)

    # -- handing out

    def _expected(self, limit: int) -> tuple[list[int], list[int]]:
        """Offsets to be handed out, and those that become dead letters on the way."""
        model = self.model
        out: list[int] = []
        dead: list[int] = []
        room = IN_FLIGHT - len(model.held) - len(model.letters)
        waiting = sorted(model.back)
        out_of_reach = model.settled | model.outstanding()
        new = [o for o in model.offsets if o >= model.read and o not in out_of_reach]
        for offset in [*waiting, *new]:
            if len(out) >= limit or len(out) + len(dead) >= room:
                break
            if model.counts.get(offset, 0) >= LIMIT:
                dead.append(offset)
            else:
                out.append(offset)
        return out, dead

    @rule(consumer=st.sampled_from("ab"), limit=st.integers(0, 4))
    def acquire(self, consumer: str, limit: int) -> None:
        model = self.model
        want, dead = self._expected(limit)
        letters = len(self.letters)
        got = self.run(lambda: self.queue.acquire(consumer, limit))
        assert isinstance(got, list)
        assert [row.record.offset for row in got] == want  # returned ones first, in order (I5)
        for row in got:
            offset = int(row.record.offset)
            assert offset not in {held.offset for held in model.held.values()}
            model.counts[offset] = model.counts.get(offset, 0) + 1
            assert row.count == model.counts[offset]
            assert row.redelivered == (row.count > 1)
            model.held[row.token] = Holding(offset, consumer, self.now() + LOCK_MS / 1000)
        assert [int(row.record.offset) for row in self.letters[letters:]] == dead
        self._note_letters(letters)
        for offset in (*want, *dead):
            if offset in model.back:
                model.back.discard(offset)
            else:
                model.read = max(model.read, offset + 1)

    def _note_letters(self, since: int) -> None:
        for letter in self.letters[since:]:
            assert letter.token not in self.model.held
            self.model.letters[letter.token] = (int(letter.record.offset), 0.0)

    # -- settling

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self._ack(data.draw(st.sampled_from(sorted(self.model.held))))

    def _ack(self, token: int) -> None:
        self.run(lambda: self.queue.ack(token))
        self.model.settled.add(self.model.held.pop(token).offset)
        with pytest.raises(NotFound):
            self.run(lambda: self.queue.ack(token))

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), delay_ms=st.sampled_from((None, 0, 150)), count=st.booleans())
    def release(self, data: st.DataObject, delay_ms: int | None, count: bool) -> None:
        token = data.draw(st.sampled_from(sorted(self.model.held)))
        offset = self.model.held.pop(token).offset
        if not count:
            self.model.counts[offset] -= 1
        letters = len(self.letters)
        self.run(lambda: self.queue.release(token, delay_ms=delay_ms, count=count))
        self._returned(offset, delay_ms, letters)

    def _returned(self, offset: int, delay_ms: int | None, letters: int) -> None:
        model = self.model
        count = model.counts[offset]
        if count >= LIMIT:  # exactly at the limit it is a dead letter
            letter = next(row for row in self.letters[letters:] if row.record.offset == offset)
            assert (letter.reason, letter.count) == ("delivery_limit", LIMIT)
            model.letters[letter.token] = (offset, 0.0)
            return
        if delay_ms is None:
            delay_ms = min(BACKOFF_MS * 2 ** max(count - 1, 0), BACKOFF_MAX_MS)
        if delay_ms:
            model.delayed[offset] = self.now() + delay_ms / 1000
        else:
            model.back.add(offset)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.model.held)))
        offset = self.model.held.pop(token).offset
        self.run(lambda: self.queue.reject(token))
        assert self.letters[-1].token == token
        assert self.letters[-1].reason == "rejected"
        self.model.letters[token] = (offset, 0.0)
        for call in (self.queue.ack, self.queue.reject, self.queue.release, self.queue.extend):
            with pytest.raises(NotFound):  # the consumer has let it go
                self.run(lambda call=call: call(token))

    @rule(consumer=st.sampled_from("ab"))
    def leave(self, consumer: str) -> None:
        gone = [token for token, held in self.model.held.items() if held.consumer == consumer]
        letters = len(self.letters)
        assert self.run(lambda: self.queue.release_consumer(consumer)) == len(gone)
        for token in gone:
            self._returned(self.model.held.pop(token).offset, 0, letters)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.model.held)))
        self.run(lambda: self.queue.extend(token))
        self.model.held[token].deadline = self.now() + LOCK_MS / 1000

    # -- dead letters

    @precondition(lambda self: self.model.letters)
    @rule(data=st.data(), safe=st.booleans())
    def letter(self, data: st.DataObject, safe: bool) -> None:
        token = data.draw(st.sampled_from(sorted(self.model.letters)))
        if safe:
            self._letter_is_safe(token)
        elif self.model.letters[token][1] == 0:
            self.run(lambda: self.queue.retry_dead_letter(token, RETRY_MS))
            offset = self.model.letters[token][0]
            self.model.letters[token] = (offset, self.now() + RETRY_MS / 1000)

    def _letter_is_safe(self, token: int) -> None:
        self.run(lambda: self.queue.settle_dead_letter(token))
        self.run(lambda: self.queue.settle_dead_letter(token))  # twice is once
        self.model.settled.add(self.model.letters.pop(token)[0])

    # -- moving

    @precondition(lambda self: self.model.offsets)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        """All from there on comes again, and nothing below; what consumers have stays with them."""
        model = self.model
        end = model.offsets[-1] + 1
        offset = data.draw(st.integers(0, end))
        (row,) = self.queue.positions()
        self.run(lambda: self.queue.seek(row.stream_id, row.partition, offset))
        held = model.with_consumers()
        model.settled = {o for o in model.offsets if o < offset and o not in held}
        model.counts = {o: n for o, n in model.counts.items() if o in held}
        model.delayed, model.back, model.read = {}, set(), offset

    @precondition(lambda self: self.model.offsets)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        """A settled record comes again, as one that was never handed out; no other does."""
        model = self.model
        offset = data.draw(st.sampled_from(model.offsets))
        (row,) = self.queue.positions()
        was_read = offset < self.queue.reading.position(0)
        revived = self.run(lambda: self.queue.revive(row.stream_id, row.partition, offset))
        assert revived == (offset in model.settled)
        if revived:
            model.settled.discard(offset)
            model.counts.pop(offset, None)
            if was_read:
                model.back.add(offset)

    # -- time

    @rule(passed_ms=st.sampled_from((50, 120, 400, 1_100)))
    def advance(self, passed_ms: int) -> None:
        model = self.model
        self.clock.advance(passed_ms / 1000)
        letters = len(self.letters)
        self.run(self.queue.run_due)
        late = [token for token, held in model.held.items() if held.deadline <= self.now()]
        for token in late:
            self._returned(model.held.pop(token).offset, None, letters)
        again = [token for token, (_, at) in model.letters.items() if at and at <= self.now()]
        for token in again:
            assert any(row.token == token for row in self.letters[letters:])
            model.letters[token] = (model.letters[token][0], 0.0)
        for offset in [o for o, ready in model.delayed.items() if ready <= self.now()]:
            del model.delayed[offset]
            model.back.add(offset)

    # -- restart

    @rule()
    def checkpoint(self) -> None:
        self.kept = msgspec.msgpack.encode(self.queue.state())
        self.kept_settled = set(self.model.settled)
        self.kept_counts = {
            offset: count
            for offset, count in self.model.counts.items()
            if offset not in self.model.settled
        }

    @rule()
    def restart(self) -> None:
        """Whatever is not in the checkpoint is forgotten; nothing else is."""
        self.run(self.queue.close)
        state = msgspec.msgpack.decode(self.kept, type=CursorState)
        self._use(QueueCursor.restore(self.registry, state, clock=self.clock))
        assert self.queue.settings == SETTINGS
        model = self.model
        model.settled = set(self.kept_settled)
        model.counts = dict(self.kept_counts)
        model.held, model.letters, model.delayed, model.back = {}, {}, {}, set()
        model.read = 0

    # -- always

    @invariant()
    def the_floor_passes_nothing_unsettled(self) -> None:
        if not hasattr(self, "model"):
            return
        (position,) = self.queue.positions()
        assert position.offset <= min(self.model.unsettled(), default=1 << 60)
        assert self.queue.pending() == len(self.model.held) + len(self.model.letters)
        assert self.queue.pending() <= IN_FLIGHT
        state = self.queue.state()
        assert state.positions == [position]
        for lane in self.queue._lanes.values():
            above = {offset for offset in self.model.settled if offset >= position.offset}
            known = {offset for offset in lane._settled or () if offset in self.model.offsets}
            assert known <= above  # it shrinks as the floor moves
            assert len(lane.counts) <= len(self.model.unsettled())


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
