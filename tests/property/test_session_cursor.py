"""The session cursor against a simple model: window, packet ids, stages, restarts."""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onelog.base.clock import ManualClock
from onelog.cursors.cursor import CursorState
from onelog.cursors.session import SessionCursor
from onelog.cursors.start import EARLIEST
from onelog.log.syncer import Syncer
from onelog.record.record import Record
from tests.support.logs import OneStream

WINDOW = 4


def wants_ack(record: Record) -> bool:
    """Records that end in 0 need none, as QoS 0 in a persistent session."""
    return not (record.value or b"").endswith(b"0")


class SessionMachine(RuleBasedStateMachine):
    """Drives a session and what it must be."""

    @initialize(first_id=st.sampled_from((1, 65_530)))
    def begin(self, first_id: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()

        async def make_syncer() -> Syncer:
            return Syncer(1)

        self.syncer = self.loop.run_until_complete(make_syncer())
        self.log = OneStream(self.clock, self.syncer)
        self.registry = self.log.registry()
        self.session = SessionCursor.create(
            "s", self.registry, ("t",), EARLIEST, clock=self.clock, window=WINDOW
        )
        self.session._next_packet_id = first_id
        self.offsets: list[int] = []
        self.values: dict[int, bytes] = {}
        self.next = 0
        self.flying: dict[int, tuple[int, bool]] = {}
        self.done: set[int] = set()
        self.passed: set[int] = set()
        self.checkpoint()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.syncer.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.log.write("noise", b"x")
            value = str(len(self.offsets)).encode()
            offset = self.log.write("t", value)
            self.offsets.append(offset)
            self.values[offset] = value

    @rule(limit=st.integers(1, 6))
    def fetch(self, limit: int) -> None:
        room = min(limit, WINDOW - len(self.flying))
        read = self.offsets[self.next : self.next + max(room, 0)]
        want = [offset for offset in read if offset not in self.passed]
        got = self.session.fetch(limit, wants_ack)
        assert [row.record.offset for row in got if row.record] == want
        self.next += len(read)
        self.passed -= set(read)
        for row in got:
            assert row.record is not None
            assert not row.duplicate
            if wants_ack(row.record):
                assert 1 <= row.packet_id <= 65_535
                assert row.packet_id not in self.flying  # unique while in flight
                self.flying[row.packet_id] = (int(row.record.offset), False)
            else:
                assert row.packet_id == 0
                self.done.add(int(row.record.offset))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.flying)))
        assert self.session.acknowledge(packet_id)
        assert not self.session.acknowledge(packet_id)
        assert not self.session.receive(packet_id)
        self.done.add(self.flying.pop(packet_id)[0])

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.flying)))
        assert self.session.receive(packet_id)
        self.flying[packet_id] = (self.flying[packet_id][0], True)

    @precondition(lambda self: self.offsets)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        """All from there on comes again, and nothing below; what is in flight is not sent twice."""
        self.next = data.draw(st.integers(0, len(self.offsets)))
        offset = [*self.offsets, self.offsets[-1] + 1][self.next]
        (row,) = self.session.positions()
        self.session.seek(row.stream_id, row.partition, offset)
        flying = {at for at, _received in self.flying.values()}
        self.passed = {at for at in flying if at >= offset}
        self.done = {at for at in self.offsets if at < offset and at not in flying}

    @rule()
    def redeliver(self) -> None:
        """In the order of the first delivery; what was received is only released again."""
        got = self.session.redeliver()
        assert [row.packet_id for row in got] == list(self.flying)
        for row in got:
            offset, received = self.flying[row.packet_id]
            assert row.duplicate
            assert (row.record is None) == received
            if row.record is not None:
                assert row.record.offset == offset
                assert row.record.value == self.values[offset]

    @rule()
    def checkpoint(self) -> None:
        self.kept = msgspec.msgpack.encode(self.session.state())
        self.kept_model = (self.next, dict(self.flying), set(self.done), set(self.passed))

    @rule()
    def restart(self) -> None:
        state = msgspec.msgpack.decode(self.kept, type=CursorState)
        self.session = SessionCursor.restore(self.registry, state, clock=self.clock, window=WINDOW)
        number, flying, done, passed = self.kept_model
        self.next, self.flying = number, dict(flying)
        self.done, self.passed = set(done), set(passed)

    @invariant()
    def nothing_unacknowledged_is_below_the_pin(self) -> None:
        if not hasattr(self, "flying"):
            return
        assert self.session.pending() == len(self.flying) <= WINDOW
        (position,) = self.session.positions()
        missing = [offset for offset in self.offsets if offset not in self.done]
        assert position.offset <= min(missing, default=1 << 60)


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
