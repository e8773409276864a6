"""Is a client refused, in its protocol's words, where its node has no copy of what it asks for?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pika
import pika.exceptions
import pytest

from onelog.base.clock import SystemClock
from onelog.base.ids import PartitionId
from onelog.broker import StreamConfig
from onelog.config import Config
from onelog.config.listeners import Listeners, StreamListener
from onelog.log.config import Replication
from onelog.protocols.amqp.server import AmqpServer
from onelog.protocols.mqtt.packets import Suback, Subscribe, Subscription
from onelog.security.authenticator import Authenticator
from tests.support.cluster_nodes import Nodes, OneNode
from tests.support.mqtt import until
from tests.unit.test_forwarding_mqtt import client_of, mqtt_at


@pytest.fixture
async def nodes(nodes: Nodes) -> Nodes:
    """Three nodes; the one partition of the stream `far` lies on one of them."""
    await nodes.start(1, 2, 3)
    config = StreamConfig(
        name="far", captures=("far/#",), partitions=1, replication=Replication(factor=1)
    )
    await nodes[1].broker.streams.create(config)
    await nodes.until_whole("far")
    await nodes.until_whole("main")
    return nodes


def without(nodes: Nodes, stream: str) -> OneNode:
    """A node that has no copy of a stream of one replica."""
    leader = nodes.leader_of(stream, 0)
    return next(node for node in nodes.running.values() if node is not leader)


async def test_mqtt_refuses_a_filter_whose_records_never_come_here(nodes: Nodes) -> None:
    async with mqtt_at(without(nodes, "far")) as there, mqtt_at(nodes.leader_of("far", 0)) as here:
        client, old = await client_of(there), await client_of(there, "old", version=4)
        for text in ("far/x", "far/#", "#", "$share/g/far/x", "$exclusive/far/x"):
            rows = (Subscription(text, 1), Subscription("t/x", 1))
            await client.send(Subscribe(7, rows))
            answer = await client.receive(Suback)
            assert [int(reason) for reason in answer.reasons] == [0x83, 1]
            told = answer.properties.reason_string
            assert told is not None
            assert "far/0" in told
            assert "onelog cluster reassign" in told
            assert await old.subscribe(text, 1) == 0x80
        assert await client.subscribe("$SYS/#") == 0

        served = await client_of(here, "served")
        assert await served.subscribe("far/#", 1) == 1
        assert await client.publish("far/x", "1") == 0
        assert await served.take(1) == ["1"]


async def test_mqtt_serves_the_filter_once_the_node_has_a_copy(nodes: Nodes) -> None:
    node, leader = without(nodes, "far"), nodes.leader_of("far", 0)
    async with mqtt_at(node) as there:
        client = await client_of(there)
        assert await client.subscribe("far/x", 1) == 0x83
        stream = node.broker.streams.get("far")
        both = (leader.number, node.number)
        await leader.cluster.known.reassign(stream.record.id, PartitionId(0), both)
        await nodes.until_whole("far")
        await until(lambda: stream.local[0].stopped is None)
        assert await client.subscribe("far/x", 1) == 1
        assert await client.publish("far/x", "1") == 0
        assert await client.take(1) == ["1"]


@contextlib.asynccontextmanager
async def amqp_at(node: OneNode) -> AsyncIterator[Callable[[Callable[[Any], Any]], Any]]:
    """AMQP on a node; gives what talks to it."""
    authenticator = await Authenticator.open(node.broker.store, SystemClock())
    listeners = Listeners(amqp=StreamListener(enabled=True, port=0))  # type: ignore[arg-type]
    server = AmqpServer(Config(listeners=listeners), SystemClock())
    server.bind()
    await server.start(node.broker, authenticator)
    port = server.listeners[0][0].port

    async def talk(work: Callable[[Any], Any]) -> Any:
        def run() -> Any:
            where = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
            with pika.BlockingConnection(where) as connection:
                return work(connection.channel())

        async with asyncio.timeout(30):
            return await asyncio.to_thread(run)

    try:
        yield talk
    finally:
        await server.close()
        await authenticator.close()


def refusal(work: Callable[[], Any]) -> str:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        work()
    assert caught.value.reply_code == 406
    return caught.value.reply_text


async def test_amqp_refuses_a_binding_and_a_queue_that_get_no_messages(nodes: Nodes) -> None:
    owner = next(node for node in nodes.running.values() if node.broker.shards.leads(b""))
    far = nodes.leader_of("far", 0)
    if far is owner:  # then bring it somewhere else
        stream = owner.broker.streams.get("far")
        other = next(node for node in nodes.running.values() if node is not owner)
        await owner.cluster.known.reassign(stream.record.id, PartitionId(0), (other.number,))
        await until(lambda: owner.broker.cursors.elsewhere("far/x") is not None)

    def bind(channel: Any) -> str:
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "amq.topic", "near.x")
        return refusal(lambda: channel.queue_bind("q", "amq.topic", "far.#"))

    async with amqp_at(owner) as talk:
        assert "far/0" in await talk(bind)


async def test_amqp_refuses_a_queue_whose_messages_lie_elsewhere(nodes: Nodes) -> None:
    owner = next(node for node in nodes.running.values() if node.broker.shards.leads(b""))
    others = tuple(number for number in nodes.running if number != owner.number)
    config = StreamConfig(name="amqp.queues", captures=("$q/#",), partitions=1)
    await owner.broker.streams.create(config, [others])
    await nodes.until_whole("amqp.queues")

    def declare(channel: Any) -> str:
        return refusal(lambda: channel.queue_declare("q", durable=True))

    async with amqp_at(owner) as talk:
        assert "amqp.queues/0" in await talk(declare)
