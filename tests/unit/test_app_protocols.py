"""A protocol that cannot recover is listed as failed and tried again; the others are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from pika import BlockingConnection, ConnectionParameters
from pika.exceptions import AMQPConnectionError

from onelog import app
from onelog.base.errors import ConfigError, Unavailable
from onelog.broker import Broker
from onelog.protocols.kafka import hub as kafka_hub
from onelog.protocols.kafka.groups.coordinator import Groups
from onelog.protocols.mqtt import server as mqtt_server
from onelog.protocols.mqtt.retained import Retained
from onelog.protocols.mqtt.wills import Wills
from onelog.queues.intents import Intents
from onelog.queues.recovery import Recovery
from onelog.serving import starting
from onelog.storage.lock import lock_data_dir
from tests.support.mqtt import connect, until
from tests.unit.test_admin_app import server_in

HELLOS = {
    "amqp": b"AMQP\x00\x00\x09\x01",
    "kafka": b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff",
    "mqtt": b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a",
}
"""What a client says first and is answered."""

FAULTS: list[tuple[str, Any, str]] = [
    ("amqp", Recovery, "catch_up"),
    ("amqp", Intents, "open"),
    ("kafka", Groups, "open"),
    ("kafka", kafka_hub, "open_coordinator"),
    ("mqtt", Retained, "catch_up"),
    ("mqtt", Wills, "open"),
]
"""The protocol, and what fails in the middle of its recovery."""


class Fault:
    """Makes a step of a recovery fail after it was done, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.failures = 0
        self.mended = asyncio.Event()
        self.met = asyncio.Event()
        real = getattr(owner, name)

        async def failing(*arguments: Any, **named: Any) -> Any:
            done = await real(*arguments, **named)
            if not self.mended.is_set():
                self.failures += 1
                self.met.set()
                raise RuntimeError(f"poison in {name}")
            return done

        monkeypatch.setattr(owner, name, failing)


def seen_brokers(monkeypatch: pytest.MonkeyPatch) -> list[Broker]:
    """Gets the broker of the process when it is open."""
    brokers: list[Broker] = []
    real = app.open_broker

    async def open_broker(*arguments: Any, **named: Any) -> Broker:
        brokers.append(await real(*arguments, **named))
        return brokers[-1]

    monkeypatch.setattr(app, "open_broker", open_broker)
    return brokers


@asynccontextmanager
async def running(path: Path, *settings: str) -> AsyncIterator[tuple[app.Server, dict[str, int]]]:
    server, ready = server_in(path, *settings), asyncio.Event()
    process = asyncio.create_task(server.run(lambda _info: ready.set()))
    await asyncio.wait(
        {process, asyncio.create_task(ready.wait())}, return_when=asyncio.FIRST_COMPLETED
    )
    if process.done():
        await process
    ports = {row.name: int(row.address.rpartition(":")[2]) for row in server.info().listeners}
    try:
        yield server, ports
    finally:
        server.request_stop()
        await asyncio.wait_for(process, 10)


async def is_answered(port: int, hello: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello)
    assert await asyncio.wait_for(reader.readexactly(1), 10)
    writer.close()


async def mqtt_refuses(port: int) -> None:
    """Each version with its own word for a server that is not available."""
    for hello, answer in (
        (HELLOS["mqtt"], b"\x20\x02\x00\x03"),
        (b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01a", b"\x00\x88"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # What comes behind CONNECT is not looked at.
        writer.write(hello + b"\x30\x05\x00\x01topic")
        assert answer in await asyncio.wait_for(reader.read(), 10)
        writer.close()


async def amqp_refuses(port: int) -> None:
    """At connection.open, as RabbitMQ refuses a virtual host that is down."""
    with pytest.raises(AMQPConnectionError, match=r"541.* not served now"):
        await asyncio.to_thread(BlockingConnection, ConnectionParameters("127.0.0.1", port))


async def kafka_waits(port: int) -> None:
    """Kafka has no word for it: the request is answered when it can be."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLOS["kafka"])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 0.05)
    writer.close()


REFUSED = {"amqp": amqp_refuses, "kafka": kafka_waits, "mqtt": mqtt_refuses}
"""What a client sees of a protocol that cannot recover."""


@pytest.mark.parametrize(("protocol", "owner", "name"), FAULTS)
async def test_a_protocol_that_cannot_recover_is_tried_again_while_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, owner: Any, name: str
) -> None:
    monkeypatch.setattr(starting, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(starting, "RETRY_LAST_S", 0.02)
    brokers = seen_brokers(monkeypatch)
    fault = Fault(monkeypatch, owner, name)
    async with running(tmp_path) as (server, ports):
        for other in HELLOS.keys() - {protocol}:
            await is_answered(ports[other], HELLOS[other])
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{ports['admin']}/health"
            told = (await client.get(url)).json()
            (row,) = [row for row in told["troubles"] if row["kind"] == starting.PROTOCOL_TROUBLE]
            assert (row["place"], row["standing"]) == (protocol, True)
            assert "poison" in row["error"]
            assert told["status"] == "degraded", "the others serve: the process is ready"
            await until(lambda: fault.failures >= 4)
            await REFUSED[protocol](ports[protocol])
            fault.mended.set()
            await until(lambda: not server.troubles.standing())
            await is_answered(ports[protocol], HELLOS[protocol])
            assert (await client.get(url)).json()["troubles"] == []
        (broker,) = brokers
        assert len(broker.maintenance.before_trim) == 1, "what failed let go of its hooks"
        assert len(broker.publisher.on_tick) == 1
        assert len(broker.streams.get("main").partitions[0].visible.feeds) == 2, "MQTT's and AMQP's"
        assert server.troubles.standing() == []


@pytest.mark.parametrize("protocol", ["amqp", "kafka", "mqtt"])
async def test_a_stop_while_a_protocol_is_tried_again_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr(starting, "RETRY_FIRST_S", 0.01)
    owner, name = next(row[1:] for row in FAULTS if row[0] == protocol)
    fault = Fault(monkeypatch, owner, name)
    async with running(tmp_path) as (_server, ports):
        await fault.met.wait()
        silent = await asyncio.open_connection("127.0.0.1", ports[protocol])
        half = await asyncio.open_connection("127.0.0.1", ports[protocol])
        half[1].write(HELLOS[protocol][:4])
    for _reader, writer in (silent, half):
        writer.close()
    with lock_data_dir(tmp_path):
        pass
    fault.mended.set()
    async with running(tmp_path) as (_server, ports):
        await is_answered(ports[protocol], HELLOS[protocol])


async def test_a_bad_configuration_ends_the_start_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(_chosen: object) -> None:
        raise ConfigError("mqtt.shares.groups = 'x'")

    monkeypatch.setattr(mqtt_server, "_features", bad)
    with pytest.raises(ConfigError, match="shares"):
        async with running(tmp_path):
            pass


async def test_what_is_retained_does_not_leave_while_mqtt_is_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, Wills, "open")
    brokers = seen_brokers(monkeypatch)
    async with running(tmp_path):
        await fault.met.wait()
        (broker,) = brokers
        partition = broker.streams.get("main").partitions[0]
        (guard,) = broker.maintenance.before_trim
        with pytest.raises(Unavailable, match="MQTT is not open"):
            await guard(partition, partition.start_offset)


async def test_mqtt_delivers_once_after_it_was_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "RETRY_FIRST_S", 0.01)
    fault = Fault(monkeypatch, Wills, "open")
    async with running(tmp_path) as (server, ports):
        await fault.met.wait()
        fault.mended.set()
        await until(lambda: not server.troubles.standing())
        client = await connect(ports["mqtt"], "c")
        await client.subscribe("a/#")
        await client.publish("a/b", "once")
        await client.publish("a/b", "last")
        assert await client.take(2) == ["once", "last"]
        await client.drop()
