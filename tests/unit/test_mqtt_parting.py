"""A session and its connection part: nothing is lost, nothing is written to a closed socket."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.errors import StorageError
from onelog.protocols.mqtt.packets import Connect, Disconnect, Publish
from onelog.protocols.mqtt.properties import Properties
from tests.support.mqtt import Client, dial, serving, until


async def test_the_state_of_a_closed_session_stays_where_it_was(tmp_path):
    """What arrives while it is being saved is for its next connection."""
    async with serving(tmp_path) as node:
        client = await node.client("c", expiry_s=60)
        await client.subscribe("t", 1)
        session = node.hub.sessions["c"]
        session.close()
        before = session.state()
        publisher = await node.client("p")
        await publisher.publish("t", "x")
        assert session.state() == before


async def test_messages_after_a_goodbye_come_without_dup_to_the_next_connection(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", expiry_s=60)
        publisher = await node.client("p")
        await client.subscribe("t", 1)
        await client.send(Disconnect())
        await until(lambda: not any(c.state.value == "connected" and c.session is not None
                                    and c.session.client_id == "c"
                                    for c in node.hub.connections))  # fmt: skip
        await publisher.publish("t", "x")
        back = await node.client("c", clean=False, expiry_s=60)
        message = await back.message()
        assert (message.payload, message.dup) == (b"x", False)


async def test_an_answer_that_is_due_after_the_connection_ended_harms_nobody(tmp_path):
    """I10: a client that breaks the rules right after a publish ends alone."""
    async with serving(tmp_path) as node:
        for version in (4, 5):
            bad = await node.client(f"bad{version}", version=version)
            await bad.send(Publish(topic="t", payload=b"x", qos=2, packet_id=1))
            await bad.send(Publish(topic="t", payload=b"x", qos=1, packet_id=2))
            bad._writer.write(b"\x00\x00")
        good = await node.client("good")
        await good.subscribe("t", 2)
        assert await good.publish("t", "y", 2) == 0
        assert (await good.take())[-1] in "xy"
        assert not node.broker.troubles.rows()


async def test_a_broker_that_closes_waits_for_a_connection_that_was_just_lost(tmp_path):
    """Its session is saved before the log is closed."""
    async with serving(tmp_path) as node:
        client = await node.client("c", expiry_s=60)
        await client.subscribe("t", 1)
        (connection,) = node.hub.connections
        connection.transport.abort()
        await until(lambda: connection._is_lost)
        await node.hub.close()
        assert connection.gone.is_set()
        assert not node.hub.connections
        record = node.broker.sessions.get("c")
        assert record is not None
        assert record.detached_at_ms is not None


async def test_a_client_that_goes_while_its_session_is_attached_leaves_it_detached(tmp_path):
    """Or it would never expire."""
    async with serving(tmp_path) as node:
        sessions, release, held = node.broker.sessions, asyncio.Event(), asyncio.Event()
        put = sessions._put

        async def slow_put(*row):
            held.set()
            await release.wait()
            await put(*row)

        sessions._put = slow_put
        reader, writer = await dial(node.port)
        client = Client(reader, writer, 5)
        expiry = Properties(session_expiry_s=60)
        await client.send(Connect(client_id="c", version=5, properties=expiry))
        await held.wait()
        (connection,) = node.hub.connections
        connection.transport.abort()
        await until(lambda: connection._is_lost)
        await client.drop()
        sessions._put = put
        release.set()
        await until(lambda: not node.hub.connections)
        assert len(node.broker.sessions) == 0
        record = node.broker.sessions.get("c")
        assert record is not None
        assert record.detached_at_ms is not None


async def test_a_connection_that_ended_leaves_no_timer_behind(tmp_path):
    """I8: what breaks the rules is forgotten when its socket is."""
    async with serving(tmp_path) as node:
        bad = await node.client("bad")
        (connection,) = node.hub.connections
        assert connection.deadline.is_running
        bad._writer.write(b"\x00\x00")
        await until(lambda: connection.state.value == "closed")
        assert not connection.deadline.is_running


@pytest.mark.parametrize("error", [StorageError("the disk is gone"), RuntimeError("a fault")])
async def test_a_session_that_could_not_be_saved_is_let_go_of(tmp_path, monkeypatch, error):
    """Nobody waits for a publish that was never begun: the client's next connection is answered."""
    async with serving(tmp_path) as node:
        client = await node.client("c", expiry_s=60)
        save = node.broker.cursors.save

        async def fail(*_cursors):
            raise error

        monkeypatch.setattr(node.broker.cursors, "save", fail)
        await client.send(Publish(topic="t", payload=b"x", qos=2, packet_id=1))
        await client.receive(Disconnect)
        monkeypatch.setattr(node.broker.cursors, "save", save)
        back = await node.client("c", clean=False, expiry_s=60)
        assert back.connack.session_present
        assert await back.publish("t", "x", 2) == 0
        (partition,) = (p for p in node.broker.streams.get("main").partitions if p.high_watermark)
        assert partition.high_watermark == 1
