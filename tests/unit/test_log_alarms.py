"""What goes wrong below the door is told: a disk that hangs or is full, hooks that raise."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.base.errors import CorruptBatch, StorageFull, Unavailable
from onelog.base.ids import Offset
from onelog.broker import LOCAL, Message
from onelog.log.catalog import LISTENER
from onelog.log.config import Cleanup, Retention, StreamConfig
from onelog.log.leaving import HOOK
from onelog.log.maintenance import Maintenance
from onelog.log.partition import Durability, Partition
from onelog.log.room import DISK_FULL
from onelog.log.shared import Shared
from onelog.log.sync_watch import SYNC_HANGS
from onelog.log.syncer import Syncer
from onelog.log.visits import FAILED
from onelog.observe.troubles import Troubles
from tests.logs import KEY, GatedLog, Node, memory_log, put, row
from tests.support.brokers import running

HOUR_MS = 3600 * 1000
AGED = StreamConfig(
    name="aged",
    captures=("aged/#",),
    durability=Durability.OS,
    retention=Retention(age_ms=HOUR_MS),
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    await node.start()
    yield node
    faults.disarm()
    await node.stop()


def keeper_of(node: Node) -> Maintenance:
    return Maintenance(node.catalog, node.syncer, node.clock, lambda _stream, _partition: None)


# -- the disk


async def test_a_sync_that_hangs_is_an_alarm_until_it_is_back() -> None:
    clock, syncer = SystemClock(), Syncer(1)
    troubles = Troubles(clock)
    shared = Shared(syncer, clock, troubles)
    shared.syncs.deadline_s = 0.05
    log = GatedLog(memory_log(clock))
    partition = Partition(
        "s",
        KEY.partition,
        log,  # type: ignore[arg-type]
        durability=Durability.FSYNC,
        message_bytes_max=1 << 20,
        shared=shared,
    )
    waiting = partition.wait_visible(put(partition, row(b"k", b"v")).base_offset)
    async with asyncio.timeout(10):
        while troubles.problem() is None:  # noqa: ASYNC110 - the alarm tells nobody else
            await asyncio.sleep(0.01)
    assert "sync-hangs at s/0: the disk has not answered" in str(troubles.problem())
    assert not waiting.done()
    log.gate.release()
    await asyncio.wait_for(waiting, 10)
    assert troubles.problem() is None
    assert troubles.count(SYNC_HANGS) == 1
    await syncer.close()


async def test_syncs_that_come_back_in_time_are_no_alarm_and_leave_no_timer() -> None:
    clock, syncer = SystemClock(), Syncer(1)
    shared = Shared(syncer, clock, Troubles(clock))
    shared.syncs.deadline_s = 0.02
    shared.syncs.begin("s/0")
    shared.syncs.end("s/0")
    await asyncio.sleep(0.05)
    assert shared.syncs.timer is None
    assert shared.troubles.count(SYNC_HANGS) == 0
    await syncer.close()


async def test_a_full_disk_keeps_the_process_from_being_ready_until_there_is_room(
    node: Node,
) -> None:
    stream = await node.catalog.create(AGED)
    keeper, partition = keeper_of(node), stream.partitions[0]
    put(partition, row(b"k", b"v"))
    faults.arm("segment.write", faults.fail_with(errno.ENOSPC))
    for _ in range(3):
        with pytest.raises(StorageFull):
            put(partition, row(b"k", b"v"))
    assert "disk-full at storage: StorageFull: append in" in str(node.troubles.problem())
    assert node.troubles.count(DISK_FULL) == 1
    assert node.catalog.shared.room.refusals == 3
    faults.arm("segment.allocate", faults.fail_with(errno.ENOSPC))
    await keeper.flush_once()
    assert node.troubles.problem() is not None, "there is no room yet"
    faults.disarm()
    await keeper.flush_once()
    assert node.troubles.problem() is None, "nobody had to write for that"
    assert partition.stopped is None
    put(partition, row(b"k", b"v"))


async def test_a_stream_that_finds_no_room_to_be_made_tells_it_too(node: Node) -> None:
    faults.arm("segment.checkpoint", faults.fail_with(errno.ENOSPC))
    stream = await node.catalog.create(AGED)
    faults.arm("segment.create", faults.fail_with(errno.ENOSPC))
    with pytest.raises(StorageFull):
        put(stream.partitions[0], row(b"k", b"v"))
    assert node.catalog.shared.room.is_full


# -- hooks and listeners


async def old_records(node: Node, config: StreamConfig = AGED) -> Partition:
    """A partition whose records are due to leave."""
    partition = (await node.catalog.create(config)).partitions[0]
    put(partition, row(b"k", b"v", node.clock.now_ms()))
    partition.log.roll()
    put(partition, row(b"k", b"v", node.clock.now_ms()))
    node.clock.advance(2 * HOUR_MS / 1000)
    return partition


async def test_a_hook_that_raises_before_a_trim_keeps_the_records_and_stops_nothing(
    node: Node,
) -> None:
    """Damage that a hook finds elsewhere is not damage of this partition."""
    partition, keeper = await old_records(node), keeper_of(node)

    async def raises(_partition: Partition, _upto: Offset) -> None:
        raise CorruptBatch("something elsewhere")

    keeper.before_trim.append(raises)
    await keeper.run_once()
    assert partition.start_offset == 0
    assert partition.stopped is None
    assert node.troubles.count(HOOK) == 1
    assert node.troubles.rows()[0].place == "aged/0"
    keeper.before_trim.clear()
    await keeper.run_once()
    assert partition.start_offset == 2


async def test_a_hook_that_raises_after_a_trim_keeps_nobody_from_being_told(node: Node) -> None:
    partition, keeper = await old_records(node), keeper_of(node)
    told: list[Partition] = []

    async def raises(_partition: Partition) -> None:
        raise KeyError("gone")

    async def note(partition: Partition) -> None:
        told.append(partition)

    keeper.after_trim += [raises, note]
    await keeper.run_once()
    assert told == [partition]
    assert keeper.counters.segments_deleted == 2
    assert node.troubles.count(HOOK) == 1
    assert node.troubles.count(FAILED) == 0


async def test_a_hook_that_raises_before_compaction_keeps_the_records(node: Node) -> None:
    config = StreamConfig(name="c", cleanup=Cleanup.COMPACT, durability=Durability.OS)
    partition, keeper = await old_records(node, config), keeper_of(node)

    async def raises(_partition: Partition, _upto: Offset) -> None:
        raise KeyError("gone")

    keeper.before_compaction.append(raises)
    put(partition, row(b"k", b"v", node.clock.now_ms()))
    await keeper.compact_once()
    assert keeper.counters.compactions == 0
    assert node.troubles.count(HOOK) == 1
    keeper.before_compaction.clear()
    await keeper.compact_once()
    assert keeper.counters.compactions == 1


async def test_nothing_leaves_while_nobody_knows_what_durable_cursors_need(node: Node) -> None:
    partition = await old_records(node)

    def unknown(_stream: str, _partition: int) -> Offset | None:
        raise Unavailable("the cursors are not known")

    keeper = Maintenance(node.catalog, node.syncer, node.clock, unknown)
    await keeper.run_once()
    assert partition.start_offset == 0
    assert keeper.counters.segments_rolled == 1, "sealing takes nothing away"
    assert keeper.counters.errors == 0, "it is told once, where it stands"
    await keeper_of(node).run_once()
    assert partition.start_offset == 2


async def test_a_listener_that_raises_over_changed_streams_keeps_no_change_from_being_whole(
    node: Node,
) -> None:
    told: list[str] = []

    def raises() -> None:
        raise RuntimeError("no")

    node.catalog.on_change += [raises, lambda: told.append("after")]
    node.catalog.before_change += [raises, lambda: told.append("before")]
    stream = await node.catalog.create(AGED)
    assert {"before", "after"} <= set(told)
    assert node.catalog.home("aged/1") is stream
    assert node.troubles.count(LISTENER) >= 2
    await node.restart()
    assert node.catalog.home("aged/1").record.id == stream.record.id


# -- another durability while publishers wait


async def test_publishers_who_wait_for_a_sync_are_answered_when_their_stream_asks_for_less(
    tmp_path: Path,
) -> None:
    """`onelog stream alter --durability os` on a disk that hangs: nobody hangs with it."""
    hangs, entered = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert hangs.wait(10)

    async with running(tmp_path) as broker:
        config = StreamConfig(name="s", captures=("s/#",), durability=Durability.FSYNC)
        await broker.streams.create(config)
        await broker.publish(Message("s/1", b"0"), principal=LOCAL)
        faults.arm("segment.fsync", hang)
        try:
            waiting = [
                asyncio.create_task(broker.publish(Message("s/1", b"%d" % n), principal=LOCAL))
                for n in range(3)
            ]
            assert await asyncio.to_thread(entered.wait, 10)
            waiting.append(
                asyncio.create_task(broker.publish(Message("s/1", b"last"), principal=LOCAL))
            )
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            await broker.streams.alter(msgspec.structs.replace(config, durability=Durability.OS))
            found = await asyncio.wait_for(asyncio.gather(*waiting), 10)
            assert [row.offset for row in found] == [1, 2, 3, 4]
        finally:
            hangs.set()
            faults.disarm()
