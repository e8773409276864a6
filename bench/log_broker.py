"""The broker's bars: group commit beside one fsync per message, and what a single publish costs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.report import Row, data_dir, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Durability,
    Message,
    Notice,
    StreamConfig,
)
from onelog.record.batch import build_batch

PUBLISHERS = 100
ROUND_S = 1.0
VALUE = bytes(range(256))
TOPIC = "bench/fsync/t"


async def open_bench(directory: Path) -> Broker:
    """A broker with one stream per durability level."""
    broker = await open_broker(directory, BrokerSettings(), SystemClock())
    for level in (Durability.FSYNC, Durability.OS, Durability.MEMORY):
        await broker.streams.create(
            StreamConfig(name=level.value, captures=(f"bench/{level}/#",), durability=level)
        )
    return broker


# -- one fsync per message, and many


def raw_rate(directory: Path) -> float:
    """Messages a second of a plain loop: write one batch of one message, fdatasync."""
    key = TOPIC.encode()
    batch = build_batch([(key, key, VALUE, (), 0)], tag_topics=True)
    fd = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < ROUND_S:
            os.write(fd, batch)
            os.fdatasync(fd)
            count += 1
        return count / (time.perf_counter() - start)
    finally:
        os.close(fd)


async def awaiting_rate(broker: Broker, publishers: int) -> float:
    """Messages a second of tasks that each publish and wait, again and again."""
    message = Message(TOPIC, VALUE)
    start = time.perf_counter()
    end = start + ROUND_S

    async def publish() -> int:
        count = 0
        while time.perf_counter() < end:
            await broker.publish(message, principal=LOCAL)
            count += 1
        return count

    counts = await asyncio.gather(*(publish() for _ in range(publishers)))
    return sum(counts) / (time.perf_counter() - start)


async def calling_rate(broker: Broker, publishers: int) -> float:
    """The same by callback, as a protocol's connection publishes: no task, no future."""
    messages = [Message(TOPIC, VALUE)]
    publish = broker.publisher.publish
    finished = asyncio.get_running_loop().create_future()
    start = time.perf_counter()
    end = start + ROUND_S
    count, running = 0, publishers

    def done(error: Exception | None) -> None:
        nonlocal count, running
        assert error is None, error
        count += 1
        if time.perf_counter() < end:
            publish(messages, Notice(done), principal=LOCAL)
        else:
            running -= 1
            if running == 0:
                finished.set_result(None)

    for _ in range(publishers):
        publish(messages, Notice(done), principal=LOCAL)
    await finished
    return count / (time.perf_counter() - start)


async def group_commit_rows() -> list[Row]:
    raw, one, tasks, calls, shares = [], [], [], [], []
    with data_dir("commit") as directory:
        broker = await open_bench(directory)
        for _ in range(3):
            raw.append(raw_rate(directory))
            tasks.append(await awaiting_rate(broker, PUBLISHERS))
            partition = broker.streams.get("fsync").partitions[0]
            before, syncs = partition.records_appended, partition.syncs
            calls.append(await calling_rate(broker, PUBLISHERS))
            shares.append((partition.records_appended - before) / (partition.syncs - syncs))
            one.append(await awaiting_rate(broker, 1))
            say(
                f"fsync: raw {raw[-1]:.0f}/s, 100 publishers {calls[-1]:.0f}/s, one {one[-1]:.0f}/s"
            )
        await broker.close()

    def times(mine: list[float], other: list[float]) -> float:
        return median([a / b for a, b in zip(mine, other, strict=True)])

    return [
        row(
            "group commit, 100 publishers (callbacks) / raw fsync each",
            times(calls, raw), "ratio", 20, peer=("write + fdatasync, msg/s", median(raw)),
        ),
        row(
            "group commit, 100 publishers (tasks) / raw fsync each",
            times(tasks, raw), "ratio", 20, peer=("write + fdatasync, msg/s", median(raw)),
        ),
        row(
            "group commit, 100 publishers (callbacks) / our one",
            times(calls, one), "ratio", 20, peer=("our one publisher, msg/s", median(one)),
        ),
        row("messages per sync, 100 publishers", median(shares), "messages"),
        row("publish and wait, fsync, 100 publishers (callbacks)", median(calls), "msg/s"),
        row("publish and wait, fsync, 100 publishers (tasks)", median(tasks), "msg/s"),
    ]  # fmt: skip


# -- what needs no bar


async def latency_rows() -> list[Row]:
    rows = []
    with data_dir("latency") as directory:
        broker = await open_bench(directory)
        for level in (Durability.OS, Durability.FSYNC):
            message = Message(f"bench/{level}/t", VALUE)
            for _ in range(200):
                await broker.publish(message, principal=LOCAL)
            took = []
            for _ in range(5000):
                start = time.perf_counter()
                await broker.publish(message, principal=LOCAL)
                took.append((time.perf_counter() - start) * 1e6)
            took.sort()
            rows.append(row(f"one publish, {level}: p50", took[len(took) // 2], "us"))
            rows.append(row(f"one publish, {level}: p99", took[len(took) * 99 // 100], "us"))
        await broker.close()
    say("publish latency measured")
    return rows


async def rate_rows() -> list[Row]:
    rows = []
    with data_dir("rate") as directory:
        broker = await open_bench(directory)
        for level in (Durability.OS, Durability.FSYNC):
            messages = [Message(f"bench/{level}/t{n % 10}", VALUE) for n in range(1000)]

            async def publish(messages: list[Message] = messages) -> int:
                await broker.publish_many(messages, principal=LOCAL)
                return len(messages)

            rows.append(row(f"publish_many of 1000, {level}", await _rate(publish), "msg/s"))
        cursor = await broker.cursors.open_offset(
            "reader", ["bench/os/+"], durable=False, principal=LOCAL
        )

        async def fetch() -> int:
            return len(cursor.fetch(1000))

        rows.append(row("cursor fetch of 1000, wildcard", await _rate(fetch, 0.5), "msg/s"))
        queue = await broker.cursors.open_queue(
            "queue", ["bench/os/+"], start=EARLIEST, durable=False, principal=LOCAL
        )

        async def settle() -> int:
            found = queue.acquire("c", 100)
            for delivery in found:
                queue.ack(delivery.token)
            return len(found)

        rows.append(row("queue acquire of 100 and ack", await _rate(settle, 0.5), "msg/s"))
        await broker.close()
    say("publish and cursor rates measured")
    return rows


async def _rate(work: Callable[[], Awaitable[int]], run_s: float = ROUND_S) -> float:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < run_s:
        done = await work()
        if not done:
            break
        count += done
    return count / (time.perf_counter() - start)


def run() -> list[Row]:
    """Every row of the broker's table."""
    return [
        *run_loop(group_commit_rows()),
        *run_loop(rate_rows()),
        *run_loop(latency_rows()),
    ]
