"""Is an AMQP client refused where its node has no copy of what it asks for?"""

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
from onelog.security.authenticator import Authenticator
from tests.support.cluster_nodes import Nodes, OneNode
from tests.support.mqtt import until


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
        await until(lambda: any(owner.broker.cursors.elsewhere("far/x")))

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
