"""A real broker on a data directory: streams, transactions and reading everything there is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from onelog.assembly import open_broker
from onelog.base.clock import ManualClock
from onelog.base.ids import Offset
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Durability,
    Message,
    OffsetCursor,
    Principal,
    Record,
    SessionCursor,
    StreamConfig,
    TailCursor,
)
from onelog.kernel import ATTR_TRANSACTIONAL, scan_batches
from onelog.log.partition import Appended, Partition
from onelog.log.stream import Stream
from onelog.record.batch import Marker, Row, build_batch

FAST = BrokerSettings(
    main=StreamConfig(name="main", captures=("#",), partitions=4, durability=Durability.OS),
    checkpoint_interval_s=3600.0,
    maintenance_interval_s=3600.0,
    flush_interval_s=3600.0,
)
"""Answers at once and does nothing by timers, so that a test decides what happens."""


@contextlib.asynccontextmanager
async def running(
    path: Path, settings: BrokerSettings = FAST, clock: ManualClock | None = None, **hooks: Any
) -> AsyncIterator[Broker]:
    """A broker for the length of a block."""
    path.mkdir(parents=True, exist_ok=True)
    broker = await open_broker(path, settings, clock or ManualClock(), **hooks)
    try:
        yield broker
    finally:
        await broker.close()


async def say(broker: Broker, topic: str, *values: str) -> None:
    """Publish values to a topic, one message each."""
    await broker.publish_many([Message(topic, value.encode()) for value in values], principal=LOCAL)


def spoken(records: Sequence[Record]) -> list[str]:
    """What records say, as topic=value."""
    return [f"{record.topic}={(record.value or b'').decode()}" for record in records]


def read_all(cursor: OffsetCursor | TailCursor, limit: int = 1000) -> list[Record]:
    """Everything that a cursor can read now."""
    found: list[Record] = []
    while True:
        more = cursor.fetch(limit)
        found += more
        if not more and not cursor.reading.is_behind():
            return found


def read_session(cursor: SessionCursor) -> list[Record]:
    """Everything that a session can read now, acknowledged."""
    found: list[Record] = []
    while True:
        more = cursor.fetch()
        for delivery in more:
            assert delivery.record is not None
            found.append(delivery.record)
            cursor.acknowledge(delivery.packet_id)
        if not more and not cursor.reading.is_behind():
            return found


async def history(broker: Broker, *filters: str) -> list[str]:
    """All records of some filters, as a cursor opened now reads them."""
    cursor = await broker.cursors.open_offset(
        "history", filters, start=EARLIEST, durable=False, principal=LOCAL
    )
    found: list[Record] = []
    while True:
        more = cursor.fetch()
        found += more
        if not more and not cursor.reading.is_behind():
            break
        await cursor.reading.turn()  # what is cold comes from the disk meanwhile
    await broker.cursors.close_cursor(cursor)
    return spoken(found)


def topic_rows(topic: str, *values: str, timestamp_ms: int = 1_700_000_000_000) -> list[Row]:
    """Rows for a batch of a stream with many topics."""
    name = topic.encode()
    return [(name, name, value.encode(), (), timestamp_ms) for value in values]


def client_batch(
    rows: Sequence[Row],
    *,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytearray:
    """A batch as a client sends it."""
    attributes = ATTR_TRANSACTIONAL if transactional else 0
    return bytearray(
        build_batch(rows, codec=codec, tag_topics=True, attributes=attributes, producer=producer)
    )


def home_of(broker: Broker, topic: str) -> tuple[Stream, Partition]:
    """Where a topic lives."""
    stream = broker.streams.home(topic)
    return stream, stream.partition_of(topic.encode())


async def put_batch(
    broker: Broker, stream: Stream, number: int, data: bytearray, principal: Principal = LOCAL
) -> Appended:
    """Append a client's batch, or several as one write; returns when that is durable."""
    target, publisher = stream.partition(number), broker.publisher
    appended: Appended | None = None
    for info in scan_batches(data):
        appended = publisher.admit_batch(stream, target, info, principal) or appended
    if appended is None:
        placed = publisher.put_batches(target, data)
        appended = Appended(Offset(placed[0].base_offset), Offset(placed[-1].last_offset + 1))
    await target.wait_visible(Offset(appended.end_offset - 1))
    return appended


async def transaction(
    broker: Broker, topic: str, producer: tuple[int, int, int], *values: str
) -> Partition:
    """Write records of a transaction that stays open; `end` ends it."""
    stream, partition = home_of(broker, topic)
    batch = client_batch(topic_rows(topic, *values), producer=producer, transactional=True)
    await put_batch(broker, stream, partition.id, batch)
    return partition


def end(partition: Partition, producer_id: int, marker: Marker) -> None:
    """End a producer's transaction."""
    partition.append_marker(marker, producer_id, 0)


def batches_of(partition: Partition) -> int:
    """How many batches a partition holds."""
    return len(scan_batches(partition.read(partition.start_offset, 1 << 30)))
