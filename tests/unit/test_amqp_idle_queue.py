"""A queue that nobody consumes keeps its own messages, and not those of all the others (I3)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from onelog.broker import LOCAL, Message
from onelog.config.streams import StreamDefaults
from onelog.log.partition import Partition
from onelog.queues.addresses import QUEUES_STREAM
from tests.conformance.amqp_raw import Raw, RawChannel
from tests.support.amqp import Node, serving

BODY = "x" * 1000


async def on(node: Node, work: Callable[[RawChannel], Any]) -> Any:
    def run() -> Any:
        with Raw(node.port) as raw:
            return work(raw.open().channel())

    async with asyncio.timeout(30):
        return await asyncio.to_thread(run)


def use(channel: RawChannel) -> None:
    """Traffic through a queue that is consumed."""
    channel.put("", "busy", *[BODY] * 500)
    assert len(channel.all("busy")) == 500


async def seal(node: Node) -> Partition:
    """Begin a new segment, with a message that no queue takes."""
    log = node.broker.streams.get(QUEUES_STREAM).partitions[0]
    log.log.roll()
    await node.broker.publish(Message("$q/nobody", b""), principal=LOCAL)
    return log


def stored_bytes(partition: Partition) -> int:
    return sum(row.size_bytes for row in partition.log.segments())


@pytest.mark.parametrize("engine", ["segment", "kv"])
async def test_a_forgotten_message_does_not_keep_what_others_were_sent(tmp_path, engine):
    streams = StreamDefaults(engine=engine)
    async with serving(tmp_path, streams=streams) as node:

        def begin(channel: RawChannel) -> None:
            channel.confirm()
            for name in ("idle", "busy"):
                channel.queue(name, durable=True)
            channel.put("", "idle", "forgotten 1")
            use(channel)
            channel.put("", "idle", "forgotten 2")

        await on(node, begin)
        log = node.broker.streams.get(QUEUES_STREAM).partitions[0]
        for _ in range(3):
            log.log.roll()
            await on(node, lambda channel: (channel.confirm(), use(channel)))
        await seal(node)
        before = stored_bytes(log)
        await node.broker.maintenance.run_once()
        assert before > 2_000_000
        assert stored_bytes(log) < 1000
        assert log.start_offset == 0
        await on(node, lambda channel: (channel.confirm(), use(channel)))
    async with serving(tmp_path) as node:
        assert await on(node, lambda channel: channel.count("idle")) == 2
        found = await on(node, lambda channel: channel.all("idle"))
        assert found == ["forgotten 1", "forgotten 2"]
        log = await seal(node)
        await node.broker.maintenance.run_once()
        assert stored_bytes(log) < 200  # the newest


async def test_what_was_handed_out_and_not_acknowledged_comes_again(tmp_path):
    async with serving(tmp_path) as node:

        def work(channel: RawChannel) -> None:
            channel.confirm()
            for name in ("held", "busy"):
                channel.queue(name, durable=True)
            channel.put("", "held", *map(str, range(5)))
            found = [channel.get("held", no_ack=False) for _ in range(5)]
            use(channel)
            channel.ack(found[2].tag)
            channel.sync()
            asyncio.run_coroutine_threadsafe(tidy(node), node.hub.loop).result(20)

        await on(node, work)
        assert await on(node, lambda channel: channel.all("held")) == ["0", "1", "3", "4"]


async def tidy(node: Node) -> None:
    """What maintenance does when a segment was sealed."""
    await seal(node)
    await node.broker.maintenance.run_once()
    assert node.broker.maintenance.counters.thinnings == 1


async def test_a_queue_of_an_exchange_with_many_readers_needs_only_its_own(tmp_path):
    """Records that another queue still waits for stay, whoever consumed them elsewhere."""
    async with serving(tmp_path) as node:

        def work(channel: RawChannel) -> None:
            channel.confirm()
            for name in ("first", "second", "busy"):
                channel.queue(name, durable=True)
            for number in range(100):
                channel.put("", ("first", "second")[number % 2], str(number))
            use(channel)
            assert len(channel.all("first")) == 50
            asyncio.run_coroutine_threadsafe(tidy(node), node.hub.loop).result(20)

        await on(node, work)
        found = await on(node, lambda channel: channel.all("second"))
        assert found == [str(number) for number in range(1, 100, 2)]


@pytest.mark.parametrize("prefetch", [0, 1])
async def test_after_a_crash_what_was_settled_and_thinned_is_not_missed(tmp_path, prefetch):
    """The kept state of a queue is older than the log: it names records that are gone."""
    async with serving(tmp_path / "node") as node:

        def work(channel: RawChannel) -> None:
            channel.confirm()
            for name in ("q", "busy"):
                channel.queue(name, durable=True)
            channel.put("", "q", *map(str, range(10)))
            saved = node.broker.cursors.save(*node.broker.cursors.open_cursors())
            asyncio.run_coroutine_threadsafe(saved, node.hub.loop).result(20)
            found = [channel.get("q", no_ack=False) for _ in range(10)]
            for number in (3, 4, 7):
                channel.ack(found[number].tag)
            use(channel)
            asyncio.run_coroutine_threadsafe(tidy(node), node.hub.loop).result(20)
            shutil.copytree(tmp_path / "node", tmp_path / "crashed")

        await on(node, work)
    async with serving(tmp_path / "crashed") as node:

        def read(channel: RawChannel) -> tuple[list[str], int]:
            channel.qos(prefetch)
            channel.consume("q")
            found = []
            while len(found) < 7:
                message = channel.message()
                found.append(message.text)
                channel.ack(message.tag)
            return found, channel.count("q")

        left = [str(number) for number in range(10) if number not in (3, 4, 7)]
        assert await on(node, read) == (left, 0)


async def test_who_takes_history_is_noticed_and_who_begins_now_is_not(tmp_path):
    """What was gathered before somebody takes history does not say any more what is needed."""
    async with serving(tmp_path) as node:

        def begin(channel: RawChannel) -> None:
            channel.confirm()
            channel.exchange("fanout", "x", durable=True)
            channel.put("x", "", "1")

        def bind(channel: RawChannel, start: str) -> None:
            arguments = {"x-onelog-from": start}
            channel.bind(channel.queue(start, durable=True, arguments=arguments), "x")

        await on(node, begin)
        stream = node.broker.streams.get("amqp.x.x")
        needs = node.broker.cursors.pins.needs(stream.record.id, 0)
        await on(node, lambda channel: bind(channel, "latest"))
        assert await needs.still_hold()
        await on(node, lambda channel: bind(channel, "earliest"))
        assert not await needs.still_hold()
