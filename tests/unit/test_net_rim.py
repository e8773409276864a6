"""What every connection has: a deadline, tasks, reasons not to read, and a user who may change."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from onelog.base.clock import ManualClock
from onelog.kernel import MqttInput, MqttOutput
from onelog.net import ByteBound, Connections, Deadline, OwnedTasks, Pauses, SilenceWatch
from onelog.net.connections import USER_CHANGED
from onelog.observe import Troubles
from tests.simulation.machine import VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(ManualClock())
    yield made
    made.close()


def run(loop: VirtualLoop, work: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(work)


class Owner:
    """Stands for a connection: notes when it was called, and with what."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.deadline = Deadline(loop)
        self.tasks = OwnedTasks(loop)
        self.began = loop.time()
        self.called: list[tuple[float, object]] = []

    def act(self, said: object = None) -> None:
        self.called.append((self.loop.time() - self.began, said))


# -- deadlines


def test_a_deadline_calls_when_its_time_is_over_and_once(loop):
    async def main():
        owner = Owner(loop)
        owner.deadline.start(5, owner.act, "login")
        assert owner.deadline.is_running
        await asyncio.sleep(100)
        assert owner.called == [(5, "login")]
        assert not owner.deadline.is_running

    run(loop, main())


def test_a_deadline_takes_the_place_of_the_one_before(loop):
    async def main():
        owner = Owner(loop)
        owner.deadline.start(5, owner.act, "login")
        await asyncio.sleep(4)
        owner.deadline.start(10, owner.act, "idle")
        await asyncio.sleep(100)
        assert owner.called == [(14, "idle")]

    run(loop, main())


def test_a_deadline_that_was_stopped_calls_nobody(loop):
    async def main():
        owner = Owner(loop)
        owner.deadline.start(5, owner.act)
        owner.deadline.stop()
        owner.deadline.stop()
        await asyncio.sleep(100)
        assert owner.called == []
        assert not owner.deadline.is_running

    run(loop, main())


def test_a_deadline_may_be_started_again_by_the_one_it_calls(loop):
    async def main():
        owner = Owner(loop)

        def beat() -> None:
            owner.act()
            owner.deadline.start(2, beat)

        owner.deadline.start(2, beat)
        await asyncio.sleep(7)
        assert [at for at, _ in owner.called] == [2, 4, 6]
        assert owner.deadline.is_running
        owner.deadline.stop()

    run(loop, main())


@pytest.mark.parametrize("ends_by", ["passing", "stopping"])
def test_a_deadline_that_is_over_holds_nobody(loop, ends_by):
    async def main():
        gc.disable()
        try:
            owner = Owner(loop)
            gone = weakref.ref(owner)
            owner.deadline.start(5, owner.act)
            if ends_by == "stopping":
                owner.deadline.stop()
            else:
                await asyncio.sleep(6)
            del owner
            assert gone() is None
        finally:
            gc.enable()

    run(loop, main())


def watched() -> MqttInput:
    return MqttInput(MqttOutput(None, 0, 10), {}, lambda _topic: None, 1000)


def test_a_peer_is_silent_when_all_looks_in_a_row_found_nothing(loop):
    async def main():
        owner, came_in = Owner(loop), watched()
        SilenceWatch(owner.deadline, came_in, lambda: True, owner.act).start(3, 4)
        await asyncio.sleep(10)
        came_in.heard = True  # as the kernel does it; the look at 12 finds it
        await asyncio.sleep(13.5)
        assert owner.called == []
        await asyncio.sleep(100)
        assert owner.called == [(24, None)]
        assert not owner.deadline.is_running

    run(loop, main())


def test_a_peer_that_is_not_read_is_not_silent(loop):
    async def main():
        owner, is_read = Owner(loop), False
        SilenceWatch(owner.deadline, watched(), lambda: is_read, owner.act).start(3, 4)
        await asyncio.sleep(100)
        assert owner.called == []
        is_read = True
        await asyncio.sleep(100)
        assert owner.called == [(99 + 12, None)]

    run(loop, main())


def test_each_look_may_do_more_until_the_peer_is_silent_or_the_watch_is_over(loop):
    """AMQP sends a heartbeat then."""

    async def main():
        silent, stopped = Owner(loop), Owner(loop)
        for owner in (silent, stopped):
            beat = partial(owner.act, "beat")
            SilenceWatch(owner.deadline, watched(), lambda: True, owner.act, beat).start(5, 4)
        await asyncio.sleep(12)
        stopped.deadline.stop()
        await asyncio.sleep(100)
        assert silent.called == [(5, "beat"), (10, "beat"), (15, "beat"), (20, None)]
        assert stopped.called == [(5, "beat"), (10, "beat")]

    run(loop, main())


def test_a_look_may_end_the_watch(loop):
    async def main():
        owner = Owner(loop)

        def end() -> None:
            owner.act()
            owner.deadline.stop()

        SilenceWatch(owner.deadline, watched(), lambda: True, owner.act, end).start(5, 4)
        await asyncio.sleep(100)
        assert owner.called == [(5, None)]

    run(loop, main())


# -- tasks


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def fail_when_cancelled() -> None:
    try:
        await forever()
    finally:
        raise ValueError("at the end")


def test_tasks_end_with_their_owner(loop):
    async def main():
        owner = Owner(loop)
        started = [owner.tasks.run(forever(), owner.act) for _ in range(3)]
        assert len(owner.tasks) == 3
        assert set(owner.tasks) == set(started)
        await asyncio.sleep(0)
        owner.tasks.cancel()
        await asyncio.wait(started)
        assert all(task.cancelled() for task in started)
        await asyncio.sleep(0)
        assert len(owner.tasks) == 0
        assert owner.called == []

    run(loop, main())


def test_a_task_that_is_done_is_forgotten(loop):
    async def main():
        owner = Owner(loop)
        await owner.tasks.run(asyncio.sleep(1), owner.act)
        await asyncio.sleep(0)
        assert len(owner.tasks) == 0
        assert owner.called == []

    run(loop, main())


@pytest.mark.parametrize("late", [False, True])
def test_a_failure_is_heard_of_also_when_it_comes_at_the_end(loop, late):
    async def main():
        owner, error = Owner(loop), ValueError("a fault")
        owner.tasks.run(fail_when_cancelled() if late else fail(error), owner.act)
        await asyncio.sleep(0)
        if late:
            owner.tasks.cancel()
        await asyncio.sleep(1)
        ((_at, heard),) = owner.called
        assert isinstance(heard, ValueError)
        assert len(owner.tasks) == 0

    run(loop, main())


@pytest.mark.parametrize("ends_by", ["returning", "failing", "cancelling"])
def test_tasks_that_are_done_hold_no_owner(loop, ends_by):
    async def main():
        gc.disable()
        try:
            owner = Owner(loop)
            gone = weakref.ref(owner)
            works = {"returning": asyncio.sleep, "failing": lambda _s: fail(ValueError())}
            work = works.get(ends_by, lambda _s: forever())(0)
            owner.tasks.run(work, Owner.act.__get__(owner))
            await asyncio.sleep(0)
            if ends_by == "cancelling":
                owner.tasks.cancel()
            await asyncio.sleep(1)
            owner.called.clear()  # the error knows where it was raised
            del owner
            assert gone() is None
        finally:
            gc.enable()

    run(loop, main())


# -- reading


class Wire:
    """A transport as far as reading goes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closes = False

    def is_closing(self) -> bool:
        return self.closes

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def reading() -> tuple[Pauses, Wire]:
    pauses, wire = Pauses(), Wire()
    pauses.begin(wire)  # type: ignore[arg-type]
    return pauses, wire


def test_a_peer_is_read_again_when_the_last_reason_is_gone():
    pauses, wire = reading()
    pauses.pause("full")
    pauses.pause("turn")
    assert wire.calls == ["pause"]
    pauses.resume("full")
    assert wire.calls == ["pause"]
    pauses.resume("turn")
    assert wire.calls == ["pause", "resume"]
    assert not pauses.reasons


def test_a_reason_counts_once_and_one_that_was_not_given_is_none():
    pauses, wire = reading()
    pauses.resume("full")
    pauses.pause("full")
    pauses.pause("full")
    pauses.resume("turn")
    pauses.resume("full")
    pauses.resume("full")
    assert wire.calls == ["pause", "resume"]


def test_a_transport_that_closes_is_left_alone():
    pauses, wire = reading()
    pauses.pause("full")
    wire.closes = True
    pauses.resume("full")
    pauses.pause("full")
    assert wire.calls == ["pause"]


def test_reasons_may_come_and_go_when_the_connection_is_gone():
    pauses, wire = reading()
    pauses.pause("full")
    pauses.end()
    pauses.pause("turn")
    pauses.resume("full")
    pauses.resume("turn")
    assert wire.calls == ["pause"]


def test_a_peer_that_was_not_read_counts_as_heard():
    pauses, _wire = reading()
    pauses.pause("full")
    assert not pauses.heard
    pauses.resume("full")
    assert pauses.heard


def test_past_its_bound_a_peer_is_not_read_until_half_of_the_bytes_are_gone():
    pauses, wire = reading()
    waiting, unwritten = ByteBound(pauses, 100, "waiting"), ByteBound(pauses, 10, "unwritten")
    waiting.add(100)
    assert wire.calls == []
    waiting.add(1)
    unwritten.add(11)
    assert wire.calls == ["pause"]
    unwritten.add(-11)
    waiting.add(-50)
    assert pauses.reasons == {"waiting"}
    waiting.add(-1)
    assert wire.calls == ["pause", "resume"]
    assert (waiting.size_bytes, unwritten.size_bytes) == (50, 0)


# -- users


class Proof:
    def __init__(self, name: str, *, counts: bool) -> None:
        self.name = name
        self.counts = counts


class Guest:
    """Stands for a connection of somebody."""

    def __init__(self, identity: Proof | None, error: Exception | None = None) -> None:
        self.identity = identity
        self.error = error
        self.told = 0

    def user_changed(self) -> None:
        self.told += 1
        if self.error is not None:
            raise self.error


def guests(*rows: Guest) -> tuple[Connections[Guest], Troubles]:
    troubles = Troubles(ManualClock())
    there: Connections[Guest] = Connections(lambda identity: identity.counts, troubles)
    for row in rows:
        there.add(row)
    return there, troubles


def test_a_user_who_changed_is_told_on_every_connection_whose_proof_counts_no_more():
    old, again = (Guest(Proof("ada", counts=False)) for _ in range(2))
    current, other = Guest(Proof("ada", counts=True)), Guest(Proof("bob", counts=False))
    nobody = Guest(None)
    there, _troubles = guests(old, again, current, other, nobody)
    assert set(there.of_user("ada")) == {old, again, current}
    there.user_changed("ada")
    assert [row.told for row in (old, again, current, other, nobody)] == [1, 1, 0, 0, 0]


def test_a_connection_that_raises_keeps_no_other_of_its_user_open():
    rows = [Guest(Proof("ada", counts=False), RuntimeError("a fault")) for _ in range(3)]
    there, troubles = guests(*rows)
    there.user_changed("ada")
    assert [row.told for row in rows] == [1, 1, 1]
    assert troubles.count(USER_CHANGED) == 3


def test_a_connection_may_leave_while_its_user_is_told():
    rows = [Guest(Proof("ada", counts=False)) for _ in range(3)]
    there, troubles = guests(*rows)
    for row in rows:
        row.user_changed = lambda row=row: there.discard(row)  # type: ignore[method-assign,misc]
    there.user_changed("ada")
    assert not there
    assert not troubles.rows()
