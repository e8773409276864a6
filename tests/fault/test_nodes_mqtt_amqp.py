"""Do MQTT and AMQP clients find their node of three, and the next one when it stops?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Connack, Connect, Disconnect
from onelog.protocols.mqtt.properties import Properties
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.mqtt import Client, dial
from tests.support.served import Served

pytestmark = [needs_etcd, pytest.mark.fault]

CLIENTS = 12
TRIES_S = 30.0
NODES = 3


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Served]]:
    """Three nodes."""
    etcd = EtcdCluster(tmp_path)
    with contextlib.ExitStack() as closing:
        closing.callback(etcd.close)
        etcd.start()
        keys = (
            'cluster.mode="etcd"',
            f'cluster.etcd.endpoints=["{etcd.urls[0]}"]',
            "cluster.node_ttl_ms=2000",
            "internal.partitions=4",
        )
        found = [Served(tmp_path / f"n{n}", *keys, f"node.id={n}") for n in range(1, NODES + 1)]
        for node in found:
            node.begin()
            closing.callback(node.stop)
        for node in found:
            node.wait()
        yield found


async def connected(port: int, client_id: str) -> tuple[Client, int]:
    """A client that goes where it is sent, and tries again; and the port that served it."""
    async with asyncio.timeout(TRIES_S):
        while True:
            reader, writer = await dial(port)
            client = Client(reader, writer, 5)
            packet = Connect(
                client_id=client_id,
                version=5,
                clean_start=False,
                keep_alive_s=60,
                properties=Properties(session_expiry_s=600),
            )
            writer.write(encode_packet(packet, 5))
            client.connack = await client.receive(Connack)
            if client.connack.reason == 0:
                return client, port
            to = client.connack.properties.server_reference
            if to is not None:
                port = int(to.rpartition(":")[2])
            await asyncio.sleep(0.1)


async def work(nodes: list[Served]) -> None:
    ports = [node.ports["mqtt"] for node in nodes]
    clients = {}
    for n in range(CLIENTS):
        clients[f"c{n}"] = await connected(ports[n % NODES], f"c{n}")
        assert await clients[f"c{n}"][0].subscribe("t/#", 1) == 1
    assert {port for _client, port in clients.values()} == set(ports)
    sent = []
    for n, (client, _port) in enumerate(clients.values()):
        for k in range(16):  # most of these topics are led where the client is not served
            assert await client.publish(f"t/{k}", f"{n}.{k}", qos=1 + k % 2) == 0
            sent.append(f"{n}.{k}")
    for client, _port in clients.values():
        assert sorted(await client.take(len(sent))) == sorted(sent)

    leaving = nodes[0]
    moving = {name for name, (_client, port) in clients.items() if port == ports[0]}
    stopping = asyncio.create_task(asyncio.to_thread(leaving.stop))
    for name in moving:
        told = await clients[name][0].receive(Disconnect)
        assert told.reason in (0x9C, 0x8B)
    await stopping
    for name in moving:
        client, port = await connected(ports[1], name)
        assert client.connack.session_present
        assert port != ports[0]
        await client.drop()
    for client, _port in clients.values():
        await client.drop()


def test_mqtt_clients_find_their_node_and_the_next_one(nodes: list[Served]) -> None:
    asyncio.run(work(nodes))


def owner_of_queues(nodes: list[Served]) -> tuple[Served, Any]:
    """The node that serves AMQP, and a connection to it."""
    for _ in range(100):
        for node in nodes:
            with contextlib.suppress(pika.exceptions.AMQPConnectionError):
                where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp"])
                return node, pika.BlockingConnection(where)
    raise AssertionError("no node serves AMQP")


def test_queues_are_where_a_node_says_and_outlive_its_stop(nodes: list[Served]) -> None:
    owner, connection = owner_of_queues(nodes)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("x", "fanout", durable=True)
    channel.queue_bind("q", "x")
    channel.confirm_delivery()
    for n in range(20):
        channel.basic_publish("x" if n % 2 else "", "q", b"%d" % n)
    connection.close()
    others = [node for node in nodes if node is not owner]
    owner.stop()
    _next, connection = owner_of_queues(others)
    channel = connection.channel()
    found = []
    while len(found) < 20:
        method, _properties, body = channel.basic_get("q", auto_ack=True)
        assert method is not None, found
        found.append(int(body))
    assert sorted(found) == list(range(20))
    channel.confirm_delivery()
    for _ in range(100):  # the new owner leads the exchange in the end
        try:
            channel.basic_publish("x", "", b"on")
        except pika.exceptions.NackError:
            time.sleep(0.1)
        else:
            break
    assert channel.basic_get("q", auto_ack=True)[2] == b"on"
    connection.close()
