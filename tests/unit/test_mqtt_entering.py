"""Connections that come for one session while another is still being accepted for it."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.errors import StorageError
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Connack, Connect
from onelog.protocols.mqtt.properties import Properties
from tests.support.mqtt import DEADLINE_S, Client, Node, dial, serving


async def left_with_a_message(node: Node) -> None:
    """Client `c` subscribed, went, and a message waits for it."""
    client = await node.client("c", clean=False, expiry_s=300)
    await client.subscribe("t", qos=1)
    await client.disconnect()
    await node.gone("c")
    other = await node.client("other")
    assert await other.publish("t", "waits") == 0


async def asking(node: Node) -> Client:
    """A client that has sent CONNECT and did not look for an answer yet."""
    reader, writer = await dial(node.port)
    client = Client(reader, writer, 5)
    node.clients.append(client)
    properties = Properties(session_expiry_s=300)
    connect = Connect(
        client_id="c", version=5, clean_start=False, keep_alive_s=60, properties=properties
    )
    writer.write(encode_packet(connect, 5))
    return client


@pytest.mark.parametrize("count", [2, 3, 7])
async def test_the_last_of_several_that_come_at_once_has_the_session(tmp_path, monkeypatch, count):
    """The one before was closed too early, opened its cursor then, and nobody could come in."""
    async with serving(tmp_path) as node:
        await left_with_a_message(node)
        adopt = node.broker.cursors.adopt

        async def adopt_later(cursor, **how):
            await asyncio.sleep(0.05)
            await adopt(cursor, **how)

        monkeypatch.setattr(node.broker.cursors, "adopt", adopt_later)
        clients = [await asking(node) for _ in range(count)]
        async with asyncio.timeout(DEADLINE_S):
            for client in clients[:-1]:
                assert await client._reader.read() in (b"", bytes.fromhex("e0018e"))
        last = clients[-1]
        last.connack = await last.receive(Connack)
        assert last.connack.reason == 0
        assert last.connack.session_present
        assert await last.take() == ["waits"]


async def test_a_peer_that_goes_while_it_is_accepted_leaves_its_session_as_it_was(
    tmp_path, monkeypatch
):
    async with serving(tmp_path) as node:
        await left_with_a_message(node)
        adopt, arrived, go_on = node.broker.cursors.adopt, asyncio.Event(), asyncio.Event()

        async def adopt_later(cursor, **how):
            arrived.set()
            await go_on.wait()
            await adopt(cursor, **how)

        monkeypatch.setattr(node.broker.cursors, "adopt", adopt_later)
        client = await asking(node)
        await arrived.wait()
        entering = next(row for row in node.hub.connections if row.is_entering and row.door)
        await client.drop()
        entering.transport.abort()  # who is being accepted is not read: this is its deadline
        while not entering._is_lost:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        go_on.set()
        await node.gone("c")
        monkeypatch.undo()
        again = await node.client("c", clean=False, expiry_s=300)
        assert again.connack.session_present
        assert await again.take() == ["waits"]


async def test_a_session_outlives_a_connection_that_could_not_be_accepted(tmp_path, monkeypatch):
    async with serving(tmp_path) as node:
        await left_with_a_message(node)

        async def fail(_cursor, **_how):
            raise StorageError("the disk is gone")

        monkeypatch.setattr(node.broker.cursors, "adopt", fail)
        client = await asking(node)
        assert (await client.receive(Connack)).reason >= 0x80
        monkeypatch.undo()
        again = await node.client("c", clean=False, expiry_s=300)
        assert again.connack.session_present
        assert await again.take() == ["waits"]
