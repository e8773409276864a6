"""Exchanges that are gone leave their messages to retention, and nothing behind after that (I8)."""

from __future__ import annotations

import asyncio

import pytest

from onelog.broker import StreamConfig
from onelog.config.streams import StreamDefaults
from tests.conformance.amqp_raw import Exchange, Raw, RawChannel, Refused
from tests.support.amqp import Node, serving

SHORT = StreamDefaults(retention_age_ms=1)


async def on(node: Node, *work) -> None:
    def run() -> None:
        with Raw(node.port) as raw:
            channel = raw.open().channel()
            channel.confirm()
            for step in work:
                step(channel)

    async with asyncio.timeout(30):
        await asyncio.to_thread(run)


def declare(channel: RawChannel) -> None:
    channel.exchange("fanout", "x", durable=True)


def send(channel: RawChannel) -> None:
    channel.put("x", "", "1")


def delete(channel: RawChannel) -> None:
    channel.ask(Exchange.Delete(exchange="x"), Exchange.DeleteOk)


async def tidy(node: Node) -> bool:
    """Let retention do its work; whether the stream of the exchange is still there."""
    await asyncio.sleep(0.01)  # every record is older than it may be
    for _ in range(2):
        await node.broker.maintenance.run_once()
    assert node.broker.maintenance.counters.errors == 0
    return node.broker.streams.find("amqp.x.x") is not None


async def test_the_stream_of_a_deleted_exchange_goes_with_its_last_record(tmp_path):
    async with serving(tmp_path, streams=SHORT) as node:
        await on(node, declare, send, delete)
        assert node.broker.streams.find("amqp.x.x") is not None
        assert not await tidy(node)
        await on(node, declare, send)
        assert await tidy(node)  # it is there again, and used


async def test_what_a_queue_still_needs_keeps_the_stream(tmp_path):
    async with serving(tmp_path, streams=SHORT) as node:

        def bind(channel: RawChannel) -> None:
            channel.bind(channel.queue("q", durable=True), "x")

        def read(channel: RawChannel) -> None:
            assert channel.all("q") == ["1"]

        await on(node, declare, bind, send, delete)
        assert await tidy(node)
    async with serving(tmp_path, streams=SHORT) as node:
        await on(node, read)
        assert not await tidy(node)


async def test_an_exchange_whose_stream_is_somebody_else_s_is_refused(tmp_path):
    """Older versions let others have the name; a message there would be confirmed and lost."""
    async with serving(tmp_path) as node:
        await node.broker.streams.create(StreamConfig(name="amqp.x.x", captures=("plant/#",)))

    def bind(channel: RawChannel) -> None:
        channel.bind(channel.queue("q", durable=True), "x")

    async with serving(tmp_path) as node:
        for step in (bind, send):
            with pytest.raises(Refused, match=r"'amqp\.x\.x' holds other topics"):
                await on(node, declare, step)
