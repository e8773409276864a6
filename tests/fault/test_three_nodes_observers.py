"""Does a client of three real nodes get all that is written, wherever it lies, when a node is
killed?

Records lie on one node or on two, so that every node reads partitions that it has no replica of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from onelog.base.errors import OnelogError
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Connack, Connect
from onelog.protocols.mqtt.properties import Properties
from tests.support.etcd import needs_etcd
from tests.support.mqtt import Client, dial
from tests.support.three_nodes import NodeProcess, ThreeNodes

pytestmark = [needs_etcd, pytest.mark.fault]

TOPICS = [f"t{n}" for n in range(9)]
TRIES_S = 60.0
GONE = (OSError, EOFError, asyncio.IncompleteReadError)

CLIENTS: list[Client] = []
"""All that were made in a test."""

Got = dict[str, list[str]]


@contextlib.contextmanager
def cluster(folder: Path, factor: int) -> Iterator[ThreeNodes]:
    """Three nodes, and a stream for each topic that lies on so many of them."""
    with ThreeNodes(folder, "internal.partitions=6") as nodes:
        admin = nodes.admin()
        made = admin.create_topics([NewTopic(topic, 1, factor) for topic in TOPICS])
        for topic in TOPICS:
            made[topic].result(30)
        for topic in TOPICS:
            nodes.until(partial(nodes.is_synced, topic, factor), TRIES_S, f"{topic} is not whole")
        yield nodes


async def attached(node: NodeProcess, name: str) -> Client:
    """A kept session that this node serves; the broker says where others are."""
    packet = Connect(
        client_id=name,
        version=5,
        clean_start=False,
        keep_alive_s=60,
        properties=Properties(session_expiry_s=600),
    )
    reader, writer = await dial(node.ports["mqtt"])
    client = Client(reader, writer, 5)
    CLIENTS.append(client)
    writer.write(encode_packet(packet, 5))
    client.connack = await client.receive(Connack)
    if client.connack.reason != 0:
        raise ConnectionError(f"{name}: {client.connack.reason!r}")
    return client


async def dropped(work: Coroutine[None, None, None]) -> None:
    """Work whose clients all end with it."""
    try:
        await work
    finally:
        for client in CLIENTS:
            await client.drop()
        CLIENTS.clear()


async def again(nodes: ThreeNodes, name: str) -> Client:
    """The client's session, at whichever node serves it now."""
    async with asyncio.timeout(TRIES_S):
        while True:
            for node in nodes.nodes:
                with contextlib.suppress(OnelogError, KeyError, TimeoutError, *GONE):  # no port yet
                    return await attached(node, name)
            await asyncio.sleep(0.1)


async def owned(node: NodeProcess, prefix: str) -> tuple[str, Client]:
    """The first name with a prefix whose session this node serves, and its client."""
    async with asyncio.timeout(TRIES_S):
        while True:
            for number in range(40):
                with contextlib.suppress(OnelogError, *GONE):
                    return f"{prefix}{number}", await attached(node, f"{prefix}{number}")


async def granted(client: Client, text: str) -> None:
    """Subscribed, as soon as the node has copies of everything."""
    async with asyncio.timeout(TRIES_S):
        while await client.subscribe(text, 1) != 1:  # noqa: ASYNC110 - it asks again
            await asyncio.sleep(0.1)


async def take_all(client: Client, got: Got) -> None:
    """Acknowledge and note messages until the connection ends."""
    while True:
        try:
            packet = await client.message()
        except TimeoutError:  # nothing came for long: it reads on
            continue
        await client.acknowledge(packet)
        got[packet.topic].append(packet.payload.decode())


@contextlib.asynccontextmanager
async def taking(client: Client, got: Got) -> AsyncIterator[None]:
    task = asyncio.create_task(take_all(client, got))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Writer:
    """Publishes numbers to every topic, in order, each until it is answered."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.said = 0
        self.is_over = False

    async def run(self) -> None:
        _name, client = await owned(self.node, "writer")
        while not self.is_over:
            for topic in TOPICS:
                await self._say(client, topic)
            self.said += 1

    async def _say(self, client: Client, topic: str) -> None:
        async with asyncio.timeout(TRIES_S):
            while await client.publish(topic, str(self.said)) != 0:  # noqa: ASYNC110 - it asks again
                await asyncio.sleep(0.05)

    async def until(self, said: int) -> None:
        async with asyncio.timeout(TRIES_S):
            while self.said < said:  # noqa: ASYNC110 - it publishes meanwhile
                await asyncio.sleep(0.05)


async def log_of(node: NodeProcess, ends: dict[str, str]) -> Got:
    """All that was ever written, as a replay at some node reads it."""
    _name, client = await owned(node, "judge")
    await granted(client, "$replay/earliest/+")
    found: Got = defaultdict(list)
    async with taking(client, found):
        await all_there(found, ends)
    return found


async def all_there(got: Got, ends: dict[str, str]) -> None:
    async with asyncio.timeout(TRIES_S):
        while not all(end in got[topic] for topic, end in ends.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def check(got: Got, log: Got, said: int) -> None:
    """Every topic has what the log has: nothing is lost, doubled or out of order."""
    for topic in TOPICS:
        numbers = [str(n) for n in range(said)]
        # What was in doubt while a leader was lost may lie in the log twice (ADR 96).
        assert list(dict.fromkeys(log[topic])) == numbers
        assert got[topic] == log[topic], topic


async def lose_a_leader(nodes: ThreeNodes) -> None:
    reading, victim, writing = nodes.nodes
    others = (reading, writing)
    got: dict[int, Got] = {node.number: defaultdict(list) for node in others}
    writer = Writer(writing)
    async with contextlib.AsyncExitStack() as stack:
        for node in others:
            _name, client = await owned(node, "reader")
            await granted(client, "+")
            await stack.enter_async_context(taking(client, got[node.number]))
        task = asyncio.create_task(writer.run())
        await writer.until(20)
        await asyncio.to_thread(victim.kill)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(victim.restart)
        await writer.until(writer.said + 20)
        writer.is_over = True
        await task
        ends = dict.fromkeys(TOPICS, str(writer.said - 1))
        for node in others:
            await all_there(got[node.number], ends)
        log = await log_of(reading, ends)
        for node in others:
            check(got[node.number], log, writer.said)


@pytest.mark.parametrize("factor", [1, 2])
def test_a_leader_that_is_killed_loses_and_doubles_nothing_for_readers_elsewhere(
    tmp_path: Path, factor: int
) -> None:
    with cluster(tmp_path / "nodes", factor) as nodes:
        asyncio.run(dropped(lose_a_leader(nodes)))


async def lose_a_reader(nodes: ThreeNodes) -> None:
    reading, writing, _third = nodes.nodes
    got: Got = defaultdict(list)
    writer = Writer(writing)
    name, client = await owned(reading, "reader")
    await granted(client, "+")
    task = asyncio.create_task(writer.run())
    async with taking(client, got):
        await writer.until(20)
        await asyncio.to_thread(reading.kill)
    # Its shard is led by another node, which observes in turn: also what lay on the killed one.
    restarting = asyncio.create_task(asyncio.to_thread(reading.restart))
    back = await again(nodes, name)
    assert back.connack.session_present
    async with taking(back, got):
        await writer.until(writer.said + 20)
        writer.is_over = True
        await task
        ends = dict.fromkeys(TOPICS, str(writer.said - 1))
        await all_there(got, ends)
    await restarting
    for topic in TOPICS:
        # A crash sends again what it does not know to be acknowledged.
        assert list(dict.fromkeys(got[topic])) == [str(n) for n in range(writer.said)], topic


def test_a_session_whose_node_is_killed_goes_on_where_it_was_at_another(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path / "nodes", 1) as nodes:
        asyncio.run(dropped(lose_a_reader(nodes)))
