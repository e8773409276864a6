"""What an operator sees while the store of an object engine fails, and after another broker took
over; and that no thread of the syncer waits for the store."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import ColdUnavailable, StoreFenced
from onelog.base.ids import PartitionId
from onelog.objects import chain
from onelog.objects.memory import MemoryAccess
from onelog.objects.store import ObjectStore, StoreSettings
from onelog.observe.troubles import Troubles
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ChainWatch, engine_samples, watching
from tests.batches import fill
from tests.support.mqtt import until
from tests.support.object_engine import object_engine

KEY = PartitionKey("s-1", PartitionId(0))


class Away(MemoryAccess):
    """A store that can be away."""

    is_away = False
    gets = 0

    def get(self, name):
        self.gets += 1
        if self.is_away:
            raise ColdUnavailable("the store is away")
        return super().get(name)

    def put(self, name, parts, size_bytes, *, is_new=False):
        if self.is_away:
            raise ColdUnavailable("the store is away")
        return super().put(name, parts, size_bytes, is_new=is_new)


async def test_a_store_that_stays_away_blocks_readiness_until_it_is_back(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "AWAY_S", 0.3)
    access = Away(str(uuid.uuid4()))
    store = ObjectStore(StoreSettings(url="memory://x"), access)
    engine = object_engine(store, tmp_path)
    troubles = Troubles(ManualClock())
    ChainWatch(engine.core.chain, "the store", troubles, asyncio.get_running_loop(), engine.upkeep)
    log = engine.open(KEY, LogSettings())
    access.is_away = True
    fill(log, 1)
    answers: list[object] = []
    assert log.begin_sync(lambda *_: None, lambda durable, error: answers.append((durable, error)))
    await until(lambda: engine.core.chain.failing_since is not None)
    assert troubles.problem() is None  # for a moment nobody is alarmed
    await until(lambda: troubles.problem() is not None)
    assert "has not answered" in troubles.problem()
    assert answers == []
    access.is_away = False
    await until(lambda: answers)
    assert answers == [(1, None)]
    await until(lambda: troubles.problem() is None)
    figures = {row.name: row.value for row in engine_samples(engine)}
    assert figures["onelog_chain_bulks_total"] == 1
    assert figures["onelog_chain_retries_total"] >= 1
    assert figures["onelog_object_unsettled_bytes"] == log.size_bytes
    await asyncio.to_thread(engine.close)
    assert troubles.problem() is None


async def test_a_chain_that_another_broker_took_over_blocks_readiness_for_good(tmp_path):
    store = ObjectStore(StoreSettings(url="memory://x"), MemoryAccess(str(uuid.uuid4())))
    old = object_engine(store, tmp_path)
    troubles = Troubles(ManualClock())
    ChainWatch(old.core.chain, "the store", troubles, asyncio.get_running_loop(), old.upkeep)
    log = old.open(KEY, LogSettings())
    new = object_engine(store, tmp_path)
    fill(log, 1)
    answers: list[object] = []
    log.begin_sync(lambda *_: None, lambda durable, error: answers.append((durable, error)))
    await until(lambda: answers)
    assert answers[0][0] is None
    await until(lambda: troubles.problem() is not None)
    assert "another broker took over" in troubles.problem()
    await asyncio.to_thread(old.close)
    await asyncio.to_thread(new.close)


async def test_an_idle_chain_that_another_broker_took_over_is_not_ready_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "LOOK_S", 0.2)
    store = ObjectStore(StoreSettings(url="memory://x"), MemoryAccess(str(uuid.uuid4())))
    old = object_engine(store, tmp_path)
    troubles = Troubles(ManualClock())
    ChainWatch(old.core.chain, "the store", troubles, asyncio.get_running_loop(), old.upkeep)
    log = old.open(KEY, LogSettings())
    fill(log, 1)
    await asyncio.to_thread(log.sync)
    await asyncio.to_thread(old.core.chain.look)
    assert old.core.chain.error is None  # nobody else is there
    new = object_engine(store, tmp_path)
    await until(lambda: troubles.problem() is not None)
    assert "another broker took over" in troubles.problem()
    with pytest.raises(StoreFenced, match="stop one of them"):
        fill(log, 1)
    await asyncio.to_thread(old.close)
    await asyncio.to_thread(new.close)


async def test_an_idle_chain_whose_store_is_away_is_not_ready_until_it_is_back(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(chain, "LOOK_S", 0.1)
    monkeypatch.setattr(watching, "AWAY_S", 0.2)
    access = Away(str(uuid.uuid4()))
    engine = object_engine(ObjectStore(StoreSettings(url="memory://x"), access), tmp_path)
    troubles = Troubles(ManualClock())
    ChainWatch(engine.core.chain, "the store", troubles, asyncio.get_running_loop(), engine.upkeep)
    access.is_away = True
    await until(lambda: troubles.problem() is not None)
    assert "has not answered" in troubles.problem()
    access.is_away = False
    await until(lambda: troubles.problem() is None)
    await asyncio.to_thread(engine.close)


async def test_a_chain_that_writes_asks_for_nothing_besides(tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "LOOK_S", 0.5)
    access = Away(str(uuid.uuid4()))
    engine = object_engine(ObjectStore(StoreSettings(url="memory://x"), access), tmp_path)
    log = engine.open(KEY, LogSettings())
    before = access.gets
    ends = asyncio.get_running_loop().time() + 1.5
    while asyncio.get_running_loop().time() < ends:
        fill(log, 1)
        await asyncio.to_thread(log.sync)
    assert access.gets == before
    await asyncio.to_thread(engine.close)


async def test_upkeep_that_fails_is_a_trouble_until_it_works(tmp_path):
    access = Away(str(uuid.uuid4()))
    store = ObjectStore(StoreSettings(url="memory://x"), access)
    engine = object_engine(store, tmp_path, settle_ms=50)
    troubles = Troubles(ManualClock())
    ChainWatch(engine.core.chain, "the store", troubles, asyncio.get_running_loop(), engine.upkeep)
    log = engine.open(KEY, LogSettings())
    put = access.put

    def failing(name, parts, size_bytes, *, is_new=False):
        if name.startswith("d/"):
            raise ColdUnavailable("no room for data")
        return put(name, parts, size_bytes, is_new=is_new)

    access.put = failing
    fill(log, 1)
    await until(lambda: any(row.kind == watching.UPKEEP for row in troubles.standing()))
    assert troubles.problem() is None  # messages are taken and answered
    access.put = put
    await until(lambda: not troubles.standing())
    await until(lambda: engine.core.unsettled_bytes == 0)
    await asyncio.to_thread(engine.close)
