"""Single records on an engine whose every read is cold: nobody waits for one on the loop."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from onelog.base.errors import PartitionStopped
from onelog.broker import EARLIEST, LOCAL, Broker, QueueSettings, Start, StreamConfig
from tests.conformance.amqp_raw import Raw, RawChannel, x_arguments
from tests.support import amqp, mqtt
from tests.support.brokers import home_of, say, spoken
from tests.support.cold import cold_broker, make_cold
from tests.support.turns import passes_until

SAID = [str(number) for number in range(12)]


def values(rows: list[Any]) -> list[str]:
    return [(row.record.value or b"").decode() for row in rows]


# -- cursors of programs


async def test_what_comes_back_to_a_queue_is_read_again_in_order(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "t", *SAID)
        queue = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        first = await queue.next("a", 12)
        for row in first:
            queue.release(row.token)
        engine.forget()
        engine.gate.clear()
        assert queue.acquire("b", 12) == []
        assert not queue.has_returned, "who waits for it would spin"
        engine.gate.set()
        again: list[Any] = []
        async with asyncio.timeout(10):
            while len(again) < len(first):
                again += await queue.next("b", 12)
        assert values(again) == values(first)
        assert all(row.redelivered for row in again)


async def test_a_record_that_is_given_up_is_buried_when_it_is_here(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "t", "bad")
        queue = await broker.cursors.open_queue("q", ["t"], start=EARLIEST, principal=LOCAL)
        letters: list[Any] = []
        queue.dead_letter = letters.append
        (row,) = await queue.next("a")
        engine.gate.clear()
        engine.forget()
        queue.reject(row.token)
        assert (letters, queue.pending()) == ([], 1)
        engine.gate.set()
        await passes_until(lambda: bool(letters))
        assert values(letters) == ["bad"]
        queue.settle_dead_letter(letters[0].token)
        assert queue.pending() == 0


async def test_a_queue_with_priorities_hands_out_what_is_not_in_memory(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, _engine):
        await say(broker, "t", *SAID)
        settings = QueueSettings(priority_header=b"p")
        queue = await broker.cursors.open_queue(
            "q", ["t"], start=EARLIEST, settings=settings, principal=LOCAL
        )
        found: list[Any] = []
        async with asyncio.timeout(10):
            while len(found) < len(SAID):
                found += await queue.next("a", 5)
        assert values(found) == SAID


async def test_a_session_redelivers_what_is_not_in_memory_while_others_run(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "t", *SAID)
        session = await broker.cursors.open_session("s", ["t"], start=EARLIEST, principal=LOCAL)
        sent: list[Any] = []
        while len(sent) < 12:
            sent += await session.next()
        engine.forget()
        engine.gate.clear()
        redelivery = asyncio.create_task(session.redeliver_later())
        await asyncio.sleep(0)
        session.acknowledge(sent[3].packet_id)
        engine.gate.set()
        again = await asyncio.wait_for(redelivery, 10)
        assert values(again) == [text for text in SAID if text != "3"]


async def test_a_table_is_looked_up_while_others_run(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        for number in range(5):
            await say(broker, f"k/{number}", str(number))
        table = await broker.cursors.open_table("t", ["k/#"], principal=LOCAL)
        engine.forget()
        record = await table.look_up("k/3")
        assert record is not None
        assert record.value == b"3"
        assert await table.look_up("k/9") is None
        found = await table.look_for("k/#")
        assert sorted(spoken(found)) == [f"k/{number}={number}" for number in range(5)]


async def test_a_row_that_is_replaced_while_it_is_read_gives_the_newer_record(
    tmp_path, monkeypatch
):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "k", "old")
        table = await broker.cursors.open_table("t", ["k"], principal=LOCAL)
        engine.forget()
        engine.gate.clear()
        looking = asyncio.create_task(table.look_up("k"))
        await asyncio.sleep(0)
        engine.is_cold = False  # the table follows; what is looked up is on its way
        await say(broker, "k", "new")
        await passes_until(lambda: table.place_of("k").offset == 1)
        engine.gate.set()
        record = await asyncio.wait_for(looking, 10)
        assert record is not None
        assert "k" in table


async def test_a_tail_that_begins_at_a_time_opens_at_once_and_finds_it_later(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "t", *SAID)
        engine.gate.clear()
        tail = broker.cursors.open_tail(["t"], start=Start("time", 0), principal=LOCAL)
        assert tail.fetch() == []
        engine.gate.set()
        found: list[str] = []
        async with asyncio.timeout(10):
            while len(found) < len(SAID):
                found += spoken(await tail.next())
        assert found == [f"t={text}" for text in SAID]
        late = broker.cursors.open_tail(["t"], start=Start("time", 2**50), principal=LOCAL)
        assert await late.next(timeout_s=0.05) == []


async def test_a_topic_that_moves_is_read_in_order_where_the_index_is_not_in_memory(
    tmp_path, monkeypatch
):
    async with cold_broker(tmp_path, monkeypatch) as (broker, _engine):
        await say(broker, "a/1", "old")
        await say(broker, "b/1", "other")
        await broker.streams.create(StreamConfig(name="a", captures=("a/1",)))
        await broker.streams.create(StreamConfig(name="c", captures=("c/1",)))
        await say(broker, "a/1", "new")
        assert broker.streams.get("a").record.moves
        assert not broker.streams.get("c").record.moves, "nothing of it was anywhere"
        tail = broker.cursors.open_tail(["a/1"], start=EARLIEST, principal=LOCAL)
        found: list[str] = []
        async with asyncio.timeout(10):
            while len(found) < 2:
                found += spoken(await tail.next())
        assert found == ["a/1=old", "a/1=new"]


async def test_what_is_not_in_memory_stops_one_partition_and_keeps_nobody_else(
    tmp_path, monkeypatch
):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "site/a/t", "a")
        other = next(
            topic
            for topic in (f"site/{number}/t" for number in range(100))
            if home_of(broker, topic)[1] is not home_of(broker, "site/a/t")[1]
        )
        await say(broker, other, "b")
        table = await broker.cursors.open_table("t", ["site/#"], principal=LOCAL)
        engine.forget()
        engine.failure = PartitionStopped("the disk is broken")
        with pytest.raises(PartitionStopped):
            await table.look_up("site/a/t")
        engine.failure = None
        assert home_of(broker, "site/a/t")[1].stopped is not None
        record = await table.look_up(other)
        assert record is not None
        assert record.value == b"b"


# -- MQTT


async def test_mqtt_sends_what_was_in_flight_again_before_anything_new(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)
    async with mqtt.serving(tmp_path) as node:
        (engine,) = engines
        sender = await node.client("sender")
        client = await node.client("c", expiry_s=600)
        await client.subscribe("t/#", 1)
        for text in SAID[:4]:
            await sender.publish("t/1", text)
        for _ in range(4):
            await client.message()
        await client.drop()
        await node.gone("c")
        engine.forget()
        engine.gate.clear()
        client = await node.client("c", clean=False, expiry_s=600)
        await sender.publish("t/1", "new")
        await asyncio.sleep(0.05)
        engine.gate.set()
        again = [await client.message() for _ in range(5)]
        assert [row.payload.decode() for row in again] == [*SAID[:4], "new"]
        assert [row.dup for row in again] == [True] * 4 + [False]
        assert engine.in_loop == []


async def test_mqtt_gives_up_a_redelivery_when_its_connection_goes(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)
    async with mqtt.serving(tmp_path) as node:
        (engine,) = engines
        sender = await node.client("sender")
        client = await node.client("c", expiry_s=600)
        await client.subscribe("t/#", 1)
        await sender.publish("t/1", "x")
        await client.message()
        await client.drop()
        await node.gone("c")
        engine.forget()
        engine.gate.clear()
        client = await node.client("c", clean=False, expiry_s=600)
        await client.drop()
        await node.gone("c")
        engine.gate.set()
        client = await node.client("c", clean=False, expiry_s=600)
        again = await client.message()
        assert (again.payload, again.dup) == (b"x", True)
        await client.acknowledge(again)
        await sender.publish("t/1", "y")
        assert (await client.message()).payload == b"y"
        assert engine.in_loop == []


async def test_mqtt_greets_replays_and_delays_what_is_not_in_memory(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)
    async with mqtt.serving(tmp_path) as node:
        (engine,) = engines
        sender = await node.client("sender")
        for text in SAID:
            await sender.publish(f"r/{text}", text, retain=True)
        await sender.publish("$delayed/0/d", "late")
        engine.forget()
        client = await node.client("c")
        await client.subscribe("r/#", 1)
        assert sorted(await client.take(12), key=int) == SAID
        await client.subscribe("$replay/1000/r/#", 1)
        assert sorted(await client.take(12), key=int) == SAID
        await client.subscribe("$replay/earliest/d", 1)
        assert await client.take() == ["late"]
        assert engine.in_loop == []


# -- AMQP


async def on_channel(node: amqp.Node, work: Callable[[RawChannel], Any]) -> Any:
    def run() -> Any:
        with Raw(node.port) as raw:
            return work(raw.open().channel())

    async with asyncio.timeout(60):
        return await asyncio.to_thread(run)


def filled(channel: RawChannel, name: str, *bodies: str, **arguments: Any) -> None:
    channel.confirm()
    channel.queue(name, durable=True, arguments=x_arguments(arguments))
    channel.put("", name, *bodies)


async def test_amqp_gets_one_message_that_is_not_in_memory(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)
    async with amqp.serving(tmp_path) as node:
        (engine,) = engines
        await on_channel(node, lambda channel: filled(channel, "q", "a", "b"))
        engine.forget()

        def get(channel: RawChannel) -> list[str | None]:
            found = [channel.get("q") for _ in range(3)]
            return [None if row is None else row.text for row in found]

        assert await on_channel(node, get) == ["a", "b", None]
        assert engine.in_loop == []


async def test_amqp_gets_nothing_of_a_queue_that_went_meanwhile(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)
    async with amqp.serving(tmp_path) as node:
        (engine,) = engines
        await on_channel(node, lambda channel: filled(channel, "q", "a"))
        engine.forget()
        engine.gate.clear()
        asked = engine.cold_reads
        getting = asyncio.create_task(on_channel(node, lambda channel: channel.get("q")))
        await mqtt.until(lambda: engine.cold_reads > asked)
        vhost = node.hub.queues.vhosts.find("/")
        assert vhost is not None
        await vhost.delete_queue(vhost.queues["q"])
        with pytest.raises(Exception, match="no queue 'q'"):
            await getting
        engine.gate.set()
        assert engine.in_loop == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_priority": 5},
        {"max_length": 100},
        {"max_length_bytes": 100_000},
        {"message_ttl": 600_000},
        {"max_length": 100, "overflow": "reject-publish"},
    ],
    ids="-".join,
)
async def test_a_queue_with_limits_hands_out_takes_back_and_survives_a_restart(
    tmp_path, monkeypatch, arguments
):
    engines = make_cold(monkeypatch)

    def take_and_return(channel: RawChannel) -> list[str]:
        channel.qos(4)
        channel.consume("q")
        found = channel.messages(4)
        for row in found:
            channel.nack(row.tag)
        again = channel.texts(4)
        channel.close()
        return again

    def take_all(channel: RawChannel) -> list[str]:
        channel.consume("q")
        return channel.texts(len(SAID))

    async with amqp.serving(tmp_path) as node:
        await on_channel(node, lambda channel: filled(channel, "q", *SAID, **arguments))
        engines[-1].forget()
        assert await on_channel(node, take_and_return) == SAID[:4]
    async with amqp.serving(tmp_path) as node:
        assert await on_channel(node, take_all) == SAID
    assert [engine.in_loop for engine in engines] == [[], []]


async def test_dead_letters_keep_their_order_where_some_are_not_in_memory(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)

    def reject_all(channel: RawChannel) -> list[str]:
        channel.queue("dead", durable=True)
        more = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        filled(channel, "q", *SAID, **more)
        channel.consume("q")
        found = channel.messages(len(SAID))
        engines[0].forget()
        for row in found:
            channel.nack(row.tag, requeue=False)
        channel.consume("dead")
        return channel.texts(len(SAID))

    async with amqp.serving(tmp_path) as node:
        assert await on_channel(node, reject_all) == SAID
        assert engines[0].in_loop == []


async def test_messages_that_are_not_in_memory_expire_in_their_time(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)

    def expire(channel: RawChannel) -> list[str]:
        channel.queue("dead", durable=True)
        more = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead", "message_ttl": 50}
        filled(channel, "q", *SAID, **more)
        engines[0].forget()
        channel.consume("dead")
        return channel.texts(len(SAID))

    async with amqp.serving(tmp_path) as node:
        assert await on_channel(node, expire) == SAID
        assert engines[0].in_loop == []


async def test_a_stream_queue_is_read_from_a_time_that_is_not_in_memory(tmp_path, monkeypatch):
    engines = make_cold(monkeypatch)

    def read(channel: RawChannel) -> list[str]:
        filled(channel, "s", *SAID, queue_type="stream", max_length_bytes=10_000)
        channel.qos(100)
        engines[0].forget()
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        channel.consume("s", arguments={"x-stream-offset": start})
        return channel.texts(len(SAID))

    async with amqp.serving(tmp_path) as node:
        assert await on_channel(node, read) == SAID
        assert engines[0].in_loop == []


# -- the log changes while bytes are on their way


async def ready(broker: Broker, name: str, **settings: Any) -> None:
    config = StreamConfig(name=name, captures=("s/#",), segment_bytes=4096, **settings)
    await broker.streams.create(config)
    for number in range(20):
        await say(broker, "s/t", f"{number} " + "x" * 1000)


async def test_a_stream_is_deleted_while_its_bytes_are_on_their_way(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await ready(broker, "s")
        await say(broker, "other", "x")
        tail = broker.cursors.open_tail(["s/t", "other"], start=EARLIEST, principal=LOCAL)
        engine.gate.clear()
        reading = asyncio.create_task(tail.next())
        await asyncio.sleep(0)
        deleting = asyncio.create_task(broker.streams.delete("s"))
        await asyncio.sleep(0.02)
        engine.gate.set()
        await asyncio.wait_for(deleting, 10)
        found = spoken(await asyncio.wait_for(reading, 10))
        async with asyncio.timeout(10):
            while "other=x" not in found:
                found += spoken(await tail.next())


async def test_retention_takes_records_while_they_are_on_their_way(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await ready(broker, "s")
        partition = broker.streams.get("s").partitions[0]
        tail = broker.cursors.open_tail(["s/t"], start=EARLIEST, principal=LOCAL)
        engine.gate.clear()
        reading = asyncio.create_task(tail.next())
        await asyncio.sleep(0)
        await partition.trim(partition.high_watermark - 3)
        engine.gate.set()
        found = spoken(await asyncio.wait_for(reading, 10))
        async with asyncio.timeout(10):
            while len(found) < 3:
                found += spoken(await tail.next())
        assert [row.split("=")[1].split()[0] for row in found] == ["17", "18", "19"]
