"""A stream whose disk stands still delays the answers of its own publishers, and of nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.broker import LOCAL, Broker, BrokerSettings, Durability, Message, StreamConfig
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Puback, Publish
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from tests.conformance.amqp_raw import Basic, Raw
from tests.support import amqp, mqtt
from tests.support.brokers import running

SETTINGS = BrokerSettings(
    main=StreamConfig(name="main", captures=("#",), partitions=1, durability=Durability.FSYNC),
    checkpoint_interval_s=3600.0,
    maintenance_interval_s=3600.0,
)


class Disk:
    """The disk of one stream: its syncs stand still until `go`."""

    def __init__(self, broker: Broker, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
        partition = broker.streams.get(stream).partition(0)
        log = partition.log
        partition.log_end = None  # the kernel would sync without asking `log`
        self._gate = threading.Event()
        self.reached = threading.Event()
        real = type(log).sync

        def sync(own: object) -> object:
            if own is log:
                self.reached.set()
                assert self._gate.wait(30)
            return real(own)  # type: ignore[arg-type]

        monkeypatch.setattr(type(log), "sync", sync)
        begin = type(log).begin_sync

        def begin_sync(own: object, *asked: object) -> bool:
            return own is not log and begin(own, *asked)  # type: ignore[arg-type]

        monkeypatch.setattr(type(log), "begin_sync", begin_sync)

    async def stands_still(self) -> None:
        """Wait until a sync is under way."""
        assert await asyncio.to_thread(self.reached.wait, 10)

    def go(self) -> None:
        """Let the syncs go on."""
        self._gate.set()


@contextlib.asynccontextmanager
async def slow(broker: Broker, stream: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    """The stream's disk stands still for the length of a block."""
    disk = Disk(broker, stream, monkeypatch)
    try:
        yield disk
    finally:
        disk.go()


async def make_streams(broker: Broker) -> None:
    for name in ("slow", "quick"):
        await broker.streams.create(
            StreamConfig(name=name, captures=(f"{name}/#",), durability=Durability.FSYNC)
        )


async def test_a_program_that_publishes_elsewhere_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, SETTINGS) as broker:
        await make_streams(broker)
        async with slow(broker, "slow", monkeypatch) as disk:
            # In one pass, so that one tick writes both.
            waiting = asyncio.ensure_future(
                broker.publish(Message("slow/1", b"x"), principal=LOCAL)
            )
            both = asyncio.ensure_future(
                broker.publish_many(
                    [Message("quick/0", b"x"), Message("slow/0", b"x")], principal=LOCAL
                )
            )
            async with asyncio.timeout(10):
                await broker.publish(Message("quick/1", b"x"), principal=LOCAL)
                await disk.stands_still()
                await broker.publish(Message("quick/2", b"x"), principal=LOCAL)
            assert not waiting.done()
            assert not both.done()
            disk.go()
            async with asyncio.timeout(10):
                assert (await waiting).stream == "slow"
                assert [row.stream for row in await both] == ["quick", "slow"]


def publish(topic: str, packet_id: int, *, plain: bool = True) -> Publish:
    """One that the kernel stages, or one that Python has a look at."""
    properties = NO_PROPERTIES if plain else Properties(content_type="text/plain")
    return Publish(topic=topic, payload=b"x", qos=1, packet_id=packet_id, properties=properties)


async def _send(client: mqtt.Client, *packets: Publish) -> None:
    """All of them in one read."""
    client._writer.write(b"".join(encode_packet(row, client.version) for row in packets))
    await client._writer.drain()


async def _pubacks(client: mqtt.Client, count: int) -> list[tuple[int, int]]:
    found = [await client.receive(Puback) for _ in range(count)]
    return [(row.packet_id, int(row.reason)) for row in found]


async def _is_unanswered(client: mqtt.Client) -> bool:
    await client.sync()
    return not any(isinstance(row, Puback) for row in client._arrived)


@pytest.mark.parametrize("plain", [True, False])
async def test_an_mqtt_client_that_publishes_elsewhere_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    async with mqtt.serving(tmp_path, settings=SETTINGS) as node:
        await make_streams(node.broker)
        async with slow(node.broker, "slow", monkeypatch) as disk:
            behind, mixed, quick = [await node.client(name) for name in "abc"]
            await _send(behind, publish("slow/1", 1, plain=plain))
            await _send(mixed, publish("slow/2", 1, plain=plain))
            await disk.stands_still()
            for number in range(1, 4):
                await _send(mixed, publish("quick/m", 1 + number, plain=plain))
                await _send(quick, publish("quick/q", number, plain=plain))
                assert await _pubacks(quick, 1) == [(number, 0)]
            assert await _is_unanswered(behind)
            assert await _is_unanswered(mixed)
            disk.go()
            assert await _pubacks(behind, 1) == [(1, 0)]
            assert await _pubacks(mixed, 4) == [(number, 0) for number in range(1, 5)]


async def test_pubacks_of_a_client_come_in_the_order_of_its_publishes_whoever_staged_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MQTT5 4.6.0-2: plain ones, others, and refused ones, in one read and in several."""
    async with mqtt.serving(tmp_path, settings=SETTINGS) as node:
        await make_streams(node.broker)
        client = await node.client("c")
        for topic in ("slow/1", "quick/1"):
            await client.publish(topic)
        async with slow(node.broker, "slow", monkeypatch) as disk:
            rows = [
                publish("quick/1", 11),
                publish("slow/1", 12),
                publish("$SYS/refused", 13),
                publish("quick/1", 14, plain=False),
                publish("quick/1", 15),
                publish("slow/1", 16, plain=False),
                publish("$SYS/refused", 17),
            ]
            await _send(client, *rows)
            await disk.stands_still()
            await _send(client, publish("quick/1", 18), publish("$SYS/refused", 19))
            await client.sync()
            disk.go()
            answers = await _pubacks(client, 9)
        assert [packet_id for packet_id, _reason in answers] == list(range(11, 20))
        refused = {packet_id for packet_id, reason in answers if reason >= 0x80}
        assert refused == {13, 17, 19}


async def test_an_amqp_channel_that_publishes_elsewhere_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirms of one channel go out in their order; other channels do not wait."""
    async with amqp.serving(tmp_path, settings=SETTINGS) as node:
        loop = asyncio.get_running_loop()

        def declare(raw: Raw) -> None:
            channel = raw.channel()
            for exchange in ("slow", "quick"):
                channel.exchange("topic", exchange, durable=True)
                channel.queue(f"of-{exchange}", durable=True)
                channel.bind(f"of-{exchange}", exchange, "#")
            channel.confirm()
            for exchange in ("slow", "quick"):
                channel.put(exchange, "k", "first")

        await amqp.talk(node.port, declare)
        streams = node.broker.streams
        name = next(row.name for row in streams.streams() if "slow" in row.name)
        async with slow(node.broker, name, monkeypatch) as disk:

            def work(raw: Raw) -> None:
                behind, quick = raw.channel(), raw.channel()
                behind.confirm()
                quick.confirm()
                behind.publish("slow", "k", "1")
                behind.publish("quick", "k", "2")
                for number in range(1, 6):  # the first has a look, the others are staged
                    quick.publish("quick", "k", str(number))
                    assert quick.expect(Basic.Ack).delivery_tag == number
                assert disk.reached.wait(10)
                assert behind.is_silent(0.1)
                loop.call_soon_threadsafe(disk.go)
                confirmed = 0
                while confirmed < 2:
                    confirmed = behind.expect(Basic.Ack).delivery_tag

            await amqp.talk(node.port, work)
