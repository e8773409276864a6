"""Fetches of records that are not in memory: answered when they are, and the loop goes on."""

from __future__ import annotations

import asyncio
from functools import partial

import kio.schema.list_offsets.v1.request as asking
import pytest
from msgspec.structs import replace

from onelog.base.errors import Closed, ColdDamaged, ColdUnavailable, PartitionStopped
from onelog.log.couriers import LOCAL
from onelog.protocols.kafka import fetching
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.cold import make_cold
from tests.support.kafka_hub import batch, desk
from tests.support.turns import passes_until
from tests.unit.test_kafka_fetch import ask, fetch, parts, put


@pytest.fixture
async def cold(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)
    async with desk(tmp_path) as here:
        yield here, engines[0]
        engines[0].gate.set()


def make_impatient(here) -> None:
    """Fetches wait for cold records for a moment only."""
    here.hub.limits = replace(here.hub.limits, cold_wait_ms=50)


@pytest.mark.parametrize("wait_ms", [0, 1000])
async def test_a_fetch_waits_for_the_disk_and_then_has_the_batch(cold, wait_ms):
    here, engine = cold
    await put(here, batch(b"a"))
    answer = await ask(here.client(), 0, wait_ms=wait_ms)
    assert b"a" in bytes(parts(answer)[0].records)
    assert engine.in_loop == []


async def test_the_loop_goes_on_while_a_fetch_waits_for_the_disk(cold):
    here, engine = cold
    await put(here, batch(b"a"))
    engine.gate.clear()
    client = here.client()
    client.send(fetch(client, 0))
    for _ in range(20):
        await asyncio.sleep(0.001)
    before = engine.cold_reads
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert engine.cold_reads == before, "it asks again and again"
    assert client.answers() == []
    engine.gate.set()
    ((_, answer),) = await client.wait_for(1)
    assert b"a" in bytes(parts(answer)[0].records)


async def test_partitions_that_have_something_do_not_wait_for_one_that_is_cold(cold):
    here, engine = cold
    await put(here, batch(b"a"), partition=0)
    await put(here, batch(b"b"), partition=1)
    assert len((await ask(here.client(), 0)).responses) == 1  # partition 0 is brought and held
    engine.gate.clear()
    first, second = parts(await ask(here.client(), 0, 0))
    assert b"a" in bytes(first.records)
    assert not second.records
    engine.gate.set()
    brought = engine.brought
    await passes_until(lambda: engine.brought >= brought + 1)
    first, second = parts(await ask(here.client(), 0, 0, wait_ms=1000))
    assert first.records
    assert b"b" in bytes(second.records)


async def test_a_disk_that_does_not_answer_gets_an_empty_answer_and_no_error(cold):
    here, engine = cold
    make_impatient(here)
    await put(here, batch(b"a"))
    engine.gate.clear()
    (row,) = parts(await ask(here.client(), 0))
    assert row.error_code is ErrorCode.none
    assert not row.records


async def test_a_disk_that_fails_stops_that_partition_and_says_so(cold):
    here, engine = cold
    await put(here, batch(b"a"))
    engine.failure = PartitionStopped("the disk is broken")
    (row,) = parts(await ask(here.client(), 0, wait_ms=1000))
    assert row.error_code is ErrorCode.kafka_storage_error
    assert here.log(0).stopped is engine.failure
    assert here.log(1).stopped is None


async def test_a_client_that_leaves_is_not_waited_for(cold):
    here, engine = cold
    await put(here, batch(b"a"))
    engine.gate.clear()
    client = here.client()
    client.send(fetch(client, 0, wait_ms=1000))
    await asyncio.sleep(0)
    client.connection.connection_lost(None)
    engine.gate.set()
    brought = engine.brought
    await passes_until(lambda: engine.brought >= brought + 1)
    assert client.answers() == []


async def test_a_fetch_in_turns_waits_for_the_disk_too(cold, monkeypatch):
    monkeypatch.setattr(fetching, "AT_ONCE", 0)
    here, engine = cold
    await put(here, batch(b"a"))
    answer = await ask(here.client(), 0)
    assert b"a" in bytes(parts(answer)[0].records)
    assert engine.in_loop == []


@pytest.mark.parametrize("at_once", [0, 200], ids=["in turns", "at once"])
async def test_a_fetch_has_a_few_cold_partitions_brought_at_a_time(cold, monkeypatch, at_once):
    """Else one fetch of very many places would keep everybody else from the disk for long."""
    monkeypatch.setattr(fetching, "AT_ONCE", at_once)
    monkeypatch.setattr(fetching, "COLD_AT_ONCE", 1)
    monkeypatch.setattr("onelog.log.arrivals.HELD_S", 60.0)  # however slow the machine is
    here, engine = cold
    await put(here, batch(b"a"), partition=0)
    await put(here, batch(b"b"), partition=1)
    couriers = here.log(0).shared.couriers
    brought = couriers.brought
    first, second = parts(await ask(here.client(), 0, 0, wait_ms=1000))
    assert (bool(first.records), bool(second.records)) == (True, False)
    first, second = parts(await ask(here.client(), 0, 0, wait_ms=1000, min_bytes=200))
    assert first.records
    assert second.records
    assert couriers.brought == brought + 2
    assert engine.in_loop == []


async def test_a_broker_that_stops_does_not_bring_what_nobody_gets(cold):
    here, engine = cold
    await put(here, *(batch(b"a") for _ in range(20)))
    engine.gate.clear()
    lookup, arrivals = here.log(0).lookup, here.log(0).arrivals
    waiting = [
        asyncio.ensure_future(arrivals.until_here(partial(lookup.read, offset, 1)))
        for offset in range(20)
    ]
    await asyncio.sleep(0.01)
    brought = engine.brought
    closing = asyncio.ensure_future(here.log(0).shared.couriers.close())
    await asyncio.sleep(0.01)
    engine.gate.set()
    await closing
    assert engine.brought - brought <= LOCAL
    told = await asyncio.gather(*waiting, return_exceptions=True)
    # Those that a courier had begun may be read, unless they need one more.
    assert sum(isinstance(row, Closed) for row in told) >= 20 - LOCAL


async def test_an_offset_by_time_waits_for_the_disk_and_the_loop_does_not(cold):
    here, engine = cold
    await put(here, batch(b"a"), batch(b"b"))
    client = here.client()
    partition = asking.ListOffsetsPartition(partition_index=0, timestamp=1)
    topic = asking.ListOffsetsTopic(name="t", partitions=(partition,))
    body = asking.ListOffsetsRequest(replica_id=-1, topics=(topic,))
    client.send(client.frame(ApiKey.LIST_OFFSETS, 1, body))
    ((_, answer),) = await client.wait_for(1)
    assert answer.topics[0].partitions[0].offset == 0
    assert engine.brought > 0
    assert engine.in_loop == []


async def test_a_store_that_is_away_is_a_retriable_error_and_never_out_of_range(cold):
    here, engine = cold
    await put(here, batch(b"a"))
    engine.is_remote, engine.failure = True, ColdUnavailable("nobody answers")
    (row,) = parts(await ask(here.client(), 0, wait_ms=0))
    assert row.error_code is ErrorCode.kafka_storage_error
    engine.failure = None
    found = b""
    for _try in range(2000):
        found = bytes(parts(await ask(here.client(), 0, wait_ms=0))[0].records or b"")
        if found:
            break
        await asyncio.sleep(0.01)  # an error is answered at once: others have to run, too
    assert b"a" in found


async def test_bytes_that_are_gone_are_an_error_at_once_for_whoever_asks_next(cold):
    here, engine = cold
    make_impatient(here)
    await put(here, batch(b"a"))
    engine.is_remote, engine.failure = True, ColdDamaged("t/00/x is missing: offsets 0 to 1")
    for _ in range(3):
        (row,) = parts(await ask(here.client(), 0, wait_ms=0))
        assert row.error_code is ErrorCode.kafka_storage_error
    assert engine.cold_reads < 20, "it asks again and again"


async def test_a_store_that_hangs_holds_no_local_courier_and_ends_with_an_empty_answer(
    cold, monkeypatch
):
    here, engine = cold
    make_impatient(here)
    await put(here, batch(b"a"))
    engine.is_remote = True
    engine.gate.clear()
    (row,) = parts(await ask(here.client(), 0, wait_ms=0))
    assert row.error_code is ErrorCode.none and not row.records
    engine.gate.set()
