"""The topic index's bar: one topic of 100 000 found among 10 million messages, beside a full scan.

The peer is the cheapest full scan there is: a cursor on a wildcard filter that only this topic
matches, so that every record is looked at in the kernel and 100 of them become Python objects.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from bench.report import Row, data_dir, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import LOCAL, Broker, BrokerSettings, Durability, OffsetCursor, StreamConfig
from onelog.kernel import BatchBuilder

TOPICS = 100_000
PER_TOPIC = 100
BATCH_RECORDS = 1000
VALUE = bytes(64)


async def fill(broker: Broker) -> None:
    """Every topic 100 times, in an order that is shuffled anew each time."""
    config = StreamConfig(name="many", captures=("many/#",), durability=Durability.OS)
    partition = (await broker.streams.create(config)).partitions[0]
    now_ms = time.time_ns() // 1_000_000
    rows = [(topic, topic, VALUE, (), now_ms) for topic in map(topic_of, range(TOPICS))]
    chance = random.Random(5)
    for turn in range(PER_TOPIC):
        chance.shuffle(rows)
        for start in range(0, TOPICS, BATCH_RECORDS):
            builder = BatchBuilder(True)
            builder.extend(rows[start : start + BATCH_RECORDS])
            partition.append_built(builder, index_topics=True)
        await asyncio.sleep(0)
        if turn % 25 == 24:
            say(f"topics: {(turn + 1) * TOPICS / 1e6:.1f} M messages written")


def topic_of(number: int) -> bytes:
    return b"many/d%06d/state" % number


async def find(broker: Broker, filter_: str) -> float:
    """Open a cursor, read everything that matches, close it: seconds."""
    start = time.perf_counter()
    cursor: OffsetCursor = await broker.cursors.open_offset(
        "find", [filter_], durable=False, principal=LOCAL
    )
    found = cursor.fetch(1000)
    while cursor.reading.is_behind():
        await cursor.reading.turn()  # also until what is not in memory came from the disk
        found += cursor.fetch(1000)
    took = time.perf_counter() - start
    await broker.cursors.close_cursor(cursor)
    assert len(found) == PER_TOPIC
    assert len({record.topic for record in found}) == 1
    return took


async def measure(directory: Path) -> list[Row]:
    broker = await open_broker(directory, BrokerSettings(), SystemClock())
    await fill(broker)
    await broker.close()
    chance = random.Random(6)
    first_exact, exact, first_scans, scans = [], [], [], []
    for _ in range(3):
        numbers = chance.sample(range(TOPICS), 11)
        names = [f"many/d{number:06d}" for number in numbers]
        # Each side comes first on a store that was just opened: then its files are mapped and
        # checked by it, and the other side finds that done.
        broker = await open_broker(directory, BrokerSettings(), SystemClock())
        first_exact.append(await find(broker, f"{names[0]}/state"))
        exact += [await find(broker, f"{name}/state") for name in names[1:]]
        await broker.close()
        broker = await open_broker(directory, BrokerSettings(), SystemClock())
        first_scans.append(await find(broker, f"{names[0]}/+"))
        scans += [await find(broker, f"{name}/+") for name in names[1:4]]
        await broker.close()
    return make_rows(
        *(median(times) * 1e3 for times in (exact, scans, first_exact, first_scans)),
    )


def make_rows(
    exact_ms: float, scan_ms: float, first_exact_ms: float, first_scan_ms: float
) -> list[Row]:
    say(f"topics: {exact_ms:.1f} ms through the index, {scan_ms:.0f} ms by a full scan")
    peer = ("wildcard cursor over all, ms", scan_ms)
    first_peer = ("wildcard cursor first, ms", first_scan_ms)
    return [
        row("exact topic among 10 M messages / full scan", exact_ms / scan_ms * 100, "%", 5,
            low=True, peer=peer),
        row("the same, both the first look after opening", first_exact_ms / first_scan_ms * 100,
            "%", 5, low=True, peer=first_peer),
        row("exact topic among 10 M messages: its 100", exact_ms, "ms", peer=peer),
        row("the same, the first look after opening", first_exact_ms, "ms", peer=first_peer),
        row("full scan, wildcard filter", TOPICS * PER_TOPIC / scan_ms / 1e3, "M msg/s"),
    ]  # fmt: skip


async def topic_rows() -> list[Row]:
    with data_dir("topics") as directory:
        return await measure(directory)


def run() -> list[Row]:
    """Every row of the topic table."""
    return run_loop(topic_rows())
