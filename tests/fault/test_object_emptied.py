"""A broker whose object store was emptied, or is not mounted: it is refused, and is no new broker.

`onelog serve` in a process of its own; the store is a folder.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.mqtt import connect
from tests.support.stored_brokers import StoredBroker, stored_broker

pytestmark = pytest.mark.fault
END_S = 60


async def publish(broker: StoredBroker, text: str) -> None:
    client = await connect(broker.ports["mqtt"], "p")
    assert await client.publish("a/b", text, retain=True) == 0
    await client.disconnect()


@pytest.mark.parametrize("metadata", ["store", ""], ids=["stored-metadata", "own-metadata"])
async def test_a_store_that_was_emptied_is_refused_and_goes_on_when_it_is_back(
    tmp_path: Path, metadata: str
) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    store.mkdir()
    url, chosen = f"file://{store}", f"metadata.url={metadata}"
    with stored_broker(data, url, {}, chosen) as broker:
        await publish(broker, "answered")
        await asyncio.to_thread(broker.stop)
    store.rename(tmp_path / "aside")
    store.mkdir()  # what lies below a mount point
    refused = StoredBroker(data, url, {}, chosen)
    try:
        assert await asyncio.to_thread(refused.process.wait, END_S) != 0, refused.output
        refused.drain()
        assert "Was it emptied, or is it not mounted?" in refused.output, refused.output
        assert "Traceback" not in refused.output, refused.output
        assert not [path for path in store.rglob("*") if path.is_file()], "it began anew there"
    finally:
        refused.kill()
    for path in sorted(store.rglob("*"), reverse=True):
        path.rmdir()
    store.rmdir()
    (tmp_path / "aside").rename(store)
    with stored_broker(data, url, {}, chosen) as broker:
        client = await connect(broker.ports["mqtt"], "reader")
        await client.subscribe("a/b", qos=1)
        assert await client.take(1) == ["answered"]
        await client.disconnect()


async def test_a_store_that_is_unmounted_while_the_broker_runs_gets_nothing_and_loses_nothing(
    tmp_path: Path,
) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    store.mkdir()
    with stored_broker(data, f"file://{store}", {}) as broker:
        await publish(broker, "first")
        store.rename(tmp_path / "aside")
        store.mkdir()
        client = await connect(broker.ports["mqtt"], "p2")
        task = asyncio.create_task(client.publish("a/c", "second", retain=True))
        status, text = 200, ""
        async with asyncio.timeout(END_S):
            while status == 200:
                status, text = await asyncio.to_thread(broker.health)
                await asyncio.sleep(0.2)
        assert "it held objects" in text
        assert not task.done()
        assert not [path for path in store.rglob("*") if path.is_file()]
        store.rmdir()
        (tmp_path / "aside").rename(store)
        assert await asyncio.wait_for(task, END_S) == 0
        reader = await connect(broker.ports["mqtt"], "reader")
        await reader.subscribe("a/#", qos=1)
        assert sorted(await reader.take(2)) == ["first", "second"]
        await reader.disconnect()
        await client.disconnect()
