"""Wills outlive a broker that is killed (MQTT5 3.1.2.5: it may publish them after its restart)."""

from __future__ import annotations

import asyncio
import time

import pytest

from onelog.protocols.mqtt.packets import Will
from onelog.protocols.mqtt.properties import Properties
from tests.fault.mqtt_server import Server, running
from tests.support.mqtt import Client

pytestmark = pytest.mark.fault

KEPT = {"clean": False, "expiry_s": 600}


def will(delay_s: int | None = None) -> Will:
    return Will(topic="t", payload=b"gone", qos=1, properties=Properties(will_delay_s=delay_s))


async def watcher(server: Server) -> Client:
    client = await server.client("watcher", **KEPT)
    await client.subscribe("t", 1)
    return client


async def test_a_will_that_waits_for_its_delay_is_published_after_kill_9(tmp_path):
    async with running(tmp_path) as server:
        watching = await watcher(server)
        device = await server.client("device", will=will(2), **KEPT)
        await device.drop()
        await watching.sync()
        await server.kill()
        await watching.drop()
    async with running(tmp_path) as server:
        watching = await watcher(server)
        assert await watching.take() == ["gone"]
        # Wills are noted in one place, in order: another one that is durable says that it is noted.
        other = await server.client("other", will=will(500), **KEPT)
        await other.drop()
        await watching.drop()
    async with running(tmp_path) as server:  # once
        reader = await server.client("reader")
        await reader.subscribe("$replay/earliest/t", 0)
        assert await reader.take() == ["gone"]
        assert await reader.is_silent()
        await reader.drop()


@pytest.mark.parametrize("expiry_s", [0, 600])
async def test_a_client_that_was_connected_at_kill_9_leaves_its_will(tmp_path, expiry_s):
    async with running(tmp_path) as server:
        watching = await watcher(server)
        device = await server.client("device", will=will(), expiry_s=expiry_s)
        await server.kill()
        await device.drop()
        await watching.drop()
    async with running(tmp_path) as server:
        watching = await watcher(server)
        assert await watching.take() == ["gone"]
        await watching.drop()


async def test_a_client_that_is_back_after_kill_9_takes_its_will_back(tmp_path):
    for delay_s in (2, 8, 32):  # a slow machine needs longer to be back in time
        if await is_back_in_time(tmp_path / str(delay_s), delay_s):
            return
    raise AssertionError("the machine is too slow: the client was never back within the delay")


async def is_back_in_time(path, delay_s: int) -> bool:
    """Whether the client was back before its will was due; then the will is void for good."""
    async with running(path) as server:
        watching = await watcher(server)
        device = await server.client("device", will=will(delay_s), **KEPT)
        goodbye = await server.client("polite", will=will())
        await goodbye.disconnect()
        await watching.sync()
        await server.kill()
        await device.drop()
        await watching.drop()
    opened_s = time.monotonic()
    async with running(path) as server:
        device = await server.client("device", **KEPT)
        in_time = time.monotonic() < opened_s + delay_s
        watching = await watcher(server)
        if in_time:
            await asyncio.sleep(delay_s + 0.2)  # it would be due by then
            assert await watching.is_silent()
        await server.kill()
        await device.drop()
        await watching.drop()
    if in_time:
        async with running(path) as server:  # it came back without a will
            watching = await watcher(server)
            assert await watching.is_silent()
            await watching.drop()
    return in_time


async def test_a_will_that_was_published_and_not_written_down_is_published_again(tmp_path):
    async with running(tmp_path, "mqtt.will_published=exit") as server:
        watching = await watcher(server)
        device = await server.client("device", will=will())
        await device.drop()
        await server.wait()
        await watching.drop()
    async with running(tmp_path) as server:
        watching = await watcher(server)
        assert await watching.take(2) == ["gone", "gone"]
        await watching.drop()
