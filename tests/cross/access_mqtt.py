"""What MQTT clients ask for, as rows of the table of operations."""

from __future__ import annotations

import asyncio
from typing import Any

from onelog.broker import LOCAL, Message
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.packets import Connack, Connect, Publish, Subscribe, Subscription, Will
from onelog.protocols.mqtt.properties import Properties
from tests.cross.access_table import YES, Act, numbers, operation
from tests.support.access import House
from tests.support.mqtt import DEADLINE_S, Client, connect, dial, until

NOT_AUTHORIZED = 0x87
SILENCE = "nothing came"


async def _mqtt(house: House, **options: Any) -> Client:
    client = await connect(house.ports["mqtt"], f"c{next(numbers)}", **options)
    house.at_end.append(client._writer.close)
    return client


def _told(code: int) -> object:
    return YES if code < 0x80 else code


@operation("mqtt", PacketType.PUBLISH, NOT_AUTHORIZED, "publish topic:a/+")
async def mqtt_publish_at_qos_1(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.publish("a/b", "x"))

    return act


@operation("mqtt", PacketType.PUBLISH, NOT_AUTHORIZED, "publish prefix:a/")
async def mqtt_publish_at_qos_2(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.publish("a/b", "x", qos=2))

    return act


@operation("mqtt", PacketType.PUBLISH, SILENCE, "publish topic:a/b")
async def mqtt_publish_at_qos_0(house: House) -> Act:
    """Nobody is told; the message is not there."""
    client = await _mqtt(house)

    async def act() -> object:
        before = _ends(house)
        await client.publish("a/b", "x", qos=0)
        await client.sync()
        return YES if _ends(house) != before else SILENCE

    return act


@operation("mqtt", PacketType.PUBLISH, NOT_AUTHORIZED, "publish topic:of/%c/+")
async def mqtt_publish_to_what_its_client_id_names(house: House) -> Act:
    name = f"c{next(numbers)}"
    client = await connect(house.ports["mqtt"], name)
    house.at_end.append(client._writer.close)

    async def act() -> object:
        if house.broker.access.rules:
            assert await client.publish("of/another/t") == NOT_AUTHORIZED
        return _told(await client.publish(f"of/{name}/t"))

    return act


@operation("mqtt", PacketType.SUBSCRIBE, SILENCE, "subscribe topic:of/%c/+")
async def mqtt_delivery_of_what_its_client_id_names(house: House) -> Act:
    name = f"c{next(numbers)}"
    client = await connect(house.ports["mqtt"], name)
    house.at_end.append(client._writer.close)
    await client.subscribe("of/#", 1)

    async def act() -> object:
        if house.broker.access.rules:
            assert await _arrives(client, house, "of/another/t") == SILENCE
        return await _arrives(client, house, f"of/{name}/t")

    return act


def _ends(house: House) -> int:
    return sum(
        int(row.ends().high_watermark) for row in house.broker.streams.get("main").partitions
    )


@operation("mqtt", PacketType.PUBLISH, NOT_AUTHORIZED, "publish topic:a/b")
async def mqtt_delayed_publish(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.publish("$delayed/3600/a/b", "x"))

    return act


@operation("mqtt", PacketType.SUBSCRIBE, NOT_AUTHORIZED, "subscribe topic:a/#")
async def mqtt_subscribe(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.subscribe("a/+", 1))

    return act


@operation("mqtt", PacketType.SUBSCRIBE, NOT_AUTHORIZED, "subscribe topic:a/#")
async def mqtt_replay(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.subscribe("$replay/latest/a/+", 1))

    return act


@operation(
    "mqtt", PacketType.SUBSCRIBE, NOT_AUTHORIZED, "subscribe topic:a/#", "consume cursor:share/g"
)
async def mqtt_share(house: House) -> Act:
    client = await _mqtt(house)

    async def act() -> object:
        return _told(await client.subscribe("$share/g/a/+", 1))

    return act


# -- MQTT 3.1.1: the bytes of its answers, since it has other codes, and none for a publish

OLD = 4
ENDED = "the connection ended"
SUBACK_FAILURE = 0x80  # MQTT3 3.9.3
CONNACK_NOT_AUTHORIZED = 5  # MQTT3 3.2.2.3


async def _last_byte(reader: asyncio.StreamReader) -> object:
    """The code of the next answer of at most 127 bytes; without one, the connection ended."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            head = await reader.readexactly(2)
            return (await reader.readexactly(head[1]))[-1]
    except (asyncio.IncompleteReadError, ConnectionError):
        return ENDED


@operation("mqtt", PacketType.SUBSCRIBE, SUBACK_FAILURE, "subscribe topic:a/#")
async def mqtt_subscribe_of_3_1_1(house: House) -> Act:
    client = await _mqtt(house, version=OLD)

    async def act() -> object:
        packet = Subscribe(client.next_id(), (Subscription("a/+", 1),))
        await client.send(packet)
        code = await _last_byte(client._reader)
        return YES if code == 1 else code  # the QoS that is granted

    return act


@operation("mqtt", PacketType.CONNECT, CONNACK_NOT_AUTHORIZED, "consume cursor:session/kept-by-3-*")
async def mqtt_kept_session_of_3_1_1(house: House) -> Act:
    async def act() -> object:
        reader, writer = await dial(house.ports["mqtt"])
        name = f"kept-by-3-{next(numbers)}"
        packet = Connect(client_id=name, version=OLD, clean_start=False, keep_alive_s=60)
        writer.write(encode_packet(packet, OLD))
        code = await _last_byte(reader)
        writer.close()
        return YES if code == 0 else code

    return act


async def _publish_once(house: House, qos: int) -> object:
    """What a client of its own hears of one publish.

    No answer can say no (MQTT3 3.3.5-2): the connection ends, so that nobody takes it for a yes.
    """
    client = await _mqtt(house, version=OLD)
    await client.send(Publish(topic="a/b", payload=b"x", qos=qos, packet_id=7))
    code = await _last_byte(client._reader)
    client._writer.close()
    return YES if code == 7 else code  # the end of its packet id


@operation("mqtt", PacketType.PUBLISH, ENDED, "publish topic:a/b")
async def mqtt_publish_at_qos_1_of_3_1_1(house: House) -> Act:
    return lambda: _publish_once(house, 1)


@operation("mqtt", PacketType.PUBLISH, ENDED, "publish topic:a/b")
async def mqtt_publish_at_qos_2_of_3_1_1(house: House) -> Act:
    return lambda: _publish_once(house, 2)


@operation("mqtt", PacketType.PUBLISH, SILENCE, "publish topic:a/b")
async def mqtt_publish_at_qos_0_of_3_1_1(house: House) -> Act:
    client = await _mqtt(house, version=OLD)

    async def act() -> object:
        before = _ends(house)
        await client.publish("a/b", "x", qos=0)
        await client.sync()
        return YES if _ends(house) != before else SILENCE

    return act


# -- sessions


@operation("mqtt", PacketType.CONNECT, NOT_AUTHORIZED, "consume cursor:session/kept-*")
async def mqtt_kept_session(house: House) -> Act:
    async def act() -> object:
        client, code = await _knock(house, f"kept-{next(numbers)}")
        await client.drop()
        return _told(code)

    return act


async def _knock(house: House, client_id: str) -> tuple[Client, int]:
    """Ask for a session that is kept, or for the one that was; the code of the answer."""
    reader, writer = await dial(house.ports["mqtt"])
    client = Client(reader, writer, 5)
    await client.send(
        Connect(
            client_id=client_id,
            version=5,
            clean_start=False,
            keep_alive_s=60,
            properties=Properties(session_expiry_s=600),
        )
    )
    return client, int((await client.receive(Connack)).reason)


async def _arrives(client: Client, house: House, topic: str = "a/b") -> object:
    await house.broker.publish(Message(topic, b"x"), principal=LOCAL)
    await client.sync()
    found = [packet for packet in client._arrived if isinstance(packet, Publish)]
    for packet in found:
        client._arrived.remove(packet)
        await client.acknowledge(packet)
    return YES if found else SILENCE


@operation("mqtt", PacketType.SUBSCRIBE, SILENCE, "subscribe topic:a/b")
async def mqtt_delivery_to_an_open_subscription(house: House) -> Act:
    client = await _mqtt(house)
    await client.subscribe("#", 1)
    return lambda: _arrives(client, house)


@operation("mqtt", PacketType.CONNECT, SILENCE, "subscribe topic:a/b", "consume cursor:session/c*")
async def mqtt_delivery_to_a_session_that_was_away(house: House) -> Act:
    name = f"c{next(numbers)}"
    first = await connect(house.ports["mqtt"], name, expiry_s=600)
    await first.subscribe("#", 1)
    await first.drop()
    await until(lambda: name not in house.servers["mqtt"]._hub.sessions)

    async def act() -> object:
        await house.broker.publish(Message("a/b", b"x"), principal=LOCAL)
        client, code = await _knock(house, name)
        if code:
            await client.drop()
            return SILENCE
        session = house.servers["mqtt"]._hub.sessions[name]
        await until(lambda: session.output.live)  # it has read what it missed
        await client.sync()
        found = [packet for packet in client._arrived if isinstance(packet, Publish)]
        for packet in found:
            await client.acknowledge(packet)
        await client.sync()
        await client.drop()
        await until(lambda: name not in house.servers["mqtt"]._hub.sessions)
        return YES if found else SILENCE

    return act


@operation("mqtt", PacketType.SUBSCRIBE, SILENCE, "subscribe topic:kept/t")
async def mqtt_retained_message(house: House) -> Act:
    publisher, client = await _mqtt(house), await _mqtt(house)
    await publisher.publish("kept/t", "x", retain=True)
    await client.subscribe("#", 0)

    async def act() -> object:
        await client.unsubscribe("kept/#")
        code = await client.subscribe("kept/#", 0)
        await client.sync()
        found = [packet for packet in client._arrived if isinstance(packet, Publish)]
        for packet in found:
            client._arrived.remove(packet)
        return YES if found and code < 0x80 else SILENCE

    return act


@operation(
    "mqtt", PacketType.CONNECT, SILENCE, "publish topic:gone/+", given=("subscribe topic:gone/+",)
)
async def mqtt_will(house: House) -> Act:
    watcher = await _mqtt(house)
    await watcher.subscribe("gone/t", 1)

    async def act() -> object:
        name = f"c{next(numbers)}"
        will = Will(topic="gone/t", payload=b"bye", qos=1)
        client = await connect(house.ports["mqtt"], name, will=will)
        await client.drop()
        await until(lambda: name not in house.servers["mqtt"]._hub.sessions)
        await house.broker.publish(Message("gone/t", b"mark"), principal=LOCAL)
        found = await watcher.take()
        if found == ["bye"]:
            assert await watcher.take() == ["mark"]
            return YES
        return SILENCE

    return act
