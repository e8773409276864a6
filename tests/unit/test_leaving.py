"""Who leaves takes everything along: nothing of a connection waits for the cycle collector.

`onelog serve` lets it come seldom, so that it does not walk what lives for long: cycles would lie
about by the thousand, each with the buffers of its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.mqtt.packets import Puback, Publish, Pubrec, Will
from tests.conformance import amqp_raw, mqtt_raw
from tests.support.kafka_wire import Wire
from tests.support.mqtt import until
from tests.unit.test_admin_app import server_in

TIMES = 5


def mqtt(ports: dict[str, int]) -> None:
    with mqtt_raw.Raw(ports["mqtt"]) as raw:
        raw.connect(mqtt_raw.unique("c"), will=Will(topic="w", payload=b"gone", qos=1))
        raw.subscribe("a/#", 1)
        raw.subscribe("$share/g/a/#", 1)
        raw.send(Publish(topic="a/b", payload=b"1", qos=1, packet_id=1))
        raw.get(Puback)
        raw.send(Publish(topic="a/b", payload=b"1", qos=2, packet_id=2))
        raw.get(Pubrec)


def mqtt_kept(ports: dict[str, int]) -> None:
    for _ in range(2):
        with mqtt_raw.Raw(ports["mqtt"]) as raw:
            raw.connect("kept", clean=False, session_expiry_s=60)
            raw.subscribe("a/#", 1)
            raw.send(Publish(topic="a/b", payload=b"1", qos=1, packet_id=1))
            raw.get(Puback)


def mqtt_taken_over(ports: dict[str, int]) -> None:
    with mqtt_raw.Raw(ports["mqtt"]) as first, mqtt_raw.Raw(ports["mqtt"]) as second:
        first.connect("same", session_expiry_s=60)
        second.connect("same", session_expiry_s=0)
        first.end()


def websocket(ports: dict[str, int], *pieces: bytes, answers: int = 0) -> None:
    """Send pieces over a WebSocket; so many of them are answered before the next is sent."""
    with socket.create_connection(("127.0.0.1", ports["mqtt_ws"]), 5) as sock:
        for number, piece in enumerate(pieces):
            sock.sendall(piece)
            if number < answers:
                assert sock.recv(65_536)


HALF_AN_UPGRADE = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
UPGRADE = HALF_AN_UPGRADE + (
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def frame(first: int, payload: bytes) -> bytes:
    """A small frame of a client: the mask is of zeros."""
    return bytes((first, 0x80 | len(payload))) + bytes(4) + payload


CONNECT = frame(0x82, bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 77"))


def websocket_half_upgraded(ports: dict[str, int]) -> None:
    websocket(ports, HALF_AN_UPGRADE)


def websocket_no_upgrade(ports: dict[str, int]) -> None:
    websocket(ports, b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", answers=1)


def websocket_no_http(ports: dict[str, int]) -> None:
    websocket(ports, b"no request\r\n\r\n")


def websocket_mqtt(ports: dict[str, int]) -> None:
    websocket(ports, UPGRADE, CONNECT, answers=2)


def websocket_closing(ports: dict[str, int]) -> None:
    websocket(ports, UPGRADE, CONNECT, frame(0x88, b"\x03\xe8"), answers=3)


def websocket_half_a_frame(ports: dict[str, int]) -> None:
    websocket(ports, UPGRADE, CONNECT, CONNECT[:8], answers=2)


def websocket_wrong_frame(ports: dict[str, int]) -> None:
    websocket(ports, UPGRADE, frame(0xF2, b"reserved bits"), answers=2)


def websocket_text(ports: dict[str, int]) -> None:
    websocket(ports, UPGRADE, frame(0x81, b"text"), answers=2)


def kafka(ports: dict[str, int]) -> None:
    with Wire(ports["kafka"]) as wire:
        wire.ask(ApiKey.METADATA, 4, topics=[], allow_auto_topic_creation=False)


def amqp_queue(ports: dict[str, int]) -> None:
    with amqp_raw.Raw(ports["amqp"]).open() as raw:
        channel = raw.channel()
        name = channel.queue(durable=True)
        channel.confirm()
        channel.put("", name, "one", "two")
        channel.ask(amqp_raw.Queue.Delete(queue=name), amqp_raw.Queue.DeleteOk)


def amqp_exclusive_queue(ports: dict[str, int]) -> None:
    with amqp_raw.Raw(ports["amqp"]).open() as raw:
        channel = raw.channel()
        name = channel.queue(exclusive=True)
        channel.bind(name, "amq.topic", "a.#")
        channel.confirm()
        channel.put("amq.topic", "a.b", "text", "more")
        channel.consume(name)
        channel.message()


VISITS: tuple[Callable[[dict[str, int]], None], ...] = (
    mqtt,
    mqtt_kept,
    mqtt_taken_over,
    websocket_half_upgraded,
    websocket_no_upgrade,
    websocket_no_http,
    websocket_mqtt,
    websocket_closing,
    websocket_half_a_frame,
    websocket_wrong_frame,
    websocket_text,
    kafka,
    amqp_queue,
    amqp_exclusive_queue,
)
OURS = ("onelog.", "websockets.")
"""Where visits are made of something: here, and in a library that ties cycles."""
REMEMBERED = {"Address", "Known", "_Answer"}
"""What is remembered of topics on purpose, up to a bound."""


def living() -> Counter[type]:
    """What there is of ours, found without freeing anything."""
    kinds = Counter(type(row) for row in gc.get_objects())
    return Counter(
        {
            kind: count
            for kind, count in kinds.items()
            if str(kind.__module__).startswith(OURS) and kind.__name__ not in REMEMBERED
        }
    )


def left_behind(before: Counter[type]) -> dict[type, int]:
    """The types of which there is one more for each visit."""
    return {kind: count for kind, count in (living() - before).items() if count >= TIMES}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_nothing_of_who_left_waits_for_the_cycle_collector(tmp_path: Path):
    server = server_in(tmp_path, "listeners.mqtt_ws.enabled=true")
    ready = asyncio.Event()
    running = asyncio.create_task(server.run(lambda _info: ready.set()))
    await ready.wait()
    ports = {row.name: int(row.address.rpartition(":")[2]) for row in server.info().listeners}
    for visit in VISITS:
        await asyncio.to_thread(visit, ports)  # what is made once is made now
        before = living()
        for _ in range(TIMES):
            await asyncio.to_thread(visit, ports)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await until(lambda before=before: not left_behind(before))
        assert not left_behind(before), visit.__name__
    server.request_stop()
    await asyncio.wait_for(running, 10)
