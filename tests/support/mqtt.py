"""MQTT over a real socket: a hub on a real broker, and a client that does what it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from onelog.assembly import open_broker
from onelog.base.clock import Clock, SystemClock
from onelog.broker import Broker, BrokerSettings
from onelog.net import Gate, GateLimits, bind, start_listener
from onelog.protocols.mqtt.codec import decode_packet, encode_packet
from onelog.protocols.mqtt.connection import Connection
from onelog.protocols.mqtt.features import MqttFeatures
from onelog.protocols.mqtt.hub import Hub
from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.packet_types import Side
from onelog.protocols.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from onelog.security.authenticator import Authenticator
from tests.support.brokers import FAST

DEADLINE_S = 30.0

P = TypeVar("P")


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition; the deadline is the test's failure."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110 - there is no event for every condition
            await asyncio.sleep(0.001)


class _Leaving(asyncio.StreamReaderProtocol):
    """Closes its side when the broker closes its own, as clients do: no broker lingers for it."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of a peer that leaves when it is told to."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, protocol = await loop.create_connection(
        lambda: _Leaving(reader, loop=loop), "127.0.0.1", port
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Client:
    """A client without a mind of its own: it acknowledges only what it is told to."""

    def __init__(self, reader: Any, writer: Any, version: int) -> None:
        self._reader = reader
        self._writer = writer
        self.version = version
        self.connack = Connack()
        self._arrived: list[Packet] = []
        self._ids = 0

    async def send(self, packet: Packet) -> None:
        self._writer.write(encode_packet(packet, self.version))
        await self._writer.drain()

    async def _read(self) -> Packet:
        first = (await self._reader.readexactly(1))[0]
        size = shift = 0
        while True:
            byte = (await self._reader.readexactly(1))[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        body = await self._reader.readexactly(size)
        return decode_packet(first, body, self.version, sender=Side.SERVER)

    async def receive(self, kind: type[P]) -> P:
        """The next packet of a kind; others stay for later."""
        for packet in self._arrived:
            if isinstance(packet, kind):
                self._arrived.remove(packet)
                return packet
        async with asyncio.timeout(DEADLINE_S):
            while True:
                packet = await self._read()
                if isinstance(packet, kind):
                    return packet
                self._arrived.append(packet)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    async def subscribe(self, text: str, qos: int = 0, identifier: int = 0, **options: Any) -> int:
        """Subscribe to one filter; the code of the answer."""
        properties = Properties(subscription_ids=(identifier,)) if identifier else NO_PROPERTIES
        row = Subscription(text, qos, **options)
        await self.send(Subscribe(self.next_id(), (row,), properties))
        return int((await self.receive(Suback)).reasons[0])

    async def unsubscribe(self, text: str) -> int:
        await self.send(Unsubscribe(self.next_id(), (text,)))
        reasons = (await self.receive(Unsuback)).reasons
        return int(reasons[0]) if reasons else 0

    async def publish(self, topic: str, payload: str = "", qos: int = 1, **fields: Any) -> int:
        """Publish and wait for the answer; its code."""
        packet_id = self.next_id() if qos else 0
        await self.send(
            Publish(topic=topic, payload=payload.encode(), qos=qos, packet_id=packet_id, **fields)
        )
        if qos == 1:
            return int((await self.receive(Puback)).reason)
        if qos == 2:
            received = await self.receive(Pubrec)
            if received.reason < 0x80:
                await self.send(Pubrel(packet_id))
                await self.receive(Pubcomp)
            return int(received.reason)
        return 0

    async def message(self) -> Publish:
        """The next message, not acknowledged."""
        return await self.receive(Publish)

    async def take(self, count: int = 1) -> list[str]:
        """The payloads of the next messages, acknowledged."""
        found = []
        for _ in range(count):
            message = await self.message()
            found.append(message.payload.decode())
            await self.acknowledge(message)
        return found

    async def acknowledge(self, message: Publish) -> None:
        if message.qos == 1:
            await self.send(Puback(message.packet_id))
        elif message.qos == 2:
            await self.send(Pubrec(message.packet_id))
            await self.receive(Pubrel)
            await self.send(Pubcomp(message.packet_id))

    async def sync(self) -> None:
        """Everything sent before is done with, and what it caused has arrived."""
        for _ in range(2):
            await self.send(Pingreq())
            await self.receive(Pingresp)

    async def is_silent(self) -> bool:
        """Whether no message waits."""
        await self.sync()
        return not any(isinstance(packet, Publish) for packet in self._arrived)

    async def disconnect(self) -> None:
        """Say goodbye."""
        await self.send(Disconnect())
        await self._until_closed()

    async def drop(self) -> None:
        """Go without a word."""
        self._writer.transport.abort()
        await self._until_closed()

    async def _until_closed(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def connect(
    port: int,
    client_id: str,
    *,
    version: int = 5,
    clean: bool = True,
    expiry_s: int = 0,
    receive_maximum: int | None = None,
    packet_bytes_max: int | None = None,
    alias_maximum: int | None = None,
    **fields: Any,
) -> Client:
    """A connected client; `connack` says how it was received."""
    reader, writer = await dial(port)
    client = Client(reader, writer, version)
    properties = NO_PROPERTIES
    if version == 5:
        properties = Properties(
            session_expiry_s=expiry_s or None,
            receive_maximum=receive_maximum,
            maximum_packet_size=packet_bytes_max,
            topic_alias_maximum=alias_maximum,
        )
    packet = Connect(
        client_id=client_id,
        version=version,
        clean_start=clean,
        keep_alive_s=60,
        properties=properties,
        **fields,
    )
    await client.send(packet)
    client.connack = await client.receive(Connack)
    assert client.connack.reason == 0
    return client


class Node:
    """A running hub."""

    def __init__(self, broker: Broker, hub: Hub, port: int) -> None:
        self.broker = broker
        self.hub = hub
        self.port = port
        self.clients: list[Client] = []

    async def client(self, client_id: str, **options: Any) -> Client:
        """A connected client; it is dropped at the end."""
        client = await connect(self.port, client_id, **options)
        self.clients.append(client)
        return client

    async def gone(self, client_id: str) -> None:
        """Wait until the broker knows that a client is gone."""
        await until(lambda: client_id not in self.hub.sessions)
        await until(lambda: not any(c.state.value == "closed" for c in self.hub.connections))


@contextlib.asynccontextmanager
async def serving(
    path: Path,
    features: MqttFeatures | None = None,
    *,
    limits: MqttLimits | None = None,
    settings: BrokerSettings = FAST,
    clock: Clock | None = None,
    backend: str = "auto",
    **hooks: Any,
) -> AsyncIterator[Node]:
    """A hub for the length of a block."""
    path.mkdir(parents=True, exist_ok=True)
    clock = clock or SystemClock()
    broker = await open_broker(path, settings, clock, **hooks)
    authenticator = await Authenticator.open(broker.store, clock)
    hub = Hub(broker, authenticator, limits or MqttLimits(), clock, features)
    await hub.open()
    gate = Gate(GateLimits(), clock)
    listener = bind("mqtt", "127.0.0.1", 0)
    served = await start_listener(
        listener,
        lambda peer: Connection(hub, peer),
        gate,
        handshake_timeout_s=hub.limits.connect_timeout_ms / 1000,
        backend=backend,
    )
    node = Node(broker, hub, listener.port)
    try:
        yield node
    finally:
        for client in node.clients:
            await client.drop()
        served.close()
        await served.wait_closed()
        await hub.close()
        await authenticator.close()
        await broker.close()
