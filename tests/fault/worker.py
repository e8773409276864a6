"""A process that runs a broker under load until it is killed, and tells what was acknowledged.

It opens the data directory, tells everything that is in it, then loads it from all sides. Frames go
to standard output, each one system call, so that what the parent has read is what the world outside
was told. A frame of an acknowledgement is written after the broker answered, a frame of an intent
before it was asked. Faults are armed when the load begins, or before the opening.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import struct
from pathlib import Path

import msgspec

from onelog.assembly import open_broker
from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.base.ids import Offset
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Cleanup,
    Compaction,
    Durability,
    Message,
    Published,
    QueueSettings,
    StreamConfig,
)
from onelog.log.partition import Partition
from onelog.record.batch import iterate_batches

SETTINGS = BrokerSettings(
    checkpoint_interval_s=0.05, maintenance_interval_s=0.2, flush_interval_s=0.05
)
STREAMS = (
    StreamConfig(name="fs", captures=("fs/#",), partitions=2, segment_bytes=64 * 1024),
    StreamConfig(
        name="os",
        captures=("os/#",),
        partitions=2,
        durability=Durability.OS,
        segment_bytes=64 * 1024,
    ),
    StreamConfig(
        name="kc",
        captures=("kc/#",),
        cleanup=Cleanup.COMPACT,
        compaction=Compaction(min_dirty_ratio=0.2),
        segment_bytes=16 * 1024,
    ),
    StreamConfig(name="tr", captures=("tr/#",), segment_bytes=16 * 1024),
    StreamConfig(name="kv", captures=("kv/#",), partitions=2, engine="kv"),
    StreamConfig(name="ko", captures=("ko/#",), engine="kv", durability=Durability.OS),
)
ROUND_SEQUENCES = 1_000_000
"""A record's sequence number is the round times this plus its number in the round."""


def tell(*frame: object) -> None:
    data = msgspec.msgpack.encode(frame)
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(1, data) :]


def sequence_of(value: bytes | None) -> int:
    assert value is not None
    return int(value.split(b".", 1)[0])


def contents(partition: Partition) -> list[tuple[int, str, int]]:
    """Every record that readers see: offset, topic, sequence."""
    found: list[tuple[int, str, int]] = []
    offset = partition.start_offset
    while len(data := partition.read(offset, 1 << 20)):
        for info, slices in iterate_batches(data):
            for at in range(len(slices)):
                if slices.offset(at) >= offset:
                    topic = (slices.topic(at) or b"").decode()
                    found.append((slices.offset(at), topic, sequence_of(slices.value(at))))
            offset = Offset(info.last_offset + 1)
    return found


async def open_loaded(data: Path) -> Broker:
    """The broker with the streams of the load."""
    data.mkdir(exist_ok=True)
    broker = await open_broker(data, SETTINGS, SystemClock())
    for config in STREAMS:
        if broker.streams.find(config.name) is None:
            await broker.streams.create(config)
    cursors = broker.streams.get("~cursors").config
    small = msgspec.structs.replace(cursors, segment_bytes=64 * 1024)
    if cursors != small:  # so that the cursors' own stream rolls and is compacted too
        await broker.streams.alter(small)
    return broker


class Load:
    """Everything that uses the broker at once."""

    def __init__(self, broker: Broker, number: int, seed: int) -> None:
        self.broker = broker
        self.number = number
        self.chance = random.Random(seed)
        self._sequences: dict[str, itertools.count[int]] = {}

    def message(self, topic: str) -> Message:
        count = self._sequences.get(topic)
        if count is None:
            count = self._sequences[topic] = itertools.count(self.number * ROUND_SEQUENCES)
        padding = bytes(self.chance.randrange(400))
        sequence = next(count)
        tell("attempt", topic, sequence)
        return Message(topic, b"%d." % sequence + padding)

    @staticmethod
    def tell_published(messages: list[Message], published: list[Published]) -> None:
        for message, where in zip(messages, published, strict=True):
            tell(
                "published", where.stream, where.partition, int(where.offset), message.topic,
                sequence_of(message.value),
            )  # fmt: skip

    # Publishers. Each topic has one.

    async def publish_each(self, topic: str) -> None:
        while True:
            message = self.message(topic)
            self.tell_published([message], [await self.broker.publish(message, principal=LOCAL)])
            await asyncio.sleep(self.chance.random() * 0.004)

    async def publish_many(self, topics: list[str]) -> None:
        while True:
            count = self.chance.randrange(1, 15)
            messages = [self.message(self.chance.choice(topics)) for _ in range(count)]
            self.tell_published(messages, await self.broker.publish_many(messages, principal=LOCAL))
            await asyncio.sleep(self.chance.random() * 0.004)

    async def publish_ahead(self, topic: str) -> None:
        """Many in flight at once, in order."""
        while True:
            messages = [self.message(topic) for _ in range(8)]
            calls = [self.broker.publish(message, principal=LOCAL) for message in messages]
            self.tell_published(messages, await asyncio.gather(*calls))
            await asyncio.sleep(self.chance.random() * 0.004)

    # Consumers.

    async def commit_offsets(self) -> None:
        cursor = await self.broker.cursors.open_offset("reader", ["fs/#", "os/#"], principal=LOCAL)
        names = {stream.record.id: stream.name for stream in self.broker.streams.streams()}

        def rows() -> list[tuple[str, int, int]]:
            return [(names[row.stream_id], row.partition, row.offset) for row in cursor.committed()]

        tell("restored", rows())
        first_seen: set[tuple[str, int]] = set()
        while True:
            for record in await cursor.next(200):
                if (record.stream, record.partition) not in first_seen:
                    first_seen.add((record.stream, record.partition))
                    tell("first-read", record.stream, record.partition, int(record.offset))
            cursor.commit_read()
            committed = rows()
            await self.broker.cursors.save(cursor)
            tell("committed", committed)

    async def settle_queue(self) -> None:
        settings = QueueSettings(lock_ms=100, in_flight_max=500)
        queue = await self.broker.cursors.open_queue(
            "queue", ["os/#"], start=EARLIEST, settings=settings, principal=LOCAL
        )
        while True:
            acked = []
            for delivery in await queue.next("c", 50):
                record, dice = delivery.record, self.chance.random()
                place = (record.stream, record.partition, int(record.offset))
                tell("delivered", "queue", *place)
                if dice < 0.7:
                    queue.ack(delivery.token)
                    acked.append(place)
                elif dice < 0.85:
                    queue.release(delivery.token)
            tell("settle", "queue", acked)
            await self.broker.cursors.save(queue)
            tell("settled", "queue", acked)

    async def settle_session(self) -> None:
        session = await self.broker.cursors.open_session(
            "session", ["fs/#"], start=EARLIEST, window=50, principal=LOCAL
        )
        held: dict[int, tuple[str, int, int]] = {}
        deliveries = session.redeliver()
        while True:
            for delivery in deliveries:
                record = delivery.record
                if record is None:  # received in an earlier round, to be released now
                    held.setdefault(delivery.packet_id, ("", 0, 0))
                    continue
                place = (record.stream, record.partition, int(record.offset))
                tell("delivered", "session", *place)
                held[delivery.packet_id] = place
            acked = []
            for packet_id in [key for key in held if self.chance.random() < 0.8]:
                place = held[packet_id]
                if self.chance.random() < 0.3:
                    session.receive(packet_id)
                else:
                    assert session.acknowledge(packet_id)
                    del held[packet_id]
                acked.append(place)
            tell("settle", "session", acked)
            await self.broker.cursors.save(session)
            tell("settled", "session", acked)
            deliveries = await session.next(50, timeout_s=0.05)

    async def follow_table(self) -> None:
        table = await self.broker.cursors.open_table("table", ["kc/#"], principal=LOCAL)
        found = table.find("kc/#")
        tell("table", {record.topic: sequence_of(record.value) for record in found})

    # Administrators.

    async def trim(self) -> None:
        partition = self.broker.streams.get("tr").partitions[0]
        while True:
            await asyncio.sleep(self.chance.random() * 0.2)
            before = max(0, partition.high_watermark - self.chance.randrange(20, 400))
            tell("trim", before)
            await self.broker.delete_records("tr", 0, before)
            tell("trimmed", before)

    async def make_streams(self) -> None:
        made = [row.name for row in self.broker.streams.streams() if row.name.startswith("made-")]
        for count in itertools.count():
            name = f"made-{self.number}-{count}"
            await self.broker.streams.create(StreamConfig(name=name, captures=(f"{name}/#",)))
            tell("made", name)
            made.append(name)
            while len(made) > 2:
                doomed = made.pop(0)
                tell("unmake", doomed)
                await self.broker.streams.delete(doomed)
                tell("unmade", doomed)
            await asyncio.sleep(self.chance.random() * 0.1)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (
                self.publish_each("fs/a/1"),
                self.publish_many(["fs/b/1", "fs/b/2", "os/b/3", "os/b/4"]),
                self.publish_ahead("fs/c/1"),
                self.publish_each("os/a/1"),
                self.publish_ahead("os/c/1"),
                self.publish_many([f"kc/{n}" for n in range(10)]),
                self.publish_ahead("tr/1"),
                self.publish_each("kv/a/1"),
                self.publish_many(["kv/b/1", "kv/b/2", "ko/b/1"]),
                self.publish_ahead("ko/c/1"),
                self.commit_offsets(),
                self.settle_queue(),
                self.settle_session(),
                self.follow_table(),
                self.trim(),
                self.make_streams(),
            ):
                group.create_task(work)


async def _work(data: Path, number: int, seed: int, plan: str, *, at_open: bool) -> None:
    if at_open:
        faults.arm_from_environment(plan)
    broker = await open_loaded(data)
    for stream in broker.streams.streams():
        if stream.name in {config.name for config in STREAMS}:
            for partition in stream.partitions:
                assert partition.stopped is None, partition.stopped
                tell(
                    "holds", stream.name, int(partition.id), int(partition.start_offset),
                    int(partition.end_offset), contents(partition),
                )  # fmt: skip
    tell("ready", [stream.name for stream in broker.streams.streams()])
    faults.arm_from_environment(plan)
    await Load(broker, number, seed).run()


def run(data: Path, number: int, seed: int, plan: str, at_open: bool) -> None:
    asyncio.run(_work(data, number, seed, plan, at_open=at_open))
