"""Records that are not what they seem: no protocol stops over them, now or at the next start."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from onelog.broker import LOCAL, Broker, Message, StreamConfig, live_sources
from onelog.kernel import scan_batches
from onelog.protocols.kafka.views.news import News
from onelog.protocols.kafka.views.places import ShownPartition
from onelog.queues.following import Follower
from onelog.queues.queue import Queue
from onelog.record.batch import build_batch
from tests.conformance.amqp_raw import RawChannel
from tests.support import amqp, mqtt
from tests.support.brokers import home_of, put_batch, running, say
from tests.unit.test_amqp_idle_queue import on

BAD = ((b"~bc", b'["\xff"]'), (b"~nq", b'["\xfe"]'), (b"~ex", b"soon"), (b"~ah", b"\x09x"))


async def write(broker: Broker, *batches: bytes) -> None:
    """Append batches as one write, as a Kafka producer's."""
    await put_batch(broker, broker.streams.get("s"), 0, bytearray(b"".join(batches)))


def rows(*values: str, headers: Any = ()) -> list[Any]:
    return [(None, b"k", value.encode(), headers, 0) for value in values]


def declare(channel: RawChannel) -> None:
    channel.queue("q", durable=True)
    channel.bind("q", "amq.topic", "a.#")


@pytest.mark.parametrize("codec", [0, 1])
async def test_bad_reserved_headers_stop_neither_routing_nor_the_next_start_of_amqp(
    tmp_path: Path, codec: int
) -> None:
    """A1: a header of a Kafka producer ended AMQP's routing, and every later start."""
    async with amqp.serving(tmp_path / "live") as node:
        await node.broker.streams.create(StreamConfig(name="s", captures=("a/b",)))
        await on(node, declare)
        batch = build_batch([*rows("1"), *rows("bad", headers=BAD), *rows("2")], codec=codec)
        await write(node.broker, batch)
        await write(node.broker, build_batch(rows("3")))
        assert node.broker.troubles.rows() == []
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    # Everything is routed again, the bad one among them.
    async with amqp.serving(tmp_path / "crashed") as node:
        await write(node.broker, build_batch(rows("4")))
        found = await on(node, lambda channel: channel.all("q"))
        assert found == ["1", "bad", "2", "3", "4"]
        assert node.broker.troubles.rows() == []


@pytest.mark.parametrize("codec", [0, 1])
async def test_a_record_that_cannot_be_routed_is_left_out_now_and_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    real = Follower.queues_for

    def queues_for(self: Follower, record: Any) -> Any:
        if record.value == b"bad":
            raise ValueError("a fault that nobody knows of yet")
        return real(self, record)

    monkeypatch.setattr(Follower, "queues_for", queues_for)
    look = ((b"~ex", b"9999999999999"),)  # so that each is looked at by itself
    async with amqp.serving(tmp_path / "live") as node:
        await node.broker.streams.create(StreamConfig(name="s", captures=("a/b",)))
        await on(node, declare)
        await write(node.broker, build_batch(rows("1", "bad", "2", headers=look), codec=codec))
        assert len(node.broker.troubles.rows()) == 1
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    async with amqp.serving(tmp_path / "crashed") as node:
        assert node.broker.troubles.count("amqp-routing") == 1
        found = await on(node, lambda channel: channel.all("q"))
        assert found == ["1", "2"]


async def test_a_queue_that_raises_costs_no_other_queue_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Queue.take_in_run

    def take_in_run(self: Queue, place: int, count: int) -> None:
        if self.name == "broken":
            raise ValueError("no runs today")
        real(self, place, count)

    monkeypatch.setattr(Queue, "take_in_run", take_in_run)

    def declare_both(channel: RawChannel) -> None:
        for name in ("broken", "q"):
            channel.queue(name, durable=True)
            channel.bind(name, "amq.topic", "#")

    async with amqp.serving(tmp_path) as node:
        await on(node, declare_both)
        messages = [Message("a/b", b"%d" % number) for number in range(5)]
        await node.broker.publish_many(messages, principal=LOCAL)
        for name in ("q", "broken"):
            found = await on(node, lambda channel, name=name: channel.all(name))
            assert found == ["0", "1", "2", "3", "4"]
        assert node.broker.troubles.count("amqp-queue") == 1


async def test_a_retained_record_and_a_compressed_batch_in_one_write_both_arrive(
    tmp_path: Path,
) -> None:
    """A2: MQTT's live feed stood still until the next start."""
    async with mqtt.serving(tmp_path) as node:
        await node.broker.streams.create(StreamConfig(name="s", captures=("a/b",)))
        client = await node.client("c")
        await client.subscribe("a/#")
        kept = build_batch(rows("kept", headers=((b"~r", b"1"),)))
        packed = build_batch(rows("packed", headers=((b"~r", b"1"),)), codec=1, base_offset=1)
        stream = node.broker.streams.get("s")
        data = bytearray(kept + packed)
        assert len(scan_batches(data)) == 2
        stream.partitions[0].append_checked(data)
        await node.broker.publish(Message("a/b", b"after"), principal=LOCAL)
        assert await client.take(3) == ["kept", "packed", "after"]
        assert node.broker.troubles.rows() == []
        late = await node.client("late")
        await late.subscribe("a/b")
        assert await late.take(1) == ["packed"]


async def test_a_connection_that_cannot_be_written_to_is_ended_and_the_others_get_theirs(
    tmp_path: Path,
) -> None:
    async with mqtt.serving(tmp_path) as node:
        bad, good = await node.client("bad"), await node.client("good")
        for client in (bad, good):
            await client.subscribe("a")

        def broken(_chunk: bytes) -> None:
            raise RuntimeError("the handler is closed")

        node.hub.sessions["bad"].output.writer = broken
        await node.broker.publish(Message("a", b"1"), principal=LOCAL)
        assert await good.take(1) == ["1"]
        async with asyncio.timeout(10):
            await node.gone("bad")
        assert node.broker.troubles.count("mqtt-session") == 1


async def test_streams_that_come_and_go_use_amqps_numbers_again_while_a_queue_holds_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B: AMQP failed at the 65,536th partition of a process's life."""
    monkeypatch.setattr(live_sources, "GONE_MAX", 4)
    async with amqp.serving(tmp_path) as node:
        await on(node, declare)
        broker, live = node.broker, node.hub.queues.follower.live
        known = len(live.keys)
        for number in range(30):
            await broker.streams.create(StreamConfig(name=f"s{number}", captures=("a/b",)))
            await broker.publish(Message("a/b", b"%d" % number), principal=LOCAL)
            if number == 0:
                await broker.streams.delete("s0")  # its message waits in the queue
                continue
            assert await on(node, lambda channel: channel.all("q")) == [str(number)]
            await broker.streams.delete(f"s{number}")
        assert len(live.keys) <= known + 8
        assert broker.troubles.rows() == []


async def test_one_who_waits_for_a_view_and_raises_keeps_nobody_from_being_told(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        stream, log = home_of(broker, "a/b")
        news, told = News(broker.troubles), []

        def broken(_error: object) -> None:
            raise RuntimeError("a waiter")

        for callback in (broken, told.append):
            news.wait(ShownPartition(stream, log), b"a/b", int(log.end_offset), callback)
        await say(broker, "a/b", "x")
        assert told == [None]
        assert broker.troubles.count("view-waiter") == 1


async def test_mqtt_holds_the_number_of_a_deleted_stream_while_a_message_of_it_is_in_flight(
    tmp_path: Path,
) -> None:
    async with mqtt.serving(tmp_path) as node:
        stream = await node.broker.streams.create(StreamConfig(name="s", captures=("a/b",)))
        source = node.hub.live.find((stream.record.id, 0))
        assert source is not None
        client = await node.client("c")
        await client.subscribe("a/b", 1)
        await client.publish("a/b", "x")
        message = await client.message()
        await node.broker.streams.delete("s")
        assert node.hub.release({source.number}) == {source.number}
        await client.acknowledge(message)
        await client.sync()
        assert node.hub.release({source.number}) == set()
