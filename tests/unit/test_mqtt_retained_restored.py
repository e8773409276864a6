"""Retained messages in history that came from a bucket: found, the newest of each topic, kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

from onelog.broker import BrokerSettings
from tests.support.brokers import running
from tests.support.mqtt import Node, serving, until
from tests.support.tiered_brokers import fill, go_cold, part, plant, with_store

COUNT = 30


async def make_history(data: Path, settings: BrokerSettings) -> None:
    """A stream with retained messages, all of it in the store only."""
    async with serving(data, settings=settings) as node:
        await node.broker.streams.create(plant())
        publisher = await node.client("p")
        for topic, value in (
            ("plant/kept", "old"), ("plant/cleared", "x"), ("plant/kept", "new"),
            ("plant/cleared", ""), ("plant/again", "y"), ("plant/again", ""), ("plant/again", "z"),
        ):  # fmt: skip
            await publisher.publish(topic, value, retain=True)
        await fill(node.broker, COUNT)
        await go_cold(node.broker)
        assert part(node.broker).local_start_offset == part(node.broker).end_offset == COUNT + 7


async def retained(node: Node, name: str) -> dict[str, str]:
    client = await node.client(name)
    await client.subscribe("plant/#", 1)
    found = {}
    while not await client.is_silent():
        message = await client.message()
        assert message.retain
        found[message.topic] = message.payload.decode()
        await client.acknowledge(message)
    await client.disconnect()
    return found


def is_read(node: Node) -> bool:
    return node.hub.retained.history._task is None


WANTED = {"plant/kept": "new", "plant/again": "z"}


async def test_retained_messages_of_a_restored_stream_are_found_and_outlive_the_store(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    settings = with_store(store)
    await make_history(tmp_path / "lost", settings)
    async with serving(tmp_path / "anew", settings=settings) as node:
        (row,) = await node.broker.objects.restore(("plant",), dry_run=False, take_over=True)
        assert row.outcome == "restored"
        await until(lambda: is_read(node))
        assert await retained(node, "one") == WANTED
    store.rename(tmp_path / "away")
    async with asyncio.timeout(30), serving(tmp_path / "anew", settings=settings) as node:
        assert is_read(node), "history is read once"
        assert await retained(node, "two") == WANTED


async def test_a_message_that_is_retained_or_cleared_meanwhile_counts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings = with_store(store)
    await make_history(tmp_path / "lost", settings)
    async with serving(tmp_path / "anew", settings=settings) as node:
        await node.broker.objects.restore(("plant",), dry_run=False, take_over=True)
        publisher = await node.client("p")
        await publisher.publish("plant/kept", "newest", retain=True)
        await publisher.publish("plant/again", "", retain=True)
        await until(lambda: is_read(node))
        assert await retained(node, "one") == {"plant/kept": "newest"}


async def test_history_that_was_not_read_to_its_end_is_read_after_the_next_start(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    settings = with_store(store)
    await make_history(tmp_path / "lost", settings)
    async with serving(tmp_path / "anew", settings=settings) as node:
        await node.broker.objects.restore(("plant",), dry_run=False, take_over=True)
        store.rename(tmp_path / "away")
        publisher = await node.client("p")
        await publisher.publish("other/topic", "saves the table", retain=True)
    (tmp_path / "away").rename(store)
    async with serving(tmp_path / "anew", settings=settings) as node:
        await until(lambda: is_read(node))
        assert await retained(node, "two") == WANTED


async def test_history_of_a_stream_that_was_restored_before_mqtt_ran_is_read(
    tmp_path: Path,
) -> None:
    settings = with_store(tmp_path / "store")
    await make_history(tmp_path / "lost", settings)
    async with running(tmp_path / "anew", settings) as broker:
        await broker.objects.restore(("plant",), dry_run=False, take_over=True)
    async with serving(tmp_path / "anew", settings=settings) as node:
        await until(lambda: is_read(node))
        assert await retained(node, "one") == WANTED
