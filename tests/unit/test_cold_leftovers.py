"""A read that was cold leaves nothing of its reader in memory (I8): no collector is needed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from onelog.base.clock import SystemClock
from onelog.base.ids import Offset
from onelog.log.pool import Pool
from onelog.observe.troubles import Troubles
from onelog.storage.engine import NO_LEASE, Cold, Lease, in_place
from tests.support.brokers import home_of, say
from tests.support.cold import cold_broker


class Reader:
    """Whose connection it is of would be held with it."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_reader_may_go_while_its_bytes_are_on_their_way(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "t", "x")
        _stream, partition = home_of(broker, "t")
        engine.gate.clear()
        found: list[weakref.ref[Reader]] = []

        def read() -> None:
            reader = Reader()
            found.append(weakref.ref(reader))
            partition.lookup.read(Offset(0), 1)

        try:
            read()
        except Cold as cold:
            partition.when_here(cold, lambda _error: None)
        assert [reader() for reader in found] == [None]
        engine.gate.set()


async def test_a_thread_that_waits_for_work_holds_nothing_of_the_last_job():
    pool = Pool("test", 1, Troubles(SystemClock()))
    told = asyncio.Event()

    def job() -> weakref.ref[Reader]:
        """The thread begins to wait soon after this answer; the second job shows that it did."""
        reader, result = Reader(), Reader()
        pool.start(lambda: (reader, result)[1], lambda _result, _error: told.set())
        return weakref.ref(reader)

    left = job()
    await told.wait()
    for _ in range(1000):
        if left() is None:
            break
        await asyncio.sleep(0.001)
    assert left() is None
    await pool.close()


def test_a_read_that_blocked_holds_nothing_when_it_is_done():
    class Log:
        def bring(self, _cold: Cold) -> Lease:
            return NO_LEASE

    def look() -> weakref.ref[Reader]:
        reader, tries = Reader(), iter((True, True, False))

        def read() -> None:
            if next(tries):
                raise Cold(reader, 1)

        in_place(Log(), read)
        return weakref.ref(reader)

    assert look()() is None
