"""Wills that wait outlive a broker that stops and starts again."""

from __future__ import annotations

import asyncio

import pytest

from onelog.broker import BrokerSettings, Durability, StreamConfig
from onelog.log.syncer import Syncer
from onelog.protocols.mqtt.packets import Disconnect, Will
from onelog.protocols.mqtt.properties import Properties
from onelog.record.batch import iterate_batches
from tests.support.mqtt import Client, Node, serving, until

FSYNC = BrokerSettings(
    main=StreamConfig(name="main", captures=("#",), partitions=4, durability=Durability.FSYNC),
    checkpoint_interval_s=3600.0,
)
KEPT = {"clean": False, "expiry_s": 600}


def will(delay_s: int | None = None) -> Will:
    return Will(topic="t", payload=b"gone", qos=1, properties=Properties(will_delay_s=delay_s))


async def watcher(node: Node) -> Client:
    client = await node.client("watcher", **KEPT)
    await client.subscribe("t", 1)
    return client


async def test_a_will_that_waits_is_published_after_a_restart(tmp_path):
    async with serving(tmp_path) as node:
        await watcher(node)
        device = await node.client("device", will=will(1), **KEPT)
        await device.drop()
        await node.gone("device")
    async with serving(tmp_path) as node:
        watching = await watcher(node)
        assert await watching.take() == ["gone"]
    async with serving(tmp_path) as node:
        assert await (await watcher(node)).is_silent()


async def test_a_will_of_before_a_restart_waits_no_longer_than_its_session_lives(tmp_path):
    async with serving(tmp_path) as node:
        await watcher(node)
        device = await node.client("device", will=will(600), clean=False, expiry_s=1)
        await device.drop()
        await node.gone("device")
    async with serving(tmp_path) as node:
        watching = await watcher(node)
        assert await watching.take() == ["gone"]


async def test_a_client_that_is_back_after_a_restart_takes_its_will_back(tmp_path):
    async with serving(tmp_path) as node:
        await watcher(node)
        device = await node.client("device", will=will(1), **KEPT)
        await device.drop()
        await node.gone("device")
    async with serving(tmp_path) as node:
        watching = await watcher(node)
        device = await node.client("device", **KEPT)
        await asyncio.sleep(1.2)  # the delay
        assert await watching.is_silent()
    async with serving(tmp_path) as node:
        assert await (await watcher(node)).is_silent()


async def test_a_clean_start_after_a_restart_publishes_the_will_that_waited(tmp_path):
    async with serving(tmp_path) as node:
        await watcher(node)
        device = await node.client("device", will=will(600), **KEPT)
        await device.drop()
        await node.gone("device")
    async with serving(tmp_path) as node:
        watching = await watcher(node)
        await node.client("device", clean=True)
        assert await watching.take() == ["gone"]


@pytest.mark.warm
async def test_a_goodbye_voids_the_will_before_the_session_is_saved(tmp_path, monkeypatch):
    """MQTT5 3.14.4-3: a broker that dies while it saves has nothing to publish."""
    async with serving(tmp_path) as node:
        may_save, close_cursor = asyncio.Event(), node.broker.cursors.close_cursor

        async def close_later(cursor):
            await may_save.wait()
            await close_cursor(cursor)

        monkeypatch.setattr(node.broker.cursors, "close_cursor", close_later)
        polite = await node.client("polite", will=will(), **KEPT)
        assert wills_in(node) == {b"polite"}
        await polite.send(Disconnect())
        await until(lambda: not wills_in(node))
        may_save.set()


def wills_in(node: Node) -> set[bytes]:
    """Whose wills the log holds."""
    partition = node.broker.streams.get("~wills").partitions[0]
    found: set[bytes] = set()
    for _info, rows in iterate_batches(partition.read(partition.start_offset, 1 << 20)):
        for at in range(len(rows)):
            (found.discard if rows.value(at) is None else found.add)(rows.key(at))
    return found


async def test_a_will_that_goes_out_at_a_stop_goes_out_once(tmp_path, monkeypatch):
    """The stop waits until it is durable and forgotten, also when the disk takes its time."""
    async with serving(tmp_path, settings=FSYNC) as node:
        start, loop = Syncer.start, asyncio.get_running_loop()
        monkeypatch.setattr(Syncer, "start", lambda *work: loop.call_later(0.05, start, *work))
        for number in range(3):
            await node.client(f"device{number}", will=will(), expiry_s=600 * (number % 2))
        await node.hub.close()
        assert not node.hub.wills._kept
        monkeypatch.undo()
    for _start in range(2):
        async with serving(tmp_path) as node:
            reader = await node.client("reader")
            await reader.subscribe("$replay/earliest/t", 0)
            assert await reader.take(3) == ["gone"] * 3
            assert await reader.is_silent()
