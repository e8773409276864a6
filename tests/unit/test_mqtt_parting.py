"""A session and its connection part: nothing is lost, nothing is written to a closed socket."""

from __future__ import annotations

from onelog.protocols.mqtt.packets import Disconnect, Publish
from tests.support.mqtt import serving, until


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
