"""Streams in an object store that is away: what waits for it holds up nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from onelog import object_assembly
from onelog.base.errors import ColdUnavailable
from onelog.base.ids import Offset
from onelog.broker import (
    LOCAL,
    Broker,
    Durability,
    Message,
    PartitionHandle,
    Retention,
    StreamConfig,
)
from onelog.log import leaving, partition
from onelog.log.replay import STATE_NAME
from tests.support.brokers import running
from tests.support.mqtt import until
from tests.support.tiered_brokers import payload, with_store

BOUND_S = 20.0
SMALL = Retention(age_ms=-1, bytes=2000)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that waits for a moment only."""
    made = object_assembly.object_settings
    monkeypatch.setattr(
        object_assembly,
        "object_settings",
        lambda config: replace(made(config), wait_ms=300, linger_ms=0, close_ms=1000),
    )


def stored(name: str = "stored", **fields: object) -> StreamConfig:
    given: dict[str, object] = {
        "name": name,
        "captures": (f"{name}/#",),
        "engine": "object",
        "durability": Durability.FSYNC,
        "segment_bytes": 4096,
        "partitions": 6,
    }
    return StreamConfig(**{**given, **fields})  # type: ignore[arg-type]


def plain(name: str = "plain", **fields: object) -> StreamConfig:
    return stored(name, **{"engine": "segment", "partitions": 1, **fields})


async def write(broker: Broker, name: str, count: int = 40) -> None:
    for number in range(count):
        await broker.publish(Message(f"{name}/{number}", payload(number)), principal=LOCAL)


def starts(broker: Broker, name: str) -> list[int]:
    return [int(one.start_offset) for one in broker.streams.get(name).local]


async def test_retention_and_deletion_do_not_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    settings = with_store(store)
    async with running(tmp_path / "data", settings) as broker:
        for config in (stored(), plain()):
            await broker.streams.create(config)
            await write(broker, config.name)
        store.rename(away)
        for config in (stored(retention=SMALL), plain(retention=SMALL)):
            await broker.streams.alter(config)
        task = asyncio.create_task(broker.publish(Message("stored/1", b"x"), principal=LOCAL))
        async with asyncio.timeout(BOUND_S):
            await broker.maintenance.retain_once()
        assert min(starts(broker, "plain")) > 0, "the stream on the disk waited for the store"
        assert set(starts(broker, "stored")) == {0}
        assert not task.done()
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(ColdUnavailable, match="deleted here"):
                await broker.streams.delete("stored")
            await broker.streams.create(plain("later"))
            await write(broker, "later", 3)
        assert broker.streams.find("stored") is None
        away.rename(store)
        await asyncio.wait([task])
        assert task.exception() is not None  # its stream is gone
    async with running(tmp_path / "data", settings) as broker:
        assert broker.streams.find("stored") is None
        await broker.streams.create(stored())
        assert set(starts(broker, "stored")) == {0}
        await write(broker, "stored", 3)


async def test_retention_goes_on_where_it_was_when_the_store_is_back(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    async with running(tmp_path / "data", with_store(store)) as broker:
        await broker.streams.create(stored(partitions=1))
        await write(broker, "stored")
        left: list[str] = []

        async def hook(handle: object) -> None:
            left.append(str(handle))

        broker.maintenance.after_trim.append(hook)
        store.rename(away)
        await broker.streams.alter(stored(partitions=1, retention=SMALL))
        task = asyncio.create_task(broker.publish(Message("stored/1", b"x"), principal=LOCAL))
        async with asyncio.timeout(BOUND_S):
            await broker.maintenance.retain_once()
            await broker.maintenance.retain_once()
        assert (starts(broker, "stored"), left) == ([0], [])
        away.rename(store)
        await task
        await broker.maintenance.retain_once()
        assert min(starts(broker, "stored")) > 0
        assert len(left) == 1


async def test_a_hook_that_does_not_end_holds_its_own_partition_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "HOOK_S", 0.2)
    async with running(tmp_path / "data", with_store(tmp_path / "store")) as broker:
        for name in ("a", "b"):
            config = plain(name, retention=SMALL)
            await broker.streams.create(config)
            await write(broker, name)
        asked: list[str] = []
        ended = asyncio.Event()

        async def hook(handle: PartitionHandle, _upto: Offset) -> None:
            name = str(handle.stream)
            asked.append(name)
            if name == "a":
                await ended.wait()

        broker.maintenance.before_trim.append(hook)
        async with asyncio.timeout(BOUND_S):
            await broker.maintenance.retain_once()
            await broker.maintenance.retain_once()
        assert starts(broker, "a") == [0]
        assert min(starts(broker, "b")) > 0
        assert asked.count("a") == 1, "it was asked again before it ended"
        ended.set()
        await asyncio.sleep(0)
        await broker.maintenance.retain_once()
        assert min(starts(broker, "a")) > 0


async def test_no_thread_that_syncs_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "SNAPSHOT_BYTES", 1000)
    store, away = tmp_path / "store", tmp_path / "away"
    settings = replace(with_store(store), sync_threads=1)
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(stored(partitions=1))
        await write(broker, "stored", 1)
        (held,) = broker.streams.get("stored").local
        store.rename(away)
        body = Message("stored/1", b"y" * 4000)
        task = asyncio.create_task(broker.publish(body, principal=LOCAL))
        await until(lambda: held.syncing)
        async with asyncio.timeout(BOUND_S):  # the only thread is free
            await broker._syncer.run(lambda: None)
        assert not task.done()
        away.rename(store)
        await asyncio.wait_for(task, BOUND_S)
        # The state is saved all the same, when what it describes is in the store.
        await until(lambda: (held.log.load_state(STATE_NAME) or (0,))[0] == 2)
