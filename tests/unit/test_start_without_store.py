"""A broker whose store is away when it starts: it is ready, and knows what is retained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from onelog.objects.folder import FolderAccess
from tests.support.brokers import running
from tests.support.mqtt import serving
from tests.support.tiered_brokers import fill, go_cold, part, plant, with_store

START_S = 20.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects that were read."""
    found: list[str] = []
    read = FolderAccess._read

    def counted(self: FolderAccess, name: str, *what: int) -> bytes:
        found.append(name)
        return read(self, name, *what)

    monkeypatch.setattr(FolderAccess, "_read", counted)
    return found


async def test_a_start_without_the_store_is_ready_and_knows_what_is_retained(
    tmp_path: Path, asked: list[str]
) -> None:
    store = tmp_path / "store"
    settings = with_store(store)
    async with serving(tmp_path / "data", settings=settings) as node:
        await node.broker.streams.create(plant())
        publisher = await node.client("p")
        await publisher.publish("plant/state", "on", retain=True)
        await fill(node.broker, 20)
        await go_cold(node.broker)
        assert part(node.broker).local_start_offset == 21
    asked.clear()
    store.rename(tmp_path / "elsewhere")
    async with asyncio.timeout(START_S), serving(tmp_path / "data", settings=settings) as node:
        assert node.broker.troubles.problem() is None
        client = await node.client("greeted")
        await client.subscribe("plant/state", 1)
        message = await client.message()
        assert (message.payload, message.retain) == (b"on", True)
        assert asked == []


async def test_a_first_start_of_mqtt_over_cold_history_waits_for_none_of_it(
    tmp_path: Path, asked: list[str]
) -> None:
    store = tmp_path / "store"
    settings = with_store(store)
    async with running(tmp_path / "data", settings) as broker:
        await broker.streams.create(plant())
        await fill(broker, 20)
        await go_cold(broker)
        assert part(broker).local_start_offset == 20
    asked.clear()
    store.rename(tmp_path / "elsewhere")
    async with asyncio.timeout(START_S), serving(tmp_path / "data", settings=settings) as node:
        assert node.broker.troubles.problem() is None
        client = await node.client("c")
        await client.subscribe("plant/#", 1)
        await client.publish("plant/a", "goes on")
        assert await client.take(1) == ["goes on"]
