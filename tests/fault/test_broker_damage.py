"""What does a broker do with a torn tail, a flipped bit and a disk that fails to sync? (I4, I9)"""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from onelog.admin.view import AdminView
from onelog.assembly import open_broker
from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.base.errors import OnelogError, PartitionCorrupt, PartitionStopped
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Durability,
    Message,
    Published,
    StreamConfig,
)
from onelog.kernel import topic_hash

pytestmark = pytest.mark.fault

QUIET = BrokerSettings(
    checkpoint_interval_s=3600, maintenance_interval_s=3600, flush_interval_s=3600
)
TWO = StreamConfig(name="two", captures=("two/#",), partitions=2, segment_bytes=4096)

TOPICS = [
    next(topic for n in range(99) if topic_hash((topic := f"two/{n}").encode()) % 2 == partition)
    for partition in (0, 1)
]
"""A topic that lives in partition 0, and one in partition 1."""


async def start(data: Path) -> Broker:
    data.mkdir(exist_ok=True)
    broker = await open_broker(data, QUIET, SystemClock())
    if broker.streams.find(TWO.name) is None:
        await broker.streams.create(TWO)
    return broker


async def publish(broker: Broker, count: int, partition: int) -> list[Published]:
    messages = [Message(TOPICS[partition], b"%d" % n + b"." * 90) for n in range(count)]
    return [await broker.publish(message, principal=LOCAL) for message in messages]


async def read(broker: Broker, partition: int) -> list[int]:
    """The offsets of a partition as a reader sees them."""
    source = broker.streams.get("two").partitions[partition]
    tail = broker.cursors.open_tail(["two/#"], start=EARLIEST, principal=LOCAL)
    found = []
    while tail.reading.is_behind():
        found += [int(r.offset) for r in tail.fetch() if r.partition == source.id]
    tail.close()
    return found


def copy_as_killed(data: Path, to: Path) -> Path:
    """The files as a kill would leave them: the broker stays open, its directory is copied."""
    shutil.copytree(data, to)
    return to


def logs(data: Path, partition: int) -> list[Path]:
    return sorted(data.glob(f"segment/two-*/{partition}/*.log"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def state_of(broker: Broker, partition: int) -> str:
    return AdminView(broker).partitions("two", partition - 1, 1)[0].state


@pytest.mark.parametrize("tail", ["cut", "garbled", "zeros", "half a batch again"])
async def test_a_torn_tail_is_cut_and_the_stream_goes_on(
    tmp_path: Path, tail: str, capsys: pytest.CaptureFixture[str]
):
    """I4: what was acknowledged before is there; nothing of the torn batch is; offsets go on."""
    broker = await start(tmp_path / "data")
    await publish(broker, 50, 0)
    await publish(broker, 50, 1)
    copy = copy_as_killed(tmp_path / "data", tmp_path / "copy")
    await broker.close()
    whole = await start(copy_as_killed(copy, tmp_path / "whole"))
    size = whole.streams.get("two").partitions[0].log.segments()[-1].size_bytes
    assert await read(whole, 0) == list(range(50))
    await whole.close()
    path = logs(copy, 0)[-1]
    data = path.read_bytes()[:size]
    torn = {
        "cut": data[:-7],
        "garbled": data[:-60] + b"\xa5" * 60,
        "zeros": data[:-60] + bytes(4096),
        "half a batch again": data + data[:40],
    }[tail]
    path.write_bytes(torn)
    capsys.readouterr()
    broker = await start(copy)
    left = 50 if tail == "half a batch again" else 49
    assert state_of(broker, 0) == "running"
    assert await read(broker, 0) == list(range(left))
    assert await read(broker, 1) == list(range(50))
    shared, told = broker.streams.shared, capsys.readouterr().out
    assert shared.torn_tails == 1
    assert 0 < shared.torn_bytes < 400
    assert "a torn tail was cut" in told
    assert f"bytes={shared.torn_bytes} from_offset={left}" in told
    assert [row.offset for row in await publish(broker, 3, 0)] == [left, left + 1, left + 2]
    await broker.close()


async def test_damage_before_the_recovery_point_stops_one_partition_and_no_other(tmp_path: Path):
    """I9: the broker opens, the partition says why it is stopped, the others work."""
    data = tmp_path / "data"
    broker = await start(data)
    await publish(broker, 50, 0)
    await publish(broker, 50, 1)
    await broker.close()
    (data / "segment" / "clean-shutdown").unlink()  # as after a kill
    active = logs(data, 0)[-1]
    flip(active, active.stat().st_size - 20)
    broker = await start(data)
    assert state_of(broker, 0).startswith("stopped: ")
    assert "before the recovery point" in state_of(broker, 0)
    assert state_of(broker, 1) == "running"
    with pytest.raises(PartitionCorrupt, match=active.name):
        await publish(broker, 1, 0)
    assert [row.offset for row in await publish(broker, 2, 1)] == [50, 51]
    assert await read(broker, 1) == list(range(52))
    await broker.close()
    flip(active, active.stat().st_size - 20)  # repaired, as from a backup
    broker = await start(data)
    assert await read(broker, 0) == list(range(50))
    await broker.close()


async def test_damage_in_an_old_segment_is_found_when_it_is_read(tmp_path: Path):
    """I9: bytes that are not what was acknowledged never reach a reader; the partition stops."""
    data = tmp_path / "data"
    broker = await start(data)
    await publish(broker, 80, 0)
    await publish(broker, 5, 1)
    await broker.close()
    flip(logs(data, 0)[0], 300)
    broker = await start(data)
    reader = await broker.cursors.open_offset("reader", [TOPICS[0]], durable=False, principal=LOCAL)
    with pytest.raises(PartitionCorrupt, match="damaged"):
        while reader.reading.is_behind():
            reader.fetch()
    assert state_of(broker, 0).startswith("stopped: ")
    with pytest.raises(PartitionStopped):
        await publish(broker, 1, 0)
    assert [row.offset for row in await publish(broker, 1, 1)] == [5]
    await broker.close()


async def test_a_cursor_over_many_partitions_goes_on_when_one_is_found_damaged(tmp_path: Path):
    """ADR 6: what the others hold comes, all of it, also what was read in the same breath."""
    data = tmp_path / "data"
    broker = await start(data)
    await publish(broker, 80, 0)
    await publish(broker, 80, 1)
    await broker.close()
    flip(logs(data, 0)[0], 300)
    for first in (0, 1):  # whichever is read first
        broker = await start(data)
        tail = broker.cursors.open_tail(["two/#"], start=EARLIEST, principal=LOCAL)
        tail.reading._turn += first
        found = []
        while tail.reading.is_behind():
            found += [(int(row.partition), int(row.offset)) for row in tail.fetch()]
        assert [offset for number, offset in found if number == 1] == list(range(80))
        assert state_of(broker, 0).startswith("stopped: ")
        await broker.close()


async def test_a_failed_fsync_answers_every_waiting_publisher_with_the_error(tmp_path: Path):
    """I4, I9: nothing is acknowledged, the partition stops, the others go on."""
    data = tmp_path / "data"
    broker = await start(data)
    await publish(broker, 10, 0)
    await publish(broker, 10, 1)
    faults.arm("segment.fsync", faults.fail_with(errno.EIO))
    waiting = [
        asyncio.create_task(broker.publish(Message(TOPICS[0], b"%d" % n), principal=LOCAL))
        for n in range(20)
    ]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    faults.disarm()
    assert len(answers) == 20
    assert all(isinstance(answer, PartitionStopped) for answer in answers), answers
    assert "fsync" in state_of(broker, 0)
    with pytest.raises(PartitionStopped, match="restart"):
        await publish(broker, 1, 0)
    assert broker.streams.get("two").partitions[0].high_watermark == 10, "readers see no more"
    assert [row.offset for row in await publish(broker, 2, 1)] == [10, 11]
    await broker.close()
    broker = await start(data)
    assert state_of(broker, 0) == "running"
    found = await read(broker, 0)
    assert found[:10] == list(range(10)), "acknowledged before the failure"
    assert found == list(range(len(found)))
    assert [row.offset for row in await publish(broker, 1, 0)] == [len(found)]
    await broker.close()


async def test_a_checkpoint_of_cursors_that_cannot_be_synced_is_an_error(tmp_path: Path):
    """I4: `save` does not answer for what is not durable, and messages are not in the way."""
    data = tmp_path / "data"
    broker = await start(data)
    await publish(broker, 10, 0)
    reader = await broker.cursors.open_offset("reader", [TOPICS[0]], principal=LOCAL)
    reader.fetch(4)
    reader.commit_read()
    await broker.cursors.save(reader)
    kept = {row.partition: row.offset for row in reader.committed()}
    reader.fetch(4)
    reader.commit_read()
    faults.arm("segment.fsync", faults.fail_with(errno.EIO))
    with pytest.raises(OnelogError):
        await broker.cursors.save(reader)
    faults.disarm()
    assert [row.offset for row in await publish(broker, 1, 0)] == [10]
    copy = copy_as_killed(data, tmp_path / "copy")
    await broker.close()
    broker = await start(copy)
    reader = await broker.cursors.open_offset("reader", [TOPICS[0]], principal=LOCAL)
    restored = {row.partition: row.offset for row in reader.committed()}
    assert all(restored[number] >= offset for number, offset in kept.items())
    await broker.close()


async def test_a_failed_flush_of_an_os_stream_stops_it_and_says_so(tmp_path: Path):
    """I9: a stream that answers before the sync must not go on after a sync failed."""
    data = tmp_path / "data"
    broker = await start(data)
    config = StreamConfig(name="quick", captures=("quick",), durability=Durability.OS)
    partition = (await broker.streams.create(config)).partitions[0]
    await broker.publish(Message("quick", b"1"), principal=LOCAL)
    faults.arm("segment.fsync", faults.fail_with(errno.EIO))
    with pytest.raises(PartitionStopped, match="fsync"):
        await partition.flush()
    faults.disarm()
    with pytest.raises(PartitionStopped):
        await broker.publish(Message("quick", b"2"), principal=LOCAL)
    await broker.close()
    broker = await start(data)
    assert broker.streams.get("quick").partitions[0].end_offset == 1
    await broker.close()
