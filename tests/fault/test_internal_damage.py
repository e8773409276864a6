"""What does the broker do when a stream that it keeps its own state in is damaged? (I9)

Damage is not emptiness: whoever needs the state is told that it is not known, what it protects
stays, and everything else works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Queue

import httpx2 as httpx
import paho.mqtt.client as mqtt
import pytest

from onelog.assembly import open_broker
from onelog.base.clock import ManualClock, SystemClock
from onelog.base.errors import CorruptBatch, Unavailable
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    KeptTable,
    Message,
    Retention,
    StreamConfig,
)
from onelog.broker.sessions import STREAM as SESSIONS
from onelog.broker.shards import STATE_UNKNOWN
from onelog.config import Config
from onelog.protocols.amqp.hub import Hub as AmqpHub
from onelog.protocols.kafka.groups.rows import STREAM as GROUPS
from onelog.protocols.mqtt.delayed import STREAM as DELAYED
from onelog.protocols.mqtt.hub import Hub as MqttHub
from onelog.protocols.mqtt.retained_copies import STREAM as COPIES
from onelog.protocols.mqtt.wills import STREAM as WILLS
from onelog.queues.intents import STREAM as INTENTS
from onelog.security.authenticator import Authenticator
from onelog.serving import PROTOCOL_TROUBLE
from tests.support.brokers import read_all
from tests.unit.test_app_protocols import HELLOS, amqp_refuses, is_answered
from tests.unit.test_app_protocols import running as running_server

pytestmark = pytest.mark.fault

HOUR_MS = 3600 * 1000
QUIET = BrokerSettings(
    checkpoint_interval_s=3600, maintenance_interval_s=3600, flush_interval_s=3600
)
SHORT = StreamConfig(name="short", captures=("short/#",), retention=Retention(age_ms=HOUR_MS))

Opening = Callable[[Broker, Authenticator], Awaitable[object]]


@asynccontextmanager
async def running(data: Path, clock: ManualClock | None = None) -> AsyncIterator[Broker]:
    data.mkdir(exist_ok=True)
    broker = await open_broker(data, QUIET, clock or SystemClock())
    try:
        yield broker
    finally:
        await broker.close()


def damage(data: Path, stream: str, where: str) -> None:
    """Flip a bit of a stream's only log: in its first batch, or in the last one after a kill."""
    (path,) = data.glob(f"segment/{stream}-*/0/*.log")
    content = bytearray(path.read_bytes())
    at = 70 if where == "first" else len(content) - 5
    content[at] ^= 0x40
    path.write_bytes(content)
    if where == "last":  # as after a kill: then the batch at the recovery point is looked at
        (data / "segment" / "clean-shutdown").unlink()


async def write_rows(data: Path, stream: str) -> None:
    """Give an internal stream some rows, in more than one batch."""
    async with running(data) as broker:
        table = await KeptTable.open(broker.streams, SystemClock(), stream)
        for number in range(20):
            await table.put([(b"key-%d" % number, b"value" * 10)])


async def amqp_hub(broker: Broker, authenticator: Authenticator) -> None:
    await AmqpHub(broker, authenticator, Config(), SystemClock()).open()


async def mqtt_hub(broker: Broker, authenticator: Authenticator) -> None:
    config = Config()
    await MqttHub(broker, authenticator, config.mqtt.limits, SystemClock()).open()


USERS: dict[str, Opening] = {
    INTENTS: amqp_hub,
    WILLS: mqtt_hub,
    DELAYED: mqtt_hub,
    SESSIONS: mqtt_hub,
}
"""Who reads an internal stream as a whole when it begins."""


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("stream", USERS)
async def test_a_protocol_does_not_begin_on_state_that_cannot_be_read(
    stream: str, where: str, tmp_path: Path
) -> None:
    """Nothing is answered as if there were no wills, no delayed messages; topics work.

    Kafka serves what does not need its groups or transactions: `test_kafka_state_unknown.py`.
    """
    await write_rows(tmp_path, stream)
    damage(tmp_path, stream, where)
    before = {path: path.read_bytes() for path in tmp_path.glob(f"segment/{stream}-*/0/*.log")}
    async with running(tmp_path) as broker:
        authenticator = await Authenticator.open(broker.store, SystemClock())
        with pytest.raises(Unavailable, match=rf"what {stream} keeps is not known"):
            await USERS[stream](broker, authenticator)
        assert [row.stream for row in broker.stopped_partitions()] == [stream]
        await broker.publish(Message("a/b", b"works"), principal=LOCAL)
        await authenticator.close()
    for path, content in before.items():
        assert path.read_bytes()[: len(content)] == content, "what was kept stays as it is"


async def test_copies_of_retained_messages_that_cannot_be_read_are_no_empty_stream(
    tmp_path: Path,
) -> None:
    await write_rows(tmp_path, COPIES)
    damage(tmp_path, COPIES, "last")
    async with running(tmp_path) as broker:
        authenticator = await Authenticator.open(broker.store, SystemClock())
        with pytest.raises(Unavailable, match="~retained"):
            await mqtt_hub(broker, authenticator)
        await authenticator.close()


async def test_a_row_is_not_put_behind_damage_that_is_found_later(tmp_path: Path) -> None:
    """Who wrote before is told "later", by the call or by its future, and not that it is kept."""
    async with running(tmp_path) as broker:
        table = await broker.open_kept("~rows")
        await table.put([(b"a", b"1")])
        partition = broker.streams.get("~rows").partitions[0]
        waiting = table.put([(b"b", b"2")])
        partition.stop_damaged(0, CorruptBatch("a flipped bit"))
        with pytest.raises(Unavailable, match="~rows"):
            await waiting
        with pytest.raises(Unavailable, match="~rows"):
            table.put([(b"c", b"3")])
        with pytest.raises(Unavailable, match="~rows"):
            await broker.open_kept("~rows")


async def test_the_process_serves_what_is_not_affected_and_says_what_is(tmp_path: Path) -> None:
    """End to end: without what Kafka's groups committed every protocol answers."""
    await write_rows(tmp_path, GROUPS)
    damage(tmp_path, GROUPS, "first")
    async with running_server(tmp_path) as (server, ports):
        for protocol, hello in HELLOS.items():
            await is_answered(ports[protocol], hello)
        (row,) = server.troubles.standing()
        assert (row.kind, row.place, row.blocks) == (STATE_UNKNOWN, GROUPS, True)
        assert "what ~groups keeps is not known" in row.error
        async with httpx.AsyncClient() as client:
            probe = await client.get(f"http://127.0.0.1:{ports['admin']}/health/ready")
        assert probe.status_code == 503
        assert "~groups" in probe.text


def paho_hears(port: int, version: int) -> str:
    """Why a client of paho was not let in."""
    heard: Queue[str] = Queue()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "c", protocol=version)
    client.on_connect = lambda _c, _data, _flags, reason, _properties: heard.put(str(reason))
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        return heard.get(timeout=10)
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize("stream", [WILLS, DELAYED, COPIES, SESSIONS, "~cursors"])
async def test_mqtt_clients_hear_that_the_server_is_unavailable(
    stream: str, tmp_path: Path
) -> None:
    """They are not left waiting for an answer; what serves without the stream goes on."""
    await write_rows(tmp_path, stream)
    damage(tmp_path, stream, "last")
    async with running_server(tmp_path) as (server, ports):
        for version in (mqtt.MQTTv311, mqtt.MQTTv5):
            heard = await asyncio.to_thread(paho_hears, ports["mqtt"], version)
            assert heard == "Server unavailable"
        assert (PROTOCOL_TROUBLE, "mqtt") in {
            (row.kind, row.place) for row in server.troubles.standing()
        }
        await is_answered(ports["kafka"], HELLOS["kafka"])


async def test_amqp_clients_hear_that_it_is_not_served_now(tmp_path: Path) -> None:
    await write_rows(tmp_path, INTENTS)
    damage(tmp_path, INTENTS, "first")
    async with running_server(tmp_path) as (_server, ports):
        await amqp_refuses(ports["amqp"])
        for other in ("mqtt", "kafka"):
            await is_answered(ports[other], HELLOS[other])


@pytest.mark.parametrize("where", ["first", "last"])
async def test_when_cursors_are_not_known_none_begins_anew_and_nothing_they_need_leaves(
    where: str, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock) as broker:
        await broker.streams.create(SHORT)
        queue = await broker.cursors.open_queue("jobs", ["short/#"], principal=LOCAL)
        for number in range(10):
            await broker.publish(Message("short/a", b"%d" % number), principal=LOCAL)
            await broker.cursors.save(queue)
    damage(tmp_path, "~cursors", where)
    clock.advance(10 * HOUR_MS / 1000)
    async with running(tmp_path, clock) as broker:
        (trouble,) = broker.troubles.standing()
        assert (trouble.kind, trouble.place, trouble.blocks) == (STATE_UNKNOWN, "~cursors", True)
        with pytest.raises(Unavailable, match="what ~cursors keeps is not known"):
            await broker.cursors.open_queue("jobs", ["short/#"], principal=LOCAL)
        with pytest.raises(Unavailable):
            await broker.cursors.open_offset("new", ["short/#"], principal=LOCAL)
        with pytest.raises(Unavailable):
            await broker.cursors.delete("jobs")
        await broker.maintenance.run_once()
        assert broker.streams.get("short").partitions[0].start_offset == 0
        assert broker.maintenance.counters.errors == 0
        await broker.publish(Message("short/a", b"goes on"), principal=LOCAL)
        tail = broker.cursors.open_tail(["short/#"], start=EARLIEST, principal=LOCAL)
        assert len(read_all(tail)) == 11


async def test_cursors_that_are_repaired_go_on_where_they_were(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        reader = await broker.cursors.open_offset("reader", ["a/#"], principal=LOCAL)
        for _ in range(5):
            await broker.publish(Message("a/b", b"1"), principal=LOCAL)
        reader.fetch(3)
        reader.commit_read()
        await broker.cursors.save(reader)
    damage(tmp_path, "~cursors", "first")
    async with running(tmp_path) as broker:
        with pytest.raises(Unavailable):
            await broker.cursors.open_offset("reader", ["a/#"], principal=LOCAL)
    damage(tmp_path, "~cursors", "first")  # flipped back, as from a backup
    async with running(tmp_path) as broker:
        assert not broker.troubles.standing()
        reader = await broker.cursors.open_offset("reader", ["a/#"], principal=LOCAL)
        assert len(reader.fetch(10)) == 2
