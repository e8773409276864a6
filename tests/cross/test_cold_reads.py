"""Readers on an engine whose every read is cold: they get everything, and the loop never waits."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onelog.base.errors import PartitionStopped, StorageError
from onelog.base.ids import Offset
from onelog.broker import EARLIEST, LOCAL, Broker, Message, Start
from onelog.log import arrivals
from onelog.log.arrivals import ARRIVAL
from onelog.storage.engine import Cold, Lease
from tests.conformance.amqp_raw import Raw, RawChannel
from tests.support.amqp import Node, serving
from tests.support.brokers import home_of, say
from tests.support.cold import ColdLog, cold_broker, make_cold
from tests.support.turns import passes_until
from tests.unit.test_broker_live import Follower

FILTERS = ("site/a/t", "site/+/t", "site/#")
SAID = [f"{number}" for number in range(30)]


async def fill(broker: Broker) -> None:
    for value in SAID:
        await say(broker, "site/a/t", value)
        await say(broker, "site/b/t", value)


def cold_of(broker: Broker, topic: str) -> Cold:
    _stream, partition = home_of(broker, topic)
    with pytest.raises(Cold) as raised:
        partition.lookup.read(Offset(0), 1)
    return raised.value


async def test_one_courier_brings_what_many_wait_for_and_calls_on_the_loop(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await say(broker, "t", "x")
        _stream, partition = home_of(broker, "t")
        engine.gate.clear()
        before, told = engine.brought, []

        def here(error: object) -> None:
            told.append((error, len(partition.lookup.read(Offset(0), 1)) > 0))

        for _ in range(3):
            partition.when_here(cold_of(broker, "t"), here)
        gone = partition.when_here(cold_of(broker, "t"), here)
        gone.cancel()
        await asyncio.sleep(0)
        assert told == []
        engine.gate.set()
        await passes_until(lambda: len(told) == 3)
        assert told == [(None, True)] * 3
        assert engine.brought == before + 1


async def test_who_raises_over_what_came_keeps_it_from_nobody(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, _engine):
        await say(broker, "t", "x")
        _stream, partition = home_of(broker, "t")
        told: list[object] = []

        def bad(_error: object) -> None:
            raise ValueError("bad")

        partition.when_here(cold_of(broker, "t"), bad)
        partition.when_here(cold_of(broker, "t"), told.append)
        await passes_until(lambda: told == [None])
        assert broker.troubles.count(ARRIVAL) == 1


async def test_what_cannot_be_brought_stops_the_partition_and_no_other(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await fill(broker)
        engine.failure = PartitionStopped("the disk is broken")
        told: list[object] = []
        _stream, partition = home_of(broker, "site/a/t")
        partition.when_here(cold_of(broker, "site/a/t"), told.append)
        await passes_until(lambda: len(told) == 1)
        assert told == [engine.failure]
        assert partition.stopped is engine.failure
        assert home_of(broker, "site/b/t")[1].stopped is None


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("kind", ["tail", "offset", "session", "queue"])
async def test_a_cursor_reads_everything_and_the_loop_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str
):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await fill(broker)
        topics = ("site/a/t",) if text == "site/a/t" else ("site/a/t", "site/b/t")
        found = await asyncio.wait_for(read_kind(broker, kind, text, 30 * len(topics)), 20)
        for topic in topics:
            assert [value for name, value in found if name == topic] == SAID
        assert engine.brought > 0
        assert engine.in_loop == []


async def read_kind(broker: Broker, kind: str, text: str, count: int) -> list[tuple[str, str]]:
    desk, records = broker.cursors, []
    if kind == "tail":
        tail = desk.open_tail([text], start=EARLIEST, principal=LOCAL)
        while len(records) < count:
            records += await tail.next()
    elif kind == "offset":
        offset = await desk.open_offset("o", [text], start=EARLIEST, principal=LOCAL)
        while len(records) < count:
            records += await offset.next()
    elif kind == "session":
        session = await desk.open_session("s", [text], start=EARLIEST, window=1000, principal=LOCAL)
        while len(records) < count:
            records += [row.record for row in await session.next()]
    else:
        queue = await desk.open_queue("q", [text], start=EARLIEST, principal=LOCAL)
        while len(records) < count:
            records += [row.record for row in await queue.next("c", 10)]
    return [(record.topic, (record.value or b"").decode()) for record in records]


async def test_a_reader_that_waits_for_the_disk_does_not_spin(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await fill(broker)
        cursor = broker.cursors.open_tail(["site/#"], start=EARLIEST, principal=LOCAL)
        engine.gate.clear()
        reading = asyncio.create_task(cursor.next())
        await passes_until(lambda: engine.cold_reads >= 2)
        before = engine.cold_reads
        for _ in range(50):
            await asyncio.sleep(0)
        assert engine.cold_reads == before
        assert cursor.reading.is_behind()
        assert not cursor.reading.may_go_on()
        engine.gate.set()
        assert await asyncio.wait_for(reading, 10)
        cursor.close()


async def test_a_source_that_is_here_is_read_while_another_is_on_its_way(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await fill(broker)
        cursor = broker.cursors.open_tail(["site/#"], start=EARLIEST, principal=LOCAL)
        engine.gate.clear()
        assert cursor.fetch(10) == []
        engine.is_cold = False
        other = next(
            f"site/{number}/t"
            for number in range(100)
            if home_of(broker, f"site/{number}/t")[1]
            not in (home_of(broker, "site/a/t")[1], home_of(broker, "site/b/t")[1])
        )
        await say(broker, other, "news")
        assert [record.value for record in cursor.fetch(10)] == [b"news"]
        cursor.close()


async def test_closing_a_cursor_forgets_what_is_on_its_way(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await fill(broker)
        cursor = broker.cursors.open_tail(["site/#"], start=EARLIEST, principal=LOCAL)
        engine.gate.clear()
        assert cursor.fetch(10) == []
        cursor.close()
        before = engine.cold_reads
        engine.gate.set()
        await passes_until(lambda: engine.brought >= 2)
        assert engine.cold_reads == before


async def test_a_table_is_whole_only_when_everything_came(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        rows = [Message(f"site/{n}/t", b"%d" % n) for n in range(20)]
        await broker.publish_many(rows, principal=LOCAL)
        table = await asyncio.wait_for(
            broker.cursors.open_table("t", ["site/#"], principal=LOCAL), 10
        )
        assert len(table) == 20
        assert engine.brought > 0
        assert engine.in_loop == []


async def test_a_start_by_time_is_found_before_the_cursor_opens(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        await fill(broker)
        cursor = await broker.cursors.open_offset(
            "o", ["site/a/t"], start=Start("time", 0), principal=LOCAL
        )
        assert engine.brought > 0
        assert engine.in_loop == []
        assert [record.value for record in await cursor.next(1)] == [b"0"]


async def test_a_queue_of_amqp_hands_out_its_backlog_and_the_loop_waits_for_nothing(
    tmp_path, monkeypatch
):
    engines = make_cold(monkeypatch)
    bodies = [f"{number} " + "x" * 2000 for number in range(400)]

    def fill_queue(channel: RawChannel) -> None:
        channel.confirm()
        channel.queue("q", durable=True)
        channel.put("", "q", *bodies)

    def consume(channel: RawChannel) -> list[str]:
        channel.consume("q")
        return channel.texts(len(bodies))

    async with serving(tmp_path) as node:
        (engine,) = engines
        await on_channel(node, fill_queue)
        brought = engine.brought
        assert await on_channel(node, consume) == bodies
        assert engine.brought > brought
        assert engine.in_loop == []


async def on_channel(node: Node, work: Callable[[RawChannel], Any]) -> Any:
    def run() -> Any:
        with Raw(node.port) as raw:
            return work(raw.open().channel())

    async with asyncio.timeout(30):
        return await asyncio.to_thread(run)


async def test_a_live_feed_reads_back_every_record_once_and_in_order(tmp_path, monkeypatch):
    async with cold_broker(tmp_path, monkeypatch) as (broker, engine):
        follower = Follower(broker, takes=False)  # leaves every batch to be read from the log
        for value in SAID:
            await say(broker, "t", value)
        await passes_until(lambda: len(follower.seen) == len(SAID))
        assert [offset for _name, offset in follower.seen] == list(range(len(SAID)))
        assert engine.brought > 0
        assert engine.in_loop == []


def fail_once(monkeypatch: pytest.MonkeyPatch) -> list[StorageError]:
    """The first courier fails, and those who wait try again at once; the list is empty then."""
    bring, failures = ColdLog.bring, [StorageError("too many files are open")]

    def bring_or_fail(self: ColdLog, cold: Cold) -> Lease:
        if failures and threading.current_thread().name.startswith("onelog-courier"):
            raise failures.pop()
        return bring(self, cold)

    monkeypatch.setattr(ColdLog, "bring", bring_or_fail)
    monkeypatch.setattr(arrivals, "RETRY_S", 0.01)
    return failures


async def test_a_live_feed_reads_again_after_a_failure_that_passed(tmp_path, monkeypatch):
    failures = fail_once(monkeypatch)
    async with cold_broker(tmp_path, monkeypatch) as (broker, _engine):
        follower = Follower(broker, takes=False)
        await say(broker, "t", "the only one")
        await passes_until(lambda: follower.seen == [("main", 0)])
        assert not failures


async def test_a_queue_takes_its_history_after_a_failure_that_passed(tmp_path, monkeypatch):
    make_cold(monkeypatch)

    def send(channel: RawChannel) -> None:
        channel.confirm()
        channel.exchange("fanout", "x", durable=True)
        channel.put("x", "", *SAID)

    def bind(channel: RawChannel) -> list[str]:
        channel.bind(channel.queue("q", durable=True, arguments={"x-onelog-from": "earliest"}), "x")
        channel.consume("q")
        return channel.texts(len(SAID))

    async with serving(tmp_path) as node:
        await on_channel(node, send)
        failures = fail_once(monkeypatch)
        assert await on_channel(node, bind) == SAID
        assert not failures


async def test_a_start_gives_queues_what_came_after_a_failure_that_passed(tmp_path, monkeypatch):
    make_cold(monkeypatch)

    def send(channel: RawChannel) -> None:
        channel.confirm()
        channel.queue("q", durable=True)
        channel.put("", "q", *SAID)

    def receive(channel: RawChannel) -> list[str]:
        channel.consume("q")
        return channel.texts(len(SAID))

    async with serving(tmp_path / "live") as node:
        await on_channel(node, send)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    failures = fail_once(monkeypatch)
    async with serving(tmp_path / "crashed") as node:
        assert not failures
        assert await on_channel(node, receive) == SAID
