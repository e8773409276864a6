"""Does a client of MQTT publish to every partition of a cluster, whatever its QoS, as if its own
node led all of them?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.base.clock import SystemClock
from onelog.base.limits import FORWARD_WINDOW_BYTES
from onelog.cluster import forwards
from onelog.metadata.local import LocalStore
from onelog.net import Gate, GateLimits, bind, start_listener
from onelog.protocols.mqtt.connection import Connection
from onelog.protocols.mqtt.hub import Hub
from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.packets import Disconnect, Publish, Pubrec, Will
from onelog.record.batch import iterate_batches
from onelog.security.authenticator import Authenticator
from tests.batches import read_all
from tests.support.cluster_nodes import Nodes, OneNode
from tests.support.mqtt import Client, Node, connect, until

KEPT = {"clean": False, "expiry_s": 600}


@contextlib.asynccontextmanager
async def mqtt_at(node: OneNode) -> AsyncIterator[Node]:
    """MQTT on a node of a cluster."""
    clock = SystemClock()
    authenticator = await Authenticator.open(node.broker.store, clock)
    hub = Hub(node.broker, authenticator, MqttLimits(), clock)
    await hub.open()
    listener = bind("mqtt", "127.0.0.1", 0)
    served = await start_listener(
        listener, lambda peer: Connection(hub, peer), Gate(GateLimits(), clock),
        handshake_timeout_s=10,
    )  # fmt: skip
    made = Node(node.broker, hub, listener.port)
    try:
        yield made
    finally:
        for client in made.clients:
            await client.drop()
        served.close()
        await served.wait_closed()
        await hub.close()
        await authenticator.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Nodes, list[Node]]]:
    """Three nodes with MQTT; whoever is named `c<n>-...` is owned by node n."""
    store = await LocalStore.open(tmp_path / "cluster.db", SystemClock())
    nodes = Nodes(tmp_path, store)
    await nodes.start(1, 2, 3)
    await nodes.until_whole("main")
    async with contextlib.AsyncExitStack() as stack:
        yield nodes, [await stack.enter_async_context(mqtt_at(nodes[n])) for n in (1, 2, 3)]
    for number in [*nodes.running]:
        await nodes.stop(number)
    await store.close()


async def client_of(node: Node, name: str = "c", **options) -> Client:
    """A client whose owner is this node."""
    shards = node.broker.shards
    await until(lambda: bool(shards.owned))
    found = next(f"{name}{n}" for n in range(1000) if shards.leads(f"{name}{n}".encode()))
    return await node.client(found, **options)


def topics_led_by(nodes: Nodes, node: OneNode, count: int = 1, *, led: bool = True) -> list[str]:
    """Topics of `main` that a node leads, or does not lead."""
    stream = node.broker.streams.get("main")
    mine = node.leads("main")
    names = (f"t/{n}" for n in range(1000))
    found = [t for t in names if (stream.partition_of(t.encode()).id in mine) == led]
    return found[:count]


def payloads(nodes: Nodes, topic: str) -> list[bytes]:
    """What the leader of a topic has of it."""
    any_node = next(iter(nodes.running.values()))
    number = int(any_node.broker.streams.get("main").partition_of(topic.encode()).id)
    leader = nodes.leader_of("main", number)
    data = read_all(leader.broker.streams.get("main").local[number].log)
    rows = [
        slices.record(index)
        for _info, slices in iterate_batches(data)
        for index in range(len(slices))
    ]
    return [value for _offset, _time, key, value, _headers in rows if key == topic.encode()]


async def test_every_qos_gets_to_every_partition_and_to_subscribers_elsewhere(cluster) -> None:
    nodes, served = cluster
    topics = [f"t/{n}" for n in range(24)]
    readers = [await client_of(node, "reader") for node in served]
    for reader in readers:
        assert await reader.subscribe("t/#", 1) == 1
    sent: dict[str, list[str]] = {topic: [] for topic in topics}
    for number, node in enumerate(served):
        client = await client_of(node, "writer")
        for turn, topic in enumerate(topics):
            payload = f"{number}.{turn}"
            assert await client.publish(topic, payload, qos=turn % 3) == 0
            sent[topic].append(payload)
        await client.sync()
        # QoS 0 has no answer: what comes behind it on its topic shows that it came.
        for topic in topics:
            assert await client.publish(topic, f"{number}.end", qos=1) == 0
            sent[topic].append(f"{number}.end")
    for reader in readers:
        got: dict[str, list[str]] = {topic: [] for topic in topics}
        for _ in range(sum(map(len, sent.values()))):
            message = await reader.message()
            await reader.acknowledge(message)
            got[message.topic].append(message.payload.decode())
        assert got == sent
    assert all(nodes[n].cluster.forwards.sent > 10 for n in (1, 2, 3))


async def test_qos_2_is_stored_once_when_the_link_breaks_behind_it(cluster) -> None:
    nodes, served = cluster
    [topic] = topics_led_by(nodes, nodes[1], led=False)
    client = await client_of(served[0], **KEPT)
    leader = leader_of(nodes, topic)
    keep_answers(leader)
    publishing = asyncio.create_task(client.publish(topic, "once", qos=2))
    await until(lambda: b"once" in payloads(nodes, topic))
    assert not publishing.done()
    forget_answers(leader)
    for pair in leader.cluster.links.pairs.values():
        for connection in list(pair.connections.values()):
            connection.end("cut by the test")
    assert await publishing == 0
    assert payloads(nodes, topic) == [b"once"]
    assert nodes[1].cluster.forwards.repeated >= 1


async def test_a_qos_2_client_that_gets_no_answer_sends_again_and_is_stored_once(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, served = cluster
    monkeypatch.setattr(forwards, "FORWARD_S", 0.5)
    [topic] = topics_led_by(nodes, nodes[1], led=False)
    client = await client_of(served[0], **KEPT)
    leader = leader_of(nodes, topic)
    keep_answers(leader)
    packet = Publish(topic=topic, payload=b"once", qos=2, packet_id=7)
    await client.send(packet)
    assert (await client.receive(Disconnect)).reason == 0x89  # no PUBREC: nobody knows
    await client.drop()
    forget_answers(leader)
    name = next(n for n in map("c{}".format, range(1000))
                if served[0].broker.shards.leads(n.encode()))  # fmt: skip
    await served[0].gone(name)
    again = await connect(served[0].port, name, **KEPT)
    served[0].clients.append(again)
    assert again.connack.session_present
    await again.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7, dup=True))
    assert (await again.receive(Pubrec)).reason == 0
    assert payloads(nodes, topic) == [b"once"]
    assert await again.publish(topic, "next", qos=2) == 0
    assert payloads(nodes, topic) == [b"once", b"next"]


async def test_a_flood_to_a_leader_that_does_not_answer_is_not_read_on(cluster) -> None:
    """I8: 16 MiB and what was read by then."""
    nodes, served = cluster
    [topic] = topics_led_by(nodes, nodes[1], led=False)
    client = await client_of(served[0])
    leader = leader_of(nodes, topic)
    keep_answers(leader)
    count, size = 600, 100_000

    async def flood() -> None:
        for _ in range(count):
            await client.publish(topic, "x" * size, qos=0)
        assert await client.publish(topic, "end", qos=1) == 0

    flooding = asyncio.create_task(flood())
    await until(lambda: len(served[0].hub.routes.crowd) == 1)
    forwarder = nodes[1].cluster.forwards
    held = sum(forwarder._held.values())
    assert FORWARD_WINDOW_BYTES <= held < FORWARD_WINDOW_BYTES + 4 * 1024 * 1024
    await asyncio.sleep(0.2)
    assert sum(forwarder._held.values()) == held
    forget_answers(leader, send=True)
    async with asyncio.timeout(20):
        await flooding
    assert len(payloads(nodes, topic)) == count + 1
    assert not forwarder._held


async def test_wills_and_delayed_messages_go_to_any_partition(cluster) -> None:
    nodes, served = cluster
    reader = await client_of(served[2], "reader")
    assert await reader.subscribe("t/#", 1) == 1
    for number, node in enumerate(served):
        [topic] = topics_led_by(nodes, nodes[number + 1], led=False)
        will = Will(topic=topic, payload=b"will %d" % number, qos=1)
        leaving = await client_of(node, "leaving", will=will)
        await leaving.drop()
        assert await reader.take() == [f"will {number}"]
        client = await client_of(node, "delaying")
        assert await client.publish(f"$delayed/1/{topic}", f"late {number}", qos=1) == 0
        assert await reader.take() == [f"late {number}"]


def leader_of(nodes: Nodes, topic: str) -> OneNode:
    stream = nodes[1].broker.streams.get("main")
    return nodes.leader_of("main", int(stream.partition_of(topic.encode()).id))


def keep_answers(leader: OneNode) -> None:
    """The leader appends and does not answer."""
    traffic = leader.cluster.traffic
    traffic.kept = []
    traffic.answer = lambda sender, answer: traffic.kept.append((sender, answer))


def forget_answers(leader: OneNode, *, send: bool = False) -> None:
    """It answers again; what it kept is lost, unless it is sent now."""
    traffic = leader.cluster.traffic
    del traffic.answer
    for sender, answer in traffic.kept if send else ():
        traffic.answer(sender, answer)
