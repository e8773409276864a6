"""Our Kafka client and partitions that cannot be read just now: it asks again, for a bounded time.

A real listener over an engine whose object store fails when a test wants it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from msgspec.structs import replace

from onelog.base.clock import SystemClock
from onelog.base.errors import ColdDamaged, ColdUnavailable, StorageError
from onelog.kafka_client import Access, Client, client, fetch_request
from onelog.log import couriers
from onelog.net import Gate, GateLimits, bind, start_listener
from onelog.protocols.kafka.connection import Connection
from tests.support.cold import make_cold
from tests.support.kafka_hub import batch, desk
from tests.unit.test_kafka_fetch import put

ALL = 1 << 20


@pytest.fixture
async def cold(tmp_path, monkeypatch):
    monkeypatch.setattr(couriers, "RETRY_S", 0.05)
    monkeypatch.setattr(couriers, "RETRY_MAX_S", 0.2)
    engines = make_cold(monkeypatch)
    async with desk(tmp_path) as here:
        here.hub.limits = replace(here.hub.limits, cold_wait_ms=200)
        listener = bind("kafka", "127.0.0.1", 0)
        served = await start_listener(
            listener,
            lambda peer: Connection(here.hub, peer, here.hub.config.listeners.kafka),
            Gate(GateLimits(), SystemClock()),
        )
        try:
            yield here, engines[0], Access(servers=(("127.0.0.1", listener.port),))
        finally:
            engines[0].gate.set()
            served.close()
            await served.wait_closed()


def request(**parts: int) -> bytes:
    wanted = {("t", int(name[1:])): offset for name, offset in parts.items()}
    return fetch_request(wanted, bytes_max=ALL, part_bytes_max=ALL, wait_ms=100)


async def test_a_fetch_is_asked_again_while_the_store_is_away_and_then_has_the_records(cold):
    here, engine, access = cold
    await put(here, batch(b"a"))
    engine.is_remote, engine.failure = True, ColdUnavailable("the store is away")

    def read() -> bytes:
        with Client(access) as asking:
            while True:
                (row,) = asking.fetch(request(p0=0), 1.0)
                assert row.code == 0
                if len(row.records):
                    return bytes(row.records)
                assert row.is_coming

    reading = asyncio.create_task(asyncio.to_thread(read))
    await asyncio.sleep(1.5)
    assert not reading.done()
    assert engine.cold_reads < 60, "it asks again and again"
    engine.failure = None
    assert b"a" in await asyncio.wait_for(reading, 20)


async def test_a_partition_that_stays_away_is_an_error_in_words_after_a_while(cold, monkeypatch):
    monkeypatch.setattr(client, "STORAGE_S", 1.0)
    here, engine, access = cold
    await put(here, batch(b"a"))
    engine.is_remote, engine.failure = True, ColdDamaged("t/00/x is missing: offsets 0 to 1")

    def read() -> float:
        began = time.monotonic()
        with Client(access) as asking, contextlib.closing(asking):
            with pytest.raises(StorageError, match=r"t-0: .*object store is away.*error 56"):
                while True:
                    asking.fetch(request(p0=0), 1.0)
            return time.monotonic() - began

    assert 0.5 < await asyncio.wait_for(asyncio.to_thread(read), 20) < 10


async def test_a_fetch_that_the_store_did_not_answer_in_time_says_so_and_is_no_gap(cold):
    here, engine, access = cold
    await put(here, batch(b"a"))
    engine.is_remote = True
    engine.gate.clear()

    def read() -> tuple[bool, int]:
        with Client(access) as asking:
            (row,) = asking.fetch(request(p0=0), 1.0)
            return row.is_coming, row.stable_end

    assert await asyncio.wait_for(asyncio.to_thread(read), 20) == (True, 1)
    engine.gate.set()

    def at_end() -> bool:
        with Client(access) as asking:
            (row,) = asking.fetch(request(p0=1), 1.0)
            return row.is_coming

    assert not await asyncio.wait_for(asyncio.to_thread(at_end), 20)
