"""QoS 2 is exactly once, both ways, wherever the broker dies (I4)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from onelog.net.sockets import RING
from onelog.protocols.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from onelog.protocols.mqtt.reasons import ReasonCode
from tests.fault import mqtt_server
from tests.fault.mqtt_server import Server, running
from tests.support.listening import needs_ring
from tests.support.mqtt import DEADLINE_S, Client

pytestmark = pytest.mark.fault


@pytest.fixture(params=["auto", pytest.param(RING, marks=needs_ring)], autouse=True)
def sockets(request, monkeypatch):
    """What makes the sends: no answer may go before what it says is kept, whatever makes it."""
    monkeypatch.setattr(mqtt_server, "BACKEND", request.param)


async def expect_death(client: Client, server: Server) -> None:
    """Read until the broker is gone."""
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.receive(Puback)
        await server.wait()
    await client.drop()


MESSAGE = Publish(topic="t", payload=b"once", qos=2, packet_id=7)
KEPT = {"clean": False, "expiry_s": 600}


async def complete(client: Client, message: Publish) -> None:
    await client.send(message)
    assert (await client.receive(Pubrec)).packet_id == message.packet_id
    await client.send(Pubrel(message.packet_id))
    await client.receive(Pubcomp)


async def history(server: Server) -> list[str]:
    reader = await server.client("reader")
    await reader.subscribe("$replay/earliest/t", 1)
    await reader.publish("t", "end")
    found: list[str] = []
    while "end" not in found:
        found += await reader.take()
    await reader.drop()
    return found[:-1]


@pytest.mark.parametrize("point", ["mqtt.received_saved", "mqtt.received_appended"])
async def test_a_publish_that_was_not_answered_is_published_once(tmp_path, point):
    async with running(tmp_path, f"{point}=exit") as server:
        client = await server.client("device", **KEPT)
        await client.send(MESSAGE)
        await expect_death(client, server)
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        assert client.connack.session_present
        await complete(client, Publish(**{**fields(MESSAGE), "dup": True}))
        await client.drop()
        assert await history(server) == ["once"]


def fields(packet: Publish) -> dict:
    return {name: getattr(packet, name) for name in packet.__struct_fields__}


async def test_a_publish_that_was_answered_and_comes_again_is_published_once(tmp_path):
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        await client.send(MESSAGE)
        await client.receive(Pubrec)
        await server.kill()
        await client.drop()
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        await complete(client, Publish(**{**fields(MESSAGE), "dup": True}))
        await client.drop()
        assert await history(server) == ["once"]


async def test_many_in_flight_are_each_published_once_and_in_order(tmp_path):
    async with running(tmp_path, "mqtt.received_appended=exit:17") as server:
        client = await server.client("device", **KEPT)
        for number in range(1, 31):
            message = Publish(topic="t", payload=b"%d" % number, qos=2, packet_id=number)
            with contextlib.suppress(ConnectionError):
                await client.send(message)
        await expect_death(client, server)
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        for number in range(1, 31):
            message = Publish(topic="t", payload=b"%d" % number, qos=2, packet_id=number, dup=True)
            await complete(client, message)
        await client.drop()
        assert await history(server) == [str(number) for number in range(1, 31)]


async def test_a_released_packet_id_may_come_again_for_another_message(tmp_path):
    async with running(tmp_path, "mqtt.released_saved=exit") as server:
        client = await server.client("device", **KEPT)
        await client.send(MESSAGE)
        await client.receive(Pubrec)
        await client.send(Pubrel(7))
        await expect_death(client, server)
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        await client.send(Pubrel(7))
        assert (await client.receive(Pubcomp)).reason == ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        await complete(client, Publish(topic="t", payload=b"other", qos=2, packet_id=7))
        await client.drop()
        assert await history(server) == ["once", "other"]


# -- to a client


async def subscribed(server: Server) -> Client:
    client = await server.client("device", **KEPT)
    assert await client.subscribe("t", 2) == 2
    return client


async def test_a_message_that_was_saved_and_not_sent_comes_under_its_packet_id(tmp_path):
    async with running(tmp_path, "mqtt.outgoing_saved=exit") as server:
        client = await subscribed(server)
        sender = await server.client("sender")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await sender.publish("t", "one", qos=2)
        await expect_death(client, server)
        await sender.drop()
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        message = await client.message()
        assert (message.payload, message.packet_id, message.dup) == (b"one", 1, True)
        await client.acknowledge(message)
        assert await client.is_silent()
        await client.drop()


@pytest.mark.parametrize("received", [False, True])
async def test_a_message_that_was_sent_never_comes_under_a_second_packet_id(tmp_path, received):
    async with running(tmp_path) as server:
        client = await subscribed(server)
        sender = await server.client("sender")
        for number in range(3):
            await sender.publish("t", str(number), qos=2)
        held = [await client.message() for _ in range(3)]
        assert [message.qos for message in held] == [2, 2, 2]
        if received:
            await client.send(Pubrec(held[0].packet_id))
            await client.receive(Pubrel)
        await server.kill()
        await client.drop()
        await sender.drop()
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        if received:
            assert (await client.receive(Pubrel)).packet_id == held[0].packet_id
            await client.send(Pubcomp(held[0].packet_id))
        for expected in held[received:]:
            message = await client.message()
            assert (message.packet_id, message.payload, message.dup) == (
                expected.packet_id, expected.payload, True,
            )  # fmt: skip
            await client.acknowledge(message)
        assert await client.is_silent()
        await client.drop()


# -- delayed


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_delayed_message_is_published_once_wherever_the_broker_dies(tmp_path, qos):
    async with running(tmp_path, "mqtt.delayed_published=exit") as server:
        client = await server.client("device", **KEPT)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await client.publish("$delayed/1/t", "once", qos)
        await expect_death(client, server)  # published, and not written down
    for _ in range(2):
        async with running(tmp_path) as server:
            assert await history_without_end(server) == ["once"]


async def history_without_end(server: Server) -> list[str]:
    """What there is without adding to it."""
    reader = await server.client("reader")
    await reader.subscribe("$replay/earliest/t", 0)
    found = await reader.take()
    while not await reader.is_silent():
        found += await reader.take()
    await reader.drop()
    return found


@pytest.mark.parametrize("point", ["mqtt.received_saved", "mqtt.received_appended"])
async def test_a_delayed_publish_of_qos_2_that_was_not_answered_comes_once(tmp_path, point):
    message = Publish(topic="$delayed/1/t", payload=b"once", qos=2, packet_id=7)
    async with running(tmp_path, f"{point}=exit") as server:
        client = await server.client("device", **KEPT)
        await client.send(message)
        await expect_death(client, server)
    async with running(tmp_path) as server:
        client = await server.client("device", **KEPT)
        await complete(client, Publish(**{**fields(message), "dup": True}))
        await client.subscribe("$replay/earliest/t", 1)
        assert await client.take() == ["once"]
        await client.publish("$delayed/1/t", "after")
        assert await client.take() == ["after"]
        await client.drop()
