"""A sync in a thread of the kernel promises what any sync does: durable (I4), or stopped (I9)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.base.errors import PartitionStopped
from onelog.base.ids import Offset
from onelog.log import partition as partition_module
from onelog.log import syncer as syncer_module
from onelog.log.partition import Durability, Partition
from onelog.log.sync_watch import SYNC_HANGS
from onelog.log.syncer import Syncer
from onelog.storage.engine import LogSettings
from onelog.storage.segment import SegmentEngine, durability
from tests.logs import KEY, make_partition, pairs, put, row
from tests.support.backups import until
from tests.support.disks import GatedDisk

WAIT_S = 20
SETTINGS = LogSettings(topic_index=False)


class Flown:
    """A partition on a segment log whose short syncs go to a disk of the test."""

    def __init__(self, root: Path, syncer: Syncer, disk: GatedDisk) -> None:
        self.root = root
        self.syncer = syncer
        self.disk = disk
        self.jobs = 0
        """Syncs that went the long way."""
        honest = syncer.start

        def start(work: Any, done: Any) -> None:
            self.jobs += 1
            honest(work, done)

        self._start = start

    async def open(self, engine: SegmentEngine | None = None) -> Partition:
        """A partition that has one record; its file and directory are durable."""
        self.engine = engine or SegmentEngine(self.root, SystemClock())
        self.log = self.engine.open(KEY, SETTINGS)
        self.partition = make_partition(self.log, self.syncer, SystemClock(), Durability.FSYNC)
        await self.put(b"first")
        self.syncer.start = self._start  # type: ignore[method-assign]
        return self.partition

    def put(self, value: bytes) -> asyncio.Future[None]:
        """Append a record; done when it is visible."""
        return asyncio.ensure_future(
            self.partition.wait_visible(put(self.partition, row(b"k", value)).base_offset)
        )

    async def entered(self, count: int = 1) -> None:
        """Until so many more syncs of the kernel have begun."""
        await asyncio.to_thread(self.disk.wait_entered, count)


@pytest.fixture(params=["pure", "_native"])
async def flown(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Flown]:
    kernel = pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)
    disk = GatedDisk()
    made = partial(kernel.SyncThreads, call=disk.address)
    monkeypatch.setattr(syncer_module, "SyncThreads", made)

    class Counted(Syncer):  # with a dict, so that `start` can be listened to
        pass

    syncer = Counted(2)
    flown = Flown(tmp_path, syncer, disk)
    await flown.open()
    yield flown
    faults.disarm()
    disk.let_go(1_000)
    await syncer.close()


async def test_a_record_is_seen_when_its_file_is_synced_and_not_before(flown: Flown) -> None:
    """I4: and no thread of the interpreter takes part."""
    waiting = flown.put(b"second")
    await flown.entered()
    assert not waiting.done()
    assert flown.partition.high_watermark == flown.log.durable_offset == 1
    flown.disk.let_go()
    await asyncio.wait_for(waiting, WAIT_S)
    assert flown.partition.high_watermark == flown.log.durable_offset == 2
    assert (flown.partition.syncs, flown.jobs) == (2, 0)
    assert not flown.log._held.active.writer.dirty


async def test_appends_during_a_sync_wait_for_the_next_one_which_serves_all(flown: Flown) -> None:
    first = flown.put(b"first of all")
    await flown.entered()
    others = [flown.put(b"%d" % number) for number in range(5)]
    flown.disk.let_go()
    await asyncio.wait_for(first, WAIT_S)
    await flown.entered()
    assert not any(waiting.done() for waiting in others)
    assert flown.log.durable_offset == 2
    assert flown.log._held.active.writer.dirty
    flown.disk.let_go()
    await asyncio.wait_for(asyncio.gather(*others), WAIT_S)
    assert len(flown.disk.fds) == 2
    assert flown.log.durable_offset == 7


async def test_a_failed_sync_stops_the_partition_until_it_is_opened_again(flown: Flown) -> None:
    """I4, I9: nothing is called durable, and nothing more is taken."""
    flown.disk.error = errno.EIO
    waiting = flown.put(b"lost")
    flown.disk.let_go()
    with pytest.raises(PartitionStopped, match=r"fsync.*Input/output error.*restart"):
        await asyncio.wait_for(waiting, WAIT_S)
    assert flown.log.durable_offset == 1
    assert isinstance(flown.partition.stopped, PartitionStopped)
    with pytest.raises(PartitionStopped):
        put(flown.partition, row(b"k", b"more"))
    for work in (flown.log.sync, flown.log.roll, partial(flown.log.trim, Offset(1))):
        with pytest.raises(PartitionStopped, match="restart"):
            work()
    await flown.partition.close()
    assert not flown.log.clean
    again = SegmentEngine(flown.root, SystemClock()).open(KEY, SETTINGS)
    assert pairs(again) == [(b"k", b"first"), (b"k", b"lost")]
    assert again.durable_offset == 2, "it was written and synced again"


async def test_no_two_syncs_of_a_partition_run_at_once(
    flown: Flown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them could share the report of one error, and one of them would miss it."""
    real, during = os.fdatasync, []

    def sync(fd: int) -> None:
        during.append(flown.disk.running)
        real(fd)

    waiting = flown.put(b"second")
    await flown.entered()
    monkeypatch.setattr(os, "fdatasync", sync)
    put(flown.partition, row(b"k", b"third"))
    flush = asyncio.create_task(flown.partition.flush())
    await asyncio.sleep(0.05)
    assert not flush.done()
    flown.disk.let_go(2)
    await asyncio.wait_for(asyncio.gather(waiting, flush), WAIT_S)
    assert during
    assert not any(during)


async def test_a_flush_that_finds_a_failed_sync_fails_too(flown: Flown) -> None:
    """Whoever comes first settles it: here a thread, while the loop stands still."""
    waiting = flown.put(b"lost")
    await flown.entered()
    flown.disk.error = errno.EIO
    flown.disk.let_go()
    with pytest.raises(PartitionStopped, match="fsync"):
        flown.log.sync()  # the loop hears of the answer only later
    assert flown.log.durable_offset == 1
    with pytest.raises(PartitionStopped, match="fsync"):
        await asyncio.wait_for(waiting, WAIT_S)


async def test_closing_waits_for_the_sync_and_the_stop_is_clean(flown: Flown) -> None:
    waiting = flown.put(b"second")
    await flown.entered()
    closing = asyncio.create_task(flown.partition.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    flown.disk.let_go()
    await asyncio.wait_for(closing, WAIT_S)
    await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), WAIT_S)
    assert flown.log.clean
    again = SegmentEngine(flown.root, SystemClock()).open(KEY, SETTINGS)
    assert pairs(again) == [(b"k", b"first"), (b"k", b"second")]


async def test_a_syncer_that_closes_brings_the_last_answers(flown: Flown) -> None:
    waiting = flown.put(b"second")
    await flown.entered()
    closing = asyncio.create_task(flown.syncer.close())
    flown.disk.let_go()
    await asyncio.wait_for(closing, WAIT_S)
    await asyncio.wait_for(waiting, WAIT_S)
    assert flown.syncer.ask(flown.log._held.active.writer.open(), print) is None
    flown.syncer.disk = None  # the fixture closes it once more
    flown.syncer.chores._threads, flown.syncer._threads = [], []


async def test_a_truncation_waits_for_the_sync(flown: Flown) -> None:
    waiting = flown.put(b"second")
    await flown.entered()
    cutting = asyncio.create_task(
        flown.partition.jobs.run_alone(
            flown.syncer.chores, partial(flown.log.truncate, Offset(1)), lambda *_: None
        )
    )
    await asyncio.sleep(0.05)
    assert not cutting.done()
    flown.disk.let_go()
    await asyncio.wait_for(asyncio.gather(waiting, cutting), WAIT_S)
    assert flown.log.end_offset == flown.log.durable_offset == 1


async def test_a_sync_of_the_kernel_that_hangs_is_an_alarm_until_it_is_back(flown: Flown) -> None:
    shared = flown.partition.shared
    shared.syncs.deadline_s = 0.05
    waiting = flown.put(b"second")
    async with asyncio.timeout(WAIT_S):
        while shared.troubles.problem() is None:  # noqa: ASYNC110 - the alarm tells nobody else
            await asyncio.sleep(0.01)
    assert "sync-hangs at s/0: the disk has not answered" in str(shared.troubles.problem())
    flown.disk.let_go()
    await asyncio.wait_for(waiting, WAIT_S)
    assert shared.troubles.problem() is None
    assert shared.troubles.count(SYNC_HANGS) == 1


async def test_a_file_that_is_let_go_meanwhile_stays_open_for_its_sync(flown: Flown) -> None:
    waiting = flown.put(b"second")
    await flown.entered()
    writer = flown.log._held.active.writer
    fd = writer.file.fd
    assert flown.disk.fds == [fd]
    writer.let_go(forced=True)
    os.fstat(fd)
    flown.disk.let_go()
    await asyncio.wait_for(waiting, WAIT_S)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


async def roll(flown: Flown, _patch: pytest.MonkeyPatch) -> None:
    """The directory and the sealed segment are to be synced, too."""
    flown.log.roll()


async def save(_flown: Flown, patch: pytest.MonkeyPatch) -> None:
    """The recovery point is to move."""
    patch.setattr(durability, "CHECKPOINT_BYTES", 1)


async def arm(_flown: Flown, _patch: pytest.MonkeyPatch) -> None:
    """A test wants to see the sync."""
    faults.arm("segment.fsync", lambda: None)


async def bound_pages(flown: Flown, patch: pytest.MonkeyPatch) -> None:
    """Older bytes are to leave the page cache."""
    patch.setattr(flown.log._held.shared.pages, "_limit_bytes", 1)
    patch.setattr("onelog.storage.segment.pages.NOTED_BYTES_MIN", 1)


@pytest.mark.parametrize("due", [roll, save, arm, bound_pages])
async def test_a_sync_that_takes_more_than_one_file_goes_the_long_way(
    flown: Flown, due: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await due(flown, monkeypatch)
    await asyncio.wait_for(flown.put(b"second"), WAIT_S)
    assert (flown.jobs, flown.disk.fds) == (1, [])
    monkeypatch.undo()
    faults.disarm()


async def test_a_state_that_is_due_is_saved_after_the_sync_and_holds_no_sync_up(
    flown: Flown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "SNAPSHOT_BYTES", 1)
    flown.disk.let_go()
    await asyncio.wait_for(flown.put(b"second"), WAIT_S)
    assert (flown.jobs, len(flown.disk.fds)) == (0, 1), "the sync went the short way"
    await until(lambda: flown.log.load_state("partition") is not None)
    saved = flown.log.load_state("partition")
    assert saved is not None
    assert saved[0] == 2


async def test_threads_that_cannot_be_made_leave_syncs_to_the_others(
    flown: Flown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_count: int) -> None:
        raise OSError(errno.EAGAIN, "no more threads")

    monkeypatch.setattr(syncer_module, "SyncThreads", refuse)
    for number in range(3):
        await asyncio.wait_for(flown.put(b"%d" % number), WAIT_S)
    assert (flown.jobs, flown.disk.fds) == (3, [])
