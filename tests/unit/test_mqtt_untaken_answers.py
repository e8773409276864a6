"""A peer that sends and does not read: its packets wait until it took its answers (I8)."""

from __future__ import annotations

import asyncio

from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.connection import PACKETS_PER_PASS, Connection
from onelog.protocols.mqtt.packets import Pingreq, Pingresp
from tests.support.mqtt import Client, Node, serving

PINGS = 20 * PACKETS_PER_PASS


async def flooding(node: Node) -> tuple[Client, Connection, list[bytes]]:
    """A client whose pings came while it did not read, and what it was answered since."""
    client = await node.client("c", version=5)
    (connection,) = node.hub.connections
    answered: list[bytes] = []
    send = connection.write

    class Counting(type(connection)):  # type: ignore[misc]
        __slots__ = ()

        def write(self, data: bytes) -> None:
            answered.append(data)
            send(data)

    connection.__class__ = Counting
    connection.pause_writing()
    client._writer.write(encode_packet(Pingreq(), 5) * PINGS)
    await client._writer.drain()
    for _ in range(200):
        await asyncio.sleep(0.001)
    return client, connection, answered


async def test_pings_of_a_peer_that_does_not_read_wait_for_it(tmp_path):
    async with serving(tmp_path) as node:
        client, connection, answered = await flooding(node)
        assert len(answered) <= 2 * PACKETS_PER_PASS
        connection.resume_writing()
        for _ in range(PINGS):
            await client.receive(Pingresp)


async def test_a_peer_that_never_reads_again_may_be_ended(tmp_path):
    async with serving(tmp_path) as node:
        _client, connection, _answered = await flooding(node)
        connection.transport.abort()
        async with asyncio.timeout(10):
            await connection.gone.wait()
