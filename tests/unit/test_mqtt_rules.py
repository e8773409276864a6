"""Rules of MQTT that a peer can see: each test names the normative statement that it holds."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from onelog.protocols.mqtt import handlers
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from onelog.protocols.mqtt.properties import Properties
from tests.support.mqtt import Client, Node, dial, serving, until


async def peer(node: Node, version: int) -> Client:
    reader, writer = await dial(node.port)
    client = Client(reader, writer, version)
    node.clients.append(client)
    return client


async def is_closed(client: Client) -> bool:
    """Whether the broker ended the connection, without another packet."""
    async with asyncio.timeout(30):
        return await client._reader.read() == b""


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("qos", "received", "answer"),
    [
        (1, False, Pubrec),
        (1, False, Pubcomp),
        (2, False, Puback),
        (2, False, Pubcomp),
        (2, True, Puback),
    ],
)
@pytest.mark.parametrize("text", ["t", "$share/g/t"])
async def test_an_answer_of_the_wrong_kind_settles_nothing(
    tmp_path, version, qos, received, answer, text
):
    """MQTT5 4.3.2-3, 4.3.3-3, 4.8.0-1: it ends the connection, and the message comes again."""
    async with serving(tmp_path) as node:
        kept = {"version": version, "clean": False, "expiry_s": 600}
        client = await node.client("c", **kept)
        await client.subscribe(text, qos)
        publisher = await node.client("p")
        await publisher.publish("t", "x", qos)
        message = await client.message()
        if received:
            await client.send(Pubrec(message.packet_id))
            await client.receive(Pubrel)
        await client.send(answer(message.packet_id))
        if version == 5:
            assert (await client.receive(Disconnect)).reason == 0x82
        assert await is_closed(client)
        await node.gone("c")
        back = await node.client("c", **kept)
        if received:  # what is left is its release
            assert (await back.receive(Pubrel)).packet_id == message.packet_id
            await back.send(Pubcomp(message.packet_id))
        else:
            assert await back.take() == ["x"]
        assert await back.is_silent()


async def test_answers_for_what_is_not_in_flight_harm_nobody(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c")
        for packet in (Puback(7), Pubcomp(7), Puback(65_535)):
            await client.send(packet)
        await client.send(Pubrec(7))
        assert (await client.receive(Pubrel)).reason == 0x92
        await client.sync()


async def connack(node: Node, version: int, **fields) -> Connack | None:
    """What a CONNECT is answered; None: the connection just ends."""
    client = await peer(node, version)
    await client.send(Connect(version=version, **fields))
    try:
        return await client.receive(Connack)
    except asyncio.IncompleteReadError:
        return None


async def test_a_connack_is_no_larger_than_the_client_takes(tmp_path):
    """MQTT5 3.1.2-24, 3.2.2-19: without its words, or not at all."""
    async with serving(tmp_path) as node:
        for most, client_id in product(range(1, 60), ("", "c" * 300)):
            client = await peer(node, 5)
            properties = Properties(maximum_packet_size=most)
            await client.send(Connect(version=5, properties=properties, client_id=client_id))
            client._writer.write_eof()
            async with asyncio.timeout(30):
                answer = await client._reader.read()
            assert len(answer) <= most
            assert not answer or answer[3] in (0x95, 0x85, 0)


async def test_a_suback_that_the_client_has_no_room_for_ends_the_connection(tmp_path):
    async with serving(tmp_path) as node:
        client = await node.client("c", packet_bytes_max=30)
        rows = tuple(Subscription(f"t{number}") for number in range(129))
        await client.send(Subscribe(1, rows))
        assert (await client.receive(Disconnect)).reason == 0x95
        assert await is_closed(client)


async def test_reasons_are_left_out_where_they_do_not_fit(tmp_path):
    async with serving(tmp_path) as node:
        for most, told in ((25, False), (500, True)):
            client = await node.client("c", packet_bytes_max=most)
            await client.send(Subscribe(1, (Subscription("/".join("a" * 300)),)))
            answer = await client.receive(Suback)
            assert answer.reasons[0] == 0x8F
            assert (answer.properties.reason_string is not None) is told


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x04MQTT\x04\x03\x00<\x00\x01c",  # the reserved flag
        b"\x00\x04MQTT\x04\x06\x00<\x00\x01c\x00\x00\x00\x01x",  # a will without a topic
        b"\x00\x04MQTT\x04\x06\x00<\x00\x01c\x00\x01#\x00\x01x",
        b"\x00\x04MQTT\x04",
        b"\x00\x04MQTT\x04\x02\x00<\x00\x09c",
        b"\x00\x06MQIsdp\x03\x02\x00<\x00\x01\xff",
    ],
)
async def test_a_malformed_connect_of_version_3_is_closed_without_a_fault(tmp_path, body):
    async with serving(tmp_path) as node:
        client = await peer(node, 4)
        client._writer.write(b"\x10" + bytes((len(body),)) + body)
        assert await is_closed(client)
        assert node.broker.troubles.rows() == []


async def test_a_protocol_level_of_the_future_is_told_which_one_is_spoken(tmp_path):
    """MQTT5 3.1.2-2."""
    async with serving(tmp_path) as node:
        for level, answer in ((6, b"\x20\x03\x00\x84\x00"), (2, b"\x20\x02\x00\x01")):
            client = await peer(node, 5)
            body = b"\x00\x04MQTT" + bytes((level,)) + b"\x02\x00<\x00\x01c"
            client._writer.write(b"\x10" + bytes((len(body),)) + body)
            async with asyncio.timeout(30):
                assert await client._reader.read() == answer


@pytest.mark.parametrize("version", [4, 5])
async def test_who_gives_no_credentials_is_not_told_that_they_are_bad(tmp_path, version):
    async with serving(tmp_path) as node:
        authenticator = node.hub.authenticator
        authenticator._settings = type(authenticator._settings)(anonymous="never")
        refused = await connack(node, version, client_id="c")
        assert refused is not None
        assert refused.reason == 0x87
        bad = await connack(node, version, client_id="c", username="x", password=b"y")
        assert bad is not None
        assert bad.reason == 0x86


@pytest.mark.parametrize("value", [None, 0, 1])
@pytest.mark.parametrize("retain", [False, True])
async def test_the_payload_format_arrives_as_it_was_said(tmp_path, value, retain):
    """MQTT5 3.3.2-4."""
    async with serving(tmp_path) as node:
        client = await node.client("c")
        properties = Properties(payload_format=value, content_type="x")
        if not retain:
            await client.subscribe("t")
        await client.publish("t", "x", retain=retain, properties=properties)
        if retain:
            await client.subscribe("t")
        assert (await client.message()).properties.payload_format == value


@pytest.mark.parametrize("version", [4, 5])
async def test_a_fault_of_ours_ends_one_connection_and_is_told(tmp_path, monkeypatch, version):
    """I10: also when it is not the peer's."""

    def fail(_connection, _packet):
        raise KeyError("a fault")

    async with serving(tmp_path) as node:
        other = await node.client("other")
        monkeypatch.setitem(handlers.HANDLERS, PacketType.PINGREQ, fail)
        client = await node.client("c", version=version)
        client._writer.write(
            b"".join(encode_packet(row, version) for row in (Pingreq(), Pingreq()))
        )
        if version == 5:
            assert (await client.receive(Disconnect)).reason == 0x80
        assert await is_closed(client)
        await until(lambda: "c" not in node.hub.sessions)
        assert node.broker.troubles.count("mqtt-connection") == 1
        monkeypatch.undo()
        assert await other.publish("t", "x") == 0


async def test_a_task_of_ours_that_fails_ends_one_connection_and_is_told(tmp_path, monkeypatch):
    async with serving(tmp_path) as node:
        client = await node.client("c", clean=False, expiry_s=60)

        async def fail(*_args):
            raise KeyError("a fault")

        monkeypatch.setattr(node.broker.sessions, "update", fail)
        await client.send(Subscribe(1, (Subscription("t"),)))
        assert (await client.receive(Disconnect)).reason == 0x80
        assert await is_closed(client)
        assert node.broker.troubles.count("mqtt-connection") == 1


@pytest.mark.parametrize("version", [4, 5])
async def test_kept_sessions_are_bounded_and_the_others_go_on(tmp_path, version):
    """I8: a client chooses its id, and its session outlives it for days."""
    kept = {"clean_start": False}
    if version == 5:
        kept["properties"] = Properties(session_expiry_s=60)
    async with serving(tmp_path, limits=MqttLimits(kept_sessions=2)) as node:
        for name in ("a", "b"):
            client = await node.client(name, version=version, clean=False, expiry_s=60)
            await client.disconnect()
            await node.gone(name)
        refused = await connack(node, version, client_id="c", **kept)
        assert refused.reason == (0x97 if version == 5 else 0x88)  # version 3: code 3
        back = await connack(node, version, client_id="a", **kept)
        assert (back.reason, back.session_present) == (0, True)
        assert (await connack(node, version, client_id="d")).reason == 0
