"""Do readers of a store that is away wait, ask seldom, and go on when it is back?"""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.errors import ColdUnavailable
from onelog.log import couriers
from onelog.log.couriers import READS, STORE
from tests.support.brokers import history, running, say
from tests.support.cold import make_cold


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(couriers, "RETRY_S", 0.05)
    monkeypatch.setattr(couriers, "RETRY_MAX_S", 0.2)


async def test_a_cursor_waits_for_the_store_and_then_has_every_message_once(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)
    async with running(tmp_path) as broker:
        await say(broker, "t", *(f"m{number}" for number in range(50)))
        engine = engines[0]
        engine.is_remote, engine.failure = True, ColdUnavailable("nobody answers")
        reading = asyncio.create_task(history(broker, "t"))
        await asyncio.sleep(1.0)
        assert not reading.done()
        assert engine.cold_reads < 60, "readers ask again and again"
        assert (STORE, READS) in [(row.kind, row.place) for row in broker.troubles.standing()]
        assert not broker.stopped_partitions()
        engine.failure = None
        assert len(await asyncio.wait_for(reading, 20)) == 50
        assert not broker.troubles.standing()
        assert not engine.in_loop
