"""What does a broker do on a disk that is really full? (I4)

The disk is a tmpfs of a few megabytes with a ballast file; deleting the ballast makes room.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.assembly import open_broker
from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.base.errors import OnelogError, StorageFull
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Message,
    QueueSettings,
    StreamConfig,
)

pytestmark = pytest.mark.fault

SETTINGS = BrokerSettings(
    checkpoint_interval_s=0.02, maintenance_interval_s=0.1, flush_interval_s=0.05
)
STREAM = StreamConfig(name="s", captures=("s/#",), partitions=2, segment_bytes=256 * 1024)
DISK_BYTES = 6 * 1024 * 1024
BALLAST_BYTES = 2 * 1024 * 1024
PUBLISHERS = 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real, small file system with a ballast file."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs failed: {done.stderr.strip()}")
    (path / "ballast").write_bytes(bytes(BALLAST_BYTES))
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def start(disk: Path) -> Broker:
    data = disk / "data"
    data.mkdir(exist_ok=True)
    broker = await open_broker(data, SETTINGS, SystemClock())
    if broker.streams.find(STREAM.name) is None:
        await broker.streams.create(STREAM)
    return broker


Acknowledged = dict[tuple[int, int], bytes]
"""Partition and offset → value."""


async def publish_until_full(broker: Broker, acknowledged: Acknowledged) -> None:
    """Publishers on their own topics, each until its message is refused for want of room."""

    async def publish(number: int) -> None:
        for count in range(100_000):
            value = b"%d.%d." % (number, count) + b"v" * 1500
            try:
                where = await broker.publish(Message(f"s/{number}", value), principal=LOCAL)
            except StorageFull:
                return
            acknowledged[where.partition, int(where.offset)] = value
        raise AssertionError("the disk was never full")

    await asyncio.gather(*(publish(number) for number in range(PUBLISHERS)))


def check(broker: Broker, acknowledged: Acknowledged) -> None:
    """Every acknowledged record is there, at its offset, once; offsets are dense."""
    tail = broker.cursors.open_tail(["s/#"], start=EARLIEST, principal=LOCAL)
    found: Acknowledged = {}
    while tail.reading.is_behind():
        for record in tail.fetch():
            place = (record.partition, int(record.offset))
            assert place not in found
            assert record.value is not None
            found[place] = record.value
    lost = [place for place, value in acknowledged.items() if found.get(place) != value]
    assert not lost, f"lost: {lost[:5]}"
    for partition in broker.streams.get("s").partitions:
        offsets = sorted(offset for number, offset in found if number == partition.id)
        assert offsets == list(range(partition.high_watermark))


async def test_a_full_disk_refuses_and_loses_nothing_and_goes_on_when_there_is_room(disk: Path):
    """I4: nothing acknowledged is lost while it is full, after room is made, after a restart."""
    broker = await start(disk)
    acknowledged: Acknowledged = {}
    await publish_until_full(broker, acknowledged)
    assert len(acknowledged) > 500
    check(broker, acknowledged)
    with pytest.raises(StorageFull, match="no room"):
        while True:  # a small one may find a hole; not for long
            where = await broker.publish(Message("s/small", b"x" * 1000), principal=LOCAL)
            acknowledged[where.partition, int(where.offset)] = b"x" * 1000
    assert not broker.stopped_partitions(), "a full disk stops nothing"
    assert "disk-full at storage" in str(broker.troubles.problem()), "whoever looks can see it"
    (disk / "ballast").unlink()
    async with asyncio.timeout(10):
        while broker.troubles.problem():  # noqa: ASYNC110 - found by a timer
            await asyncio.sleep(0.02)
    before = len(acknowledged)
    for number in range(100):
        value = b"after.%d" % number
        where = await broker.publish(Message(f"s/{number % PUBLISHERS}", value), principal=LOCAL)
        acknowledged[where.partition, int(where.offset)] = value
    assert len(acknowledged) == before + 100, "an offset was given twice"
    check(broker, acknowledged)
    await broker.close()
    broker = await start(disk)
    check(broker, acknowledged)
    await broker.close()


async def test_a_broker_can_be_closed_and_opened_on_a_full_disk(disk: Path):
    """I4: an operator who restarts first and makes room then has lost nothing either."""
    broker = await start(disk)
    acknowledged: Acknowledged = {}
    await publish_until_full(broker, acknowledged)
    fill_up(disk)
    with contextlib.suppress(StorageFull):  # it may say that its last state found no room
        await broker.close()
    broker = await start(disk)
    check(broker, acknowledged)
    with pytest.raises(StorageFull):
        for _ in range(1000):
            await broker.publish(Message("s/1", b"x" * 4000), principal=LOCAL)
    make_room(disk)
    where = await broker.publish(Message("s/1", b"room"), principal=LOCAL)
    acknowledged[where.partition, int(where.offset)] = b"room"
    check(broker, {key: value for key, value in acknowledged.items() if value != b"x" * 4000})
    await broker.close()


async def test_cursors_keep_what_was_saved_when_the_disk_fills_up(disk: Path):
    """I4: a checkpoint that does not fit is refused; the older one counts; later ones go on."""
    broker = await start(disk)
    for number in range(200):
        await broker.publish(Message(f"s/{number % 8}", b"%d" % number), principal=LOCAL)
    reader = await broker.cursors.open_offset("reader", ["s/#"], principal=LOCAL)
    queue = await broker.cursors.open_queue(
        "queue",
        ["s/#"],
        start=EARLIEST,
        settings=QueueSettings(in_flight_max=1000),
        principal=LOCAL,
    )
    table = await broker.cursors.open_table("table", ["s/#"], principal=LOCAL)
    settled = set()
    reader.fetch(50)
    reader.commit_read()
    for delivery in queue.acquire("c", 50):
        queue.ack(delivery.token)
        settled.add((delivery.record.partition, int(delivery.record.offset)))
    await broker.cursors.save(reader, queue)
    committed = {(row.stream_id, row.partition): row.offset for row in reader.committed()}
    fill_up(disk)
    with pytest.raises(StorageFull):
        while True:  # until the space that is reserved for ~cursors is used up
            await broker.cursors.save(reader, queue)
    for number in range(4):  # there is some left that is reserved for the messages
        await broker.publish(Message(f"s/{number}", b"late"), principal=LOCAL)
    reader.fetch(50)
    reader.commit_read()
    with pytest.raises(StorageFull):
        await broker.cursors.save(reader, table)
    make_room(disk)
    await broker.publish(Message("s/7", b"room"), principal=LOCAL)
    newest = {record.topic: record.value for record in table.find("s/#")}
    assert newest["s/0"] == b"late"
    assert newest["s/7"] == b"room"
    await broker.cursors.save(reader, queue, table)
    await broker.close()
    broker = await start(disk)
    reader = await broker.cursors.open_offset("reader", ["s/#"], principal=LOCAL)
    for row in reader.committed():
        assert row.offset >= committed[row.stream_id, row.partition]
    queue = await broker.cursors.open_queue("queue", ["s/#"], principal=LOCAL)
    left = queue.acquire("c", 1000)
    back = {(row.record.partition, int(row.record.offset)) for row in left} & settled
    assert not back, "settled and kept, and handed out again"
    table = await broker.cursors.open_table("table", ["s/#"], principal=LOCAL)
    assert {record.topic: record.value for record in table.find("s/#")} == newest
    await broker.close()


def fill_up(disk: Path) -> None:
    """Take every byte that is left."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def make_room(disk: Path) -> None:
    (disk / "ballast").unlink()
    (disk / "filler").unlink()


async def test_a_broker_whose_disk_fails_at_its_end_lets_go_of_everything(tmp_path: Path):
    """Whoever opens it next, in this process or another, finds it free and whole."""
    before = set(threading.enumerate())
    broker = await start(tmp_path)
    acknowledged: Acknowledged = {}
    for number in range(20):
        where = await broker.publish(Message(f"s/{number % 8}", b"%d" % number), principal=LOCAL)
        acknowledged[where.partition, int(where.offset)] = b"%d" % number
    faults.arm("segment.fsync", faults.fail_with(errno.EIO))
    try:
        with pytest.raises(OnelogError):
            await broker.close()
    finally:
        faults.disarm("segment.fsync")
    left = set(threading.enumerate()) - before
    assert not [thread.name for thread in left if thread.name.startswith("onelog")]
    broker = await start(tmp_path)
    check(broker, acknowledged)
    await broker.close()
