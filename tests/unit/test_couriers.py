"""Do couriers of the store keep their deadlines, become fewer when it throttles, and never block
those of the disk?"""

from __future__ import annotations

import asyncio
import threading

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import ColdUnavailable
from onelog.log import couriers as module
from onelog.log.couriers import READS, STORE, Couriers, RemoteCouriers
from onelog.observe.troubles import Troubles
from onelog.storage.engine import NO_LEASE, Lease


class Freed(Lease):
    """A lease that remembers its release."""

    __slots__ = ("released",)

    def __init__(self) -> None:
        self.released = threading.Event()

    def release(self) -> None:
        self.released.set()


def asked(couriers: RemoteCouriers, work, size_bytes: int = 0) -> asyncio.Future[Lease | None]:
    future: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()

    def done(lease, error):
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(lease)

    couriers.start(work, size_bytes, done)
    return future


def throttled() -> Lease:
    raise ColdUnavailable("slower", "throttled")


@pytest.fixture
async def remote():
    couriers = RemoteCouriers(Troubles(SystemClock()))
    yield couriers
    await couriers.close()


async def test_readers_of_a_store_that_hangs_are_told_at_the_deadline_and_later_bytes_go(remote):
    remote.configure(2, 0.05)
    gate, lease = threading.Event(), Freed()

    def hang() -> Lease:
        gate.wait()
        return lease

    waiting = [asked(remote, hang) for _ in range(6)]
    for future in waiting:  # those that have not begun, too
        with pytest.raises(ColdUnavailable, match="did not give"):
            await asyncio.wait_for(future, 5)
    assert remote.late == 6
    gate.set()
    await asyncio.to_thread(lease.released.wait, 5)
    assert await asked(remote, lambda: NO_LEASE) is NO_LEASE


async def test_a_large_read_has_more_time(remote):
    remote.configure(1, 0.05)
    gate = threading.Event()
    future = asked(remote, lambda: gate.wait() and NO_LEASE, 10_000_000)
    await asyncio.sleep(0.2)
    gate.set()
    assert await future is NO_LEASE


async def test_couriers_halve_when_the_store_throttles_and_grow_again(remote, monkeypatch):
    monkeypatch.setattr(module, "GROW_S", 0.02)
    numbers = []
    for _ in range(4):
        with pytest.raises(ColdUnavailable):
            await asked(remote, throttled)
        numbers.append(remote.at_once)
    assert numbers[0] == 4 and min(numbers) >= 1
    await asyncio.sleep(0.5)
    assert remote.at_once == remote.at_once_max


async def test_no_more_jobs_run_at_once_than_the_store_lets(remote):
    remote.configure(8, 30.0)
    remote.at_once = 2
    lock, now, most = threading.Lock(), 0, 0

    def work() -> Lease:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1
        return NO_LEASE

    await asyncio.gather(*(asked(remote, work) for _ in range(10)))
    assert most == 2


async def test_a_store_that_fails_stands_as_a_trouble_until_it_answers_and_waits_grow():
    troubles = Troubles(SystemClock())
    remote = RemoteCouriers(troubles)

    def away() -> Lease:
        raise ColdUnavailable("nobody answers")

    waits = []
    for _ in range(6):
        with pytest.raises(ColdUnavailable):
            await asked(remote, away)
        waits.append(remote.retry_s)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert [(row.kind, row.place) for row in troubles.standing()] == [(STORE, READS)]
    await asked(remote, lambda: NO_LEASE)
    assert not troubles.standing() and remote.retry_s == 1.0
    await remote.close()


async def test_local_reads_do_not_wait_for_the_store():
    couriers = Couriers(Troubles(SystemClock()))
    couriers.remote.configure(1, 30.0)
    gate = threading.Event()
    far = asked(couriers.remote, lambda: gate.wait() and NO_LEASE)
    near: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
    couriers.start(lambda: NO_LEASE, lambda lease, _error: near.set_result(lease))
    assert await asyncio.wait_for(near, 5) is NO_LEASE
    assert not far.done()
    gate.set()
    await far
    await couriers.close()
