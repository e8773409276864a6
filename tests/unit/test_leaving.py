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


def websocket(ports: dict[str, int]) -> None:
    with socket.create_connection(("127.0.0.1", ports["mqtt_ws"])) as sock:
        sock.sendall(b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n")


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
    websocket,
    kafka,
    amqp_queue,
    amqp_exclusive_queue,
)
VISITORS = {
    "onelog.net": {
        "_Guard",
        "PacedTransport",
        "WriteWatch",
        "Deadline",
        "OwnedTasks",
        "Pauses",
        "SilenceWatch",
    },
    "onelog.protocols.mqtt": {"Connection", "MqttSession", "Saver", "Inbound"},
    "onelog.protocols.kafka": {"Connection"},
    "onelog.protocols.amqp": {
        "Connection",
        "Channel",
        "Queue",
        "ReadyList",
        "Window",
        "Purge",
        "Expiry",
    },
    "onelog.cursors": {"RoutedCursor"},
}
"""What a visit is made of: where, and the names of the types."""


def left_behind() -> Counter[str]:
    """What there is of visitors, found without freeing anything."""
    watched = [(place, name) for place, names in VISITORS.items() for name in names]
    kinds = Counter(type(row) for row in gc.get_objects())
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if any(kind.__name__ == name and kind.__module__.startswith(at) for at, name in watched)
        }
    )


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
    before = left_behind()
    for visit in VISITS:
        for _ in range(TIMES):
            await asyncio.to_thread(visit, ports)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await until(lambda: not left_behind() - before)
        assert not left_behind() - before, visit.__name__
    server.request_stop()
    await asyncio.wait_for(running, 10)
