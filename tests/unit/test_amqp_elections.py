"""AMQP on one node of several: the owner of the queues serves it, any other node says who does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.base.errors import Unavailable
from onelog.broker import LOCAL, Broker, Message, Notice
from onelog.broker.live import Live
from onelog.config import Config
from onelog.config.listeners import Listeners, StreamListener
from onelog.protocols.amqp.server import AmqpServer
from onelog.queues.recovery import Recovery
from onelog.security.authenticator import Authenticator
from tests.support.elections import ELECTED, depose, lose, win
from tests.support.kafka_nodes import FakeCluster, place
from tests.support.kafka_nodes import depose as depose_partition
from tests.support.mqtt import until


class Owners(FakeCluster):
    """Shards that this node does not lead are owned by `other`."""

    def __init__(self, is_led: Callable[[bytes], bool]) -> None:
        super().__init__()
        self.is_led = is_led
        self.other = 1

    def owner(self, name: bytes) -> int:
        return 0 if self.is_led(name) else self.other


class Node:
    """Node 0 of three."""

    def __init__(self, broker: Broker, server: AmqpServer, cluster: Owners, port: int) -> None:
        self.broker = broker
        self.server = server
        self.cluster = cluster
        self.port = port

    async def talk(self, work: Callable[[Any], Any], *before: int) -> Any:
        """Do something with a channel, beside the loop that answers; try other ports before."""

        def run() -> Any:
            connection = pika.BlockingConnection([_at(port) for port in (*before, self.port)])
            try:
                return work(connection.channel())
            finally:
                with contextlib.suppress(pika.exceptions.AMQPError):
                    connection.close()

        async with asyncio.timeout(30):
            return await asyncio.to_thread(run)

    async def refusal(self) -> str:
        """How a client is refused."""
        with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
            await self.talk(lambda channel: None)
        return str(caught.value)


def _at(port: int) -> pika.ConnectionParameters:
    return pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)


@contextlib.asynccontextmanager
async def electing(path: Path, *led: int) -> AsyncIterator[Node]:
    """A node that owns these shards at first."""
    clock = SystemClock()
    path.mkdir(parents=True, exist_ok=True)
    broker = await open_broker(path, ELECTED, clock)
    cluster = Owners(broker.shards.leads)
    cluster.places = [place(n, amqp=f"amqp://h{n}:5672") for n in range(3)]
    broker.cluster = cluster
    authenticator = await Authenticator.open(broker.store, clock)
    listeners = Listeners(amqp=StreamListener(enabled=True, port=0))  # type: ignore[arg-type]
    server = AmqpServer(Config(listeners=listeners), clock)
    server.bind()
    await server.start(broker, authenticator)
    for shard in led:
        await broker.shards.lead(shard)
    try:
        yield Node(broker, server, cluster, server.listeners[0][0].port)
    finally:
        await server.close()
        await authenticator.close()
        await broker.close()


def publish(channel: Any, *bodies: str, key: str = "q", exchange: str = "") -> None:
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(delivery_mode=2))


def get(channel: Any) -> list[tuple[str, bool]]:
    """Every waiting message, not acknowledged, and whether it is marked as redelivered."""
    found = []
    while True:
        method, _properties, body = channel.basic_get("q")
        if method is None:
            return found
        found.append((body.decode(), method.redelivered))


async def test_another_node_refuses_clients_with_the_address_of_the_owner(tmp_path: Path) -> None:
    async with electing(tmp_path, 1) as node:
        text = await node.refusal()
        assert "(320)" in text
        assert "h1:5672" in text
        node.cluster.other = -1
        text = await node.refusal()
        assert "(320)" in text
        assert "elected" in text
        assert node.server.desk() is None
        await node.broker.shards.lead(0)
        assert await node.talk(lambda channel: channel.queue_declare("q").method.queue) == "q"
        assert node.server.desk() is not None


async def test_an_owner_that_may_have_been_deposed_opens_no_connection(tmp_path: Path) -> None:
    async with electing(tmp_path, 0) as node:
        node.broker.shards.is_fresh = lambda _shard: False
        text = await node.refusal()
        assert "(320)" in text
        assert "cut off" in text
        node.broker.shards.is_fresh = lambda _shard: True
        assert await node.talk(lambda channel: channel.queue_declare("q").method.queue) == "q"


async def test_a_client_that_is_refused_finds_the_owner_among_its_addresses(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path / "other", 1) as other, electing(tmp_path / "owner", 0) as owner:
        declared = await owner.talk(lambda channel: channel.queue_declare("q"), other.port)
        assert declared.method.queue == "q"


async def test_queues_move_with_their_shard_and_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    served: list[bool] = []
    async with electing(tmp_path, 0) as node:
        node.server.when_served = lambda management: served.append(management is not None)

        def prepare(channel: Any) -> None:
            channel.queue_declare("q", durable=True)
            channel.exchange_declare("x", "fanout", durable=True)
            channel.queue_bind("q", "x")
            publish(channel, "one", "two")
            publish(channel, "three", key="", exchange="x")

        await node.talk(prepare)

        def hold(channel: Any) -> Any:
            _method, _properties, body = channel.basic_get("q")
            assert body == b"one"
            loop.call_soon_threadsafe(held.set)
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
                channel.connection.process_data_events(20)
            return caught.value

        loop, held = asyncio.get_running_loop(), asyncio.Event()
        holding = asyncio.create_task(node.talk(hold))
        await held.wait()
        await lose(node.broker, 0)
        closed = await holding
        assert closed.reply_code == 320
        assert "h1:5672" in closed.reply_text
        assert "(320)" in await node.refusal()
        await win(node.broker, 0)
        assert await node.talk(get) == [("one", True), ("two", True), ("three", True)]
        assert served == [False, True]
        assert not node.broker.troubles.rows()


async def test_what_was_settled_durably_is_not_delivered_again(tmp_path: Path) -> None:
    async with electing(tmp_path, 0) as node:

        def work(channel: Any) -> None:
            channel.queue_declare("q", durable=True)
            publish(channel, "one", "two")
            method, _properties, _body = channel.basic_get("q")
            channel.basic_ack(method.delivery_tag)

        await node.talk(work)
        queue = node.server._hub.vhosts.find("/").queues["q"]  # type: ignore[union-attr]
        await node.broker.cursors.save(queue.cursor)
        await lose(node.broker, 0)
        await win(node.broker, 0)
        assert [body for body, _again in await node.talk(get)] == ["two"]


async def test_queues_that_end_with_their_connection_do_not_outlive_an_election(
    tmp_path: Path,
) -> None:
    async with electing(tmp_path, 0) as node:

        def stay(channel: Any) -> None:
            channel.queue_declare("mine", exclusive=True)
            channel.queue_declare("passing", durable=True, auto_delete=True)
            channel.basic_consume("passing", lambda *_delivery: None)
            loop.call_soon_threadsafe(ready.set)
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
                channel.connection.process_data_events(20)

        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        staying = asyncio.create_task(node.talk(stay))
        await ready.wait()
        await lose(node.broker, 0)
        await staying
        await win(node.broker, 0)

        def look(channel: Any) -> None:
            channel.queue_declare("passing", passive=True)  # its consumer may come back
            with pytest.raises(pika.exceptions.ChannelClosedByBroker):
                channel.queue_declare("mine", passive=True)

        await node.talk(look)


async def test_a_deposed_owner_that_has_not_heard_of_it_confirms_nothing(tmp_path: Path) -> None:
    async with electing(tmp_path, 0) as node:
        await node.talk(lambda channel: channel.queue_declare("q", durable=True))
        depose(node.broker, 0)
        depose_partition(node.broker.streams.get("amqp.queues").partitions[0])  # type: ignore[arg-type]

        def try_it(channel: Any) -> None:
            with pytest.raises(pika.exceptions.NackError):
                publish(channel, "one")

        await node.talk(try_it)
        await node.broker.shards.lose(0)


async def test_an_owner_whose_replicas_are_gone_stops_in_order(tmp_path: Path) -> None:
    async with electing(tmp_path, 0) as node:
        await node.talk(lambda channel: channel.queue_declare("q", durable=True))
        log: Any = node.broker.streams.get("~cursors").partitions[0]
        log.refusal = Unavailable("1 replica is in sync, and 2 have to be: nothing was written")
        queue = node.server._hub.vhosts.find("/").queues["q"]  # type: ignore[union-attr]
        queue.cursor.on_change()
        await node.server.close()
        assert [row.kind for row in node.broker.troubles.rows()] == ["amqp-background"]
        log.refusal = None


async def test_publishes_to_an_exchange_that_another_node_leads_are_refused(tmp_path: Path) -> None:
    async with electing(tmp_path, 0) as node:

        def declare(channel: Any) -> None:
            channel.exchange_declare("x", "fanout", durable=True)
            channel.queue_declare("q", durable=True)
            channel.queue_bind("q", "x")
            publish(channel, "one", key="", exchange="x")

        await node.talk(declare)
        log: Any = node.broker.streams.home("$x/x/k").partitions[0]
        depose_partition(log)
        node.cluster.lead(log, leader=2, epoch=1)

        def with_confirms(channel: Any) -> None:
            with pytest.raises(pika.exceptions.NackError):
                publish(channel, "two", key="", exchange="x")
            publish(channel, "three")  # the connection and the channel go on

        await node.talk(with_confirms)

        def without(channel: Any) -> Any:
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
                for _ in range(2):
                    channel.basic_publish("x", "", b"four")
                channel.connection.process_data_events(20)
            return caught.value

        closed = await node.talk(without)
        assert closed.reply_code == 320
        assert "h2:5672" in closed.reply_text
        assert [body for body, _again in await node.talk(get)] == ["one", "three"]


async def test_a_publisher_that_was_served_learns_that_the_leader_changed(tmp_path: Path) -> None:
    """The kernel stages its publishes by then."""
    async with electing(tmp_path, 0) as node:
        loop, ready, deposed = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def work(channel: Any) -> Any:
            channel.queue_declare("q", durable=True)
            for body in (b"one", b"two", b"three"):
                channel.basic_publish("", "q", body)
            channel.queue_declare("q", passive=True)
            loop.call_soon_threadsafe(ready.set)
            deposed.wait(20)
            channel.basic_publish("", "q", b"four")
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
                channel.connection.process_data_events(20)
            return caught.value

        working = asyncio.create_task(node.talk(work))
        await ready.wait()
        log: Any = node.broker.streams.get("amqp.queues").partitions[0]
        depose_partition(log)
        node.cluster.lead(log, leader=1, epoch=1)
        deposed.set()
        closed = await working
        assert closed.reply_code == 320
        assert "h1:5672" in closed.reply_text


async def test_the_owner_calls_the_leadership_of_its_streams_to_itself(tmp_path: Path) -> None:
    async with electing(tmp_path, 0) as node:
        await node.talk(lambda channel: publish(channel, key="nowhere"))
        await node.talk(lambda channel: channel.queue_declare("q", durable=True))
        log: Any = node.broker.streams.get("amqp.queues").partitions[0]
        node.cluster.asked.clear()
        node.cluster.lead(log, leader=1, epoch=1, replicas=(1, 2, 0))
        for told in node.cluster.on_change:
            told()
        await until(lambda: len(node.cluster.asked) >= 2)
        assert node.cluster.asked[:2] == [("reassign", 0, (0, 1, 2)), ("elect", 0, False)]
        node.cluster.lead(log, leader=0, epoch=2)


async def send(node: Node, body: bytes) -> None:
    """Publish to the topic `t` as other protocols do, and wait for the answer."""
    sent = asyncio.get_running_loop().create_future()
    messages = (Message(topic="t", value=body),)
    node.broker.publisher.publish(messages, Notice(sent.set_result), principal=LOCAL)
    await sent


def bind(channel: Any) -> None:
    """A queue of the topic `t`."""
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.topic", "t")


def drain(channel: Any) -> list[bytes]:
    """All that the queue has."""
    return [body for _ in range(5) if (body := channel.basic_get("q", True)[2]) is not None]


@pytest.mark.parametrize("moment", ["_route_again", "_restore"])
async def test_what_becomes_visible_while_an_owner_opens_comes_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """C9. Other protocols publish meanwhile: the owner of the queues leads none of that."""
    async with electing(tmp_path, 0) as node:
        await node.talk(bind)
        await send(node, b"one")
        await lose(node.broker, 0)
        await send(node, b"two")
        real = getattr(Recovery, moment)
        between = []

        async def meanwhile(recovery: Recovery, *rest: Any) -> None:
            if not between:
                between.append(True)
                await send(node, b"three")
            await real(recovery, *rest)

        monkeypatch.setattr(Recovery, moment, meanwhile)
        await win(node.broker, 0)
        await until(lambda: node.server.desk() is not None)
        assert between
        await send(node, b"four")
        assert await node.talk(drain) == [b"one", b"two", b"three", b"four"]


async def test_an_owner_opens_while_a_copy_of_a_partition_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is there to be read then; what the copy brings comes by the live feed."""
    async with electing(tmp_path, 0) as node:
        await node.talk(bind)
        await send(node, b"one")
        await lose(node.broker, 0)
        await send(node, b"two")
        real, empty = Live.read, []

        def read(live: Live, source: Any, position: int, upto: int) -> Any:
            if live._waits:  # the copy has what it was given once its queues are open
                empty.append(source.key)
                return [], position
            return real(live, source, position, upto)

        monkeypatch.setattr(Live, "read", read)
        await win(node.broker, 0)
        await until(lambda: node.server.desk() is not None)
        assert empty
        assert await node.talk(drain) == [b"one", b"two"]
