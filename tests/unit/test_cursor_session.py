"""The session cursor: window, packet ids, expiry, redelivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.cursors.cursor import CursorState
from onelog.cursors.session import SessionCursor
from onelog.cursors.start import EARLIEST
from onelog.log.syncer import Syncer
from onelog.record.headers import EXPIRY
from tests.support.logs import OneStream


@pytest.fixture
async def syncer() -> AsyncIterator[Syncer]:
    syncer = Syncer(1)
    yield syncer
    await syncer.close()


class Desk:
    """A session over one stream."""

    def __init__(self, syncer: Syncer, window: int = 4, ttl_ms: int = -1) -> None:
        self.clock = ManualClock()
        self.log = OneStream(self.clock, syncer, ttl_ms=ttl_ms)
        self.registry = self.log.registry()
        self.session = SessionCursor.create(
            "s", self.registry, ("#",), EARLIEST, clock=self.clock, window=window
        )

    def write(self, count: int) -> None:
        for number in range(count):
            self.log.write("t", b"%d" % number)

    def restart(self) -> None:
        state = msgspec.msgpack.decode(
            msgspec.msgpack.encode(self.session.state()), type=CursorState
        )
        self.session = SessionCursor.restore(
            self.registry, state, clock=self.clock, window=self.session.window
        )


async def test_packet_ids_wrap_at_65535_and_pass_over_those_in_flight(syncer: Syncer) -> None:
    desk = Desk(syncer, window=3)
    desk.write(5)
    desk.session._next_packet_id = 65_535
    assert [row.packet_id for row in desk.session.fetch(2)] == [65_535, 1]
    desk.session._next_packet_id = 65_535
    assert [row.packet_id for row in desk.session.fetch()] == [2]
    desk.session.acknowledge(65_535)
    desk.restart()
    assert [row.packet_id for row in desk.session.redeliver()] == [1, 2]
    assert [row.packet_id for row in desk.session.fetch()] == [3]


async def test_a_window_of_all_packet_ids_can_be_in_flight_and_no_more(syncer: Syncer) -> None:
    """I8."""
    desk = Desk(syncer, window=100_000)
    builder_rows = 65_600
    for _ in range(41):
        desk.log.write_many("t", 1_600)
    assert desk.log.stream.partitions[0].end_offset == builder_rows
    given: set[int] = set()
    while more := desk.session.fetch(10_000):
        given.update(row.packet_id for row in more)
    assert given == set(range(1, 65_536))
    desk.session.acknowledge(77)
    assert [row.packet_id for row in desk.session.fetch()] == [77]


async def test_records_without_ack_do_not_fill_the_window(syncer: Syncer) -> None:
    desk = Desk(syncer, window=2)
    desk.write(10)
    seen = []
    for _ in range(20):
        seen += desk.session.fetch(5, lambda _record: False)
    assert [row.packet_id for row in seen] == [0] * 10
    assert desk.session.pending() == 0
    assert desk.session.redeliver() == []


async def test_expired_records_are_passed_over(syncer: Syncer) -> None:
    """By their own header, and by their stream's time to live."""
    desk = Desk(syncer, ttl_ms=5_000)
    desk.log.write("t", b"short", ((EXPIRY, b"%d" % (desk.clock.now_ms() + 1_000)),))
    desk.log.write("t", b"long", ((EXPIRY, b"%d" % (desk.clock.now_ms() + 60_000)),))
    desk.clock.advance(2)
    desk.log.write("t", b"new")
    assert [row.record.value for row in desk.session.fetch() if row.record] == [b"long", b"new"]
    desk.clock.advance(4)
    desk.log.write("t", b"newest")
    desk.restart()
    assert len(desk.session.redeliver()) == 2  # the protocol decides what to do with these
    assert [row.record.value for row in desk.session.fetch() if row.record] == [b"newest"]


async def test_next_goes_on_past_expired_records_and_ends_with_a_full_window(
    syncer: Syncer,
) -> None:
    """I8: nobody spins on a window that another task filled."""
    desk = Desk(syncer, window=1)
    desk.log.write("t", b"old", ((EXPIRY, b"1"),))
    desk.write(1)
    (delivery,) = await asyncio.wait_for(desk.session.next(), 5)
    assert delivery.record is not None
    assert delivery.record.value == b"0"
    assert await asyncio.wait_for(desk.session.next(), 5) == []
    desk.session.acknowledge(delivery.packet_id)
    one = asyncio.ensure_future(desk.session.next())
    two = asyncio.ensure_future(desk.session.next())
    await asyncio.sleep(0)
    desk.write(2)
    assert len(await asyncio.wait_for(one, 5)) == 1
    assert await asyncio.wait_for(two, 5) == []


async def test_what_retention_took_leaves_the_window(syncer: Syncer) -> None:
    desk = Desk(syncer)
    desk.write(3)
    desk.session.fetch()
    await desk.log.stream.partitions[0].trim(2)  # type: ignore[arg-type]
    assert [row.packet_id for row in desk.session.redeliver()] == [3]
    assert desk.session.pending() == 1
