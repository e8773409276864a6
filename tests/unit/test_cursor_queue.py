"""The queue cursor: order, bounds, back-off, priorities, dead letters, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.cursors.cursor import CursorState
from onelog.cursors.delivery import DeadLetter, QueueSettings
from onelog.cursors.queue import QueueCursor
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
    """A queue over one stream, with its dead letters."""

    def __init__(self, syncer: Syncer, partitions: int = 1, **settings: object) -> None:
        self.clock = ManualClock()
        self.log = OneStream(self.clock, syncer, partitions)
        self.registry = self.log.registry()
        self.letters: list[DeadLetter] = []
        self.queue = QueueCursor.create(
            "q",
            self.registry,
            ("#",),
            EARLIEST,
            clock=self.clock,
            settings=QueueSettings(**settings),  # type: ignore[arg-type]
        )
        self.queue.dead_letter = self.letters.append

    def write(self, count: int, topic: str = "t") -> list[int]:
        return [self.log.write(topic, b"%d" % number) for number in range(count)]

    def take(self, limit: int = 100, consumer: str = "c") -> list[int]:
        return [int(row.record.offset) for row in self.queue.acquire(consumer, limit)]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.queue.run_due()

    def restart(self) -> None:
        blob = msgspec.msgpack.encode(self.queue.state())
        self.queue.close()
        state = msgspec.msgpack.decode(blob, type=CursorState)
        self.queue = QueueCursor.restore(self.registry, state, clock=self.clock)
        self.queue.dead_letter = self.letters.append


async def test_what_comes_back_goes_before_new_records_in_offset_order(syncer: Syncer) -> None:
    """I5."""
    desk = Desk(syncer)
    desk.write(6)
    got = desk.queue.acquire("c", 4)
    for delivery in (got[3], got[0], got[2]):
        desk.queue.release(delivery.token)
    assert desk.take(2) == [0, 2]
    assert desk.take(9) == [3, 4, 5]


async def test_a_consumer_that_leaves_hands_back_in_offset_order_to_who_waits(
    syncer: Syncer,
) -> None:
    """I5: the first that is woken gets the lowest offset, whatever the order of hand-out was."""
    desk = Desk(syncer)
    desk.write(3)
    first = desk.queue.acquire("leaver", 3)
    desk.queue.release(first[0].token)
    desk.queue.acquire("leaver", 1)  # offset 0 has the highest token now
    order: list[int] = []

    def wake() -> None:
        order.extend(desk.take(1, "waiter"))

    desk.queue.when_available(wake)
    assert desk.queue.release_consumer("leaver") == 3
    assert order == [0]


async def test_the_back_off_doubles_and_is_capped(syncer: Syncer) -> None:
    desk = Desk(syncer, backoff_ms=100, backoff_max_ms=350)
    desk.write(1)
    for delay_s in (0.1, 0.2, 0.35, 0.35):
        (delivery,) = desk.queue.acquire("c")
        desk.queue.release(delivery.token)
        desk.pass_time(delay_s - 0.001)
        assert desk.take() == []
        desk.pass_time(0.001)
        assert desk.queue.has_returned


async def test_records_of_two_partitions_may_be_delayed_to_the_same_moment(syncer: Syncer) -> None:
    desk = Desk(syncer, partitions=4, backoff_ms=100)
    for partition in range(4):
        desk.log.write("t", b"x", partition=partition)
    for delivery in desk.queue.acquire("c", 9):
        desk.queue.release(delivery.token)
    desk.pass_time(0.1)
    assert len(desk.take()) == 4


async def test_a_deadline_takes_a_record_back_and_extending_it_does_not(syncer: Syncer) -> None:
    desk = Desk(syncer, lock_ms=1000)
    desk.write(2)
    kept, late = desk.queue.acquire("c", 2)
    desk.pass_time(0.6)
    desk.queue.extend(kept.token)
    desk.pass_time(0.6)
    assert desk.queue.pending() == 1
    (again,) = desk.queue.acquire("d", 9)
    assert (again.record.offset, again.count) == (late.record.offset, 2)
    desk.queue.ack(kept.token)


async def test_deadlines_of_settled_records_do_not_pile_up(syncer: Syncer) -> None:
    """I8."""
    desk = Desk(syncer, lock_ms=60_000)
    desk.write(2_000)
    for _ in range(2_000):
        (delivery,) = desk.queue.acquire("c")
        desk.queue.extend(delivery.token)
        desk.queue.ack(delivery.token)
    assert len(desk.queue._held._deadlines) < 200


async def test_records_in_flight_are_bounded_and_an_ack_makes_room(syncer: Syncer) -> None:
    """I8."""
    desk = Desk(syncer, in_flight_max=3)
    desk.write(10)
    held = desk.queue.acquire("c", 100)
    assert len(held) == 3
    assert desk.take() == []
    waiting = asyncio.ensure_future(desk.queue.next("d"))
    await asyncio.sleep(0)
    assert not waiting.done()
    desk.queue.ack(held[1].token)
    assert [row.record.offset for row in await asyncio.wait_for(waiting, 5)] == [3]
    waiting = asyncio.ensure_future(desk.queue.next("d"))
    await asyncio.sleep(0)
    desk.queue.release(held[0].token, delay_ms=60_000)  # room, though nothing came back
    assert [row.record.offset for row in await asyncio.wait_for(waiting, 5)] == [4]


async def test_an_ack_wakes_nobody_while_there_is_room(syncer: Syncer) -> None:
    """A thousand idle consumers are not woken by each ack of another."""
    desk = Desk(syncer)
    desk.write(1)
    (delivery,) = desk.queue.acquire("c")
    calls: list[int] = []
    desk.queue.when_available(lambda: calls.append(1))
    desk.queue.ack(delivery.token)
    assert calls == []
    desk.write(1)
    assert calls == [1]


async def test_priorities_come_first_inside_a_bounded_window(syncer: Syncer) -> None:
    """I8: the window bounds what is looked at ahead, offsets only."""
    desk = Desk(syncer, priority_header=b"p", priority_window=5)
    for number in range(12):
        desk.log.write("t", b"x", ((b"p", b"%d" % (number % 4)),))
    assert desk.take(1) == [3]
    assert len(desk.queue._by_priority) <= 5
    assert desk.take(2) == [2, 1]
    found = desk.take(100)
    assert found[0] == 7  # of the five it knows now
    while more := desk.take(100):
        assert len(desk.queue._by_priority) <= 5
        found += more
    assert sorted(found) == [0, *range(4, 12)]
    desk.queue.release_consumer("c")
    assert desk.take(100) == list(range(12))


@pytest.mark.parametrize("value", [b"9" * 5_000, b"\xff", b"", b"-1", "²".encode(), None])
async def test_a_hostile_number_in_a_header_is_no_priority_and_no_expiry(
    syncer: Syncer, value: bytes | None
) -> None:
    """I10: it must not stop the queue."""
    desk = Desk(syncer, priority_header=b"p")
    desk.log.write("t", b"x", ((b"p", value), (EXPIRY, value)))
    desk.write(1)
    assert desk.take() == [0, 1]


async def test_a_long_stretch_of_expired_records_keeps_every_bound(syncer: Syncer) -> None:
    """I8: neither the loop nor the in-flight bound is given up for them."""
    desk = Desk(syncer, in_flight_max=10)
    past = ((EXPIRY, b"%d" % (desk.clock.now_ms() - 1)),)
    for _ in range(500):
        desk.log.write("t", b"x", past)
    desk.write(1)
    assert desk.take(1) == []
    assert desk.queue.pending() == 10
    assert [row.reason for row in desk.letters] == ["expired"] * 10
    handled = 0
    while not (got := desk.take(1)):
        for letter in desk.letters[handled:]:
            desk.queue.settle_dead_letter(letter.token)
        handled = len(desk.letters)
    assert got == [500]
    assert len(desk.letters) == 500
    assert all(letter.count == 0 for letter in desk.letters)


async def test_one_call_looks_at_a_bounded_number_of_expired_records(
    syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: without a dead-letter hook they are dropped, a share per call; `next` gets through."""
    monkeypatch.setattr("onelog.cursors.queue._LOOKED_AT_MAX", 50)
    desk = Desk(syncer)
    desk.queue.dead_letter = None
    past = ((EXPIRY, b"%d" % (desk.clock.now_ms() - 1)),)
    for _ in range(300):
        desk.log.write("t", b"x", past)
    desk.write(1)
    assert desk.take(1) == []
    assert desk.queue.dropped <= 60
    assert [row.record.offset for row in await desk.queue.next("c", 1, 5.0)] == [300]
    assert desk.queue.dropped == 300


async def test_the_stream_s_own_time_to_live_expires_records(syncer: Syncer) -> None:
    clock = ManualClock()
    log = OneStream(clock, syncer, ttl_ms=1000)
    queue = QueueCursor.create("q", log.registry(), ("#",), EARLIEST, clock=clock)
    log.write("t", b"old")
    clock.advance(0.6)
    log.write("t", b"new")
    clock.advance(0.5)
    assert [row.record.value for row in queue.acquire("c", 9)] == [b"new"]
    assert queue.dropped == 1


async def test_a_delivery_limit_reached_before_a_crash_is_kept_after_it(syncer: Syncer) -> None:
    """The dead letter was not safe: it is handed over again, no consumer sees it again."""
    desk = Desk(syncer, deliveries_max=2)
    desk.write(2)
    for _ in range(2):
        delivery = desk.queue.acquire("c")[0]
        desk.queue.release(delivery.token)
    assert [(row.record.offset, row.count) for row in desk.letters] == [(0, 2)]
    desk.restart()
    assert desk.take() == [1]
    assert [(row.reason, row.count) for row in desk.letters] == [("delivery_limit", 2)] * 2


async def test_a_log_that_lost_its_end_reuses_offsets_and_the_queue_sees_them(
    syncer: Syncer,
) -> None:
    """I4: acks above the new end were for records that are gone."""
    desk = Desk(syncer)
    desk.write(6)
    got = desk.queue.acquire("c", 6)
    for delivery in got[2:]:
        desk.queue.ack(delivery.token)
    blob = msgspec.msgpack.encode(desk.queue.state())
    desk.queue.close()
    lost = OneStream(desk.clock, syncer)
    state = msgspec.msgpack.decode(blob, type=CursorState)
    queue = QueueCursor.restore(lost.registry(), state, clock=desk.clock)
    for number in range(6):
        lost.write("t", b"%d" % number)
    assert [row.record.offset for row in queue.acquire("c", 9)] == list(range(6))


async def test_what_retention_took_is_dropped_when_its_turn_comes(syncer: Syncer) -> None:
    desk = Desk(syncer)
    desk.write(4)
    got = desk.queue.acquire("c", 2)
    for delivery in got:
        desk.queue.release(delivery.token)
    partition = desk.log.stream.partitions[0]
    await partition.trim(3)  # type: ignore[arg-type]
    assert desk.take() == [3]
    assert desk.queue.dropped == 2
    assert desk.queue.positions()[0].offset == 3


async def test_a_closed_queue_has_no_timer_and_takes_late_answers(syncer: Syncer) -> None:
    desk = Desk(syncer, lock_ms=1000, backoff_ms=10)
    desk.write(3)
    one, two, three = desk.queue.acquire("c", 3)
    desk.queue.close()
    desk.queue.ack(one.token)
    desk.queue.release(two.token)
    desk.queue.reject(three.token)
    desk.queue.retry_dead_letter(three.token, 10)
    assert desk.queue._timer is None


async def test_asking_for_nothing_answers_at_once(syncer: Syncer) -> None:
    desk = Desk(syncer)
    desk.write(1)
    assert await asyncio.wait_for(desk.queue.next("c", 0), 5) == []
