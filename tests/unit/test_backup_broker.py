"""Backups of a running broker: what is in them, what may go on meanwhile, what a restore makes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path

import msgspec
import pytest

from onelog.admin.samples import broker_samples
from onelog.backup.marks import mark_name
from onelog.backup.repository import now_ms
from onelog.base import faults
from onelog.base.clock import ManualClock
from onelog.base.errors import Conflict, InvalidRequest, NotFound, StorageError
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Cleanup,
    Compaction,
    Durability,
    Message,
    Retention,
    StreamConfig,
)
from onelog.broker.backup_commands import (
    CancelBackup,
    ShowBackup,
    StartBackup,
    decode_backup_answer,
    run_backup_command,
)
from onelog.log.holding import LeavingHold
from tests.support.backups import back_up, flip, repository_in, restore_into, sent_files, until
from tests.support.brokers import history, running, say, spoken


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.disarm()


async def all_of(data: Path, *filters: str) -> list[str]:
    async with running(data) as broker:
        return await history(broker, *filters)


def frozen_left(data: Path) -> bool:
    return (data / "backup.tmp").exists()


async def test_a_restored_broker_has_all_that_was_there(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await broker.streams.create(StreamConfig(name="orders", captures=("orders",), partitions=2))
        await broker.views.create("all", "a/#")
        await say(broker, "a/1", *map(str, range(100)))
        await say(broker, "orders", "x", "y")
        cursor = await broker.cursors.open_offset("c", ["a/#"], start=EARLIEST, principal=LOCAL)
        cursor.fetch(40)
        cursor.commit_read()
        await broker.cursors.save(cursor)
        run = await back_up(broker, url)
        assert run.state == "done", run.message
        await say(broker, "a/1", "later")
        expected = await history(broker, "a/#", "orders")
        samples = {row.name: row.value for row in broker_samples(broker)}
        assert samples["onelog_backup_last_success_seconds"] > 0
        assert samples["onelog_backup_running"] == 0
    assert not frozen_left(data)
    restored = restore_into(tmp_path / "again", url)
    assert restored.backup.id == run.id
    async with running(tmp_path / "again") as broker:
        found = await history(broker, "a/#", "orders")
        assert found == [row for row in expected if row != "a/1=later"]
        assert [view.name for view in broker.views.all()] == ["all"]
        cursor = await broker.cursors.open_offset("c", ["a/#"], start=EARLIEST, principal=LOCAL)
        assert spoken(cursor.fetch(1)) == ["a/1=40"]
        await say(broker, "a/1", "new")
        assert (await history(broker, "a/#"))[-1] == "a/1=new"


async def test_messages_that_are_acknowledged_before_the_point_are_in_while_more_come(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    known, sent = [], []
    async with running(data) as broker:
        await broker.streams.alter(
            msgspec.structs.replace(
                broker.streams.get("main").config, durability=Durability.FSYNC, segment_bytes=4096
            )
        )

        async def write(topic: str) -> None:
            for number in itertools.count():
                text = f"{topic}={number}"
                sent.append(text)
                await broker.publish(Message(topic, str(number).encode()), principal=LOCAL)
                known.append(text)

        writers = [asyncio.create_task(write(f"t/{number}")) for number in range(8)]
        await until(lambda: len(known) >= 200)
        before = list(known)
        run = await back_up(broker, url)
        for task in writers:
            task.cancel()
        await asyncio.wait(writers)
    assert run.state == "done", run.message
    assert len(known) > len(before), "nothing was written during the backup"
    restore_into(tmp_path / "again", url)
    found = await all_of(tmp_path / "again", "#")
    assert set(before) <= set(found) <= set(sent)
    for topic in {row.partition("=")[0] for row in found}:
        numbers = [int(row.partition("=")[2]) for row in found if row.startswith(f"{topic}=")]
        assert numbers == list(range(len(numbers)))


async def test_a_cursor_in_a_backup_never_stands_behind_the_log(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        cursor = await broker.cursors.open_offset("c", ["#"], start=EARLIEST, principal=LOCAL)
        stop = asyncio.Event()

        async def follow() -> None:
            number = 0
            while not stop.is_set():
                await say(broker, "t", str(number := number + 1))
                cursor.fetch(100)
                cursor.commit_read()
                await broker.cursors.save(cursor)

        task = asyncio.create_task(follow())
        for number in range(3):
            run = await back_up(broker, url)
            assert run.state == "done", run.message
            restored = restore_into(tmp_path / f"again{number}", url)
            ends = {(row.stream, row.partition): row.end for row in restored.partitions}
            async with running(tmp_path / f"again{number}") as other:
                state = other.cursors.kept("c")
                assert state is not None
                ids = {row.record.id: row.name for row in other.streams.streams()}
                for position in state.positions:
                    end = ends.get((ids[position.stream_id], position.partition), 0)
                    assert position.offset <= end
        stop.set()
        await task


async def test_what_retention_and_compaction_take_during_a_backup_is_in_it(tmp_path, monkeypatch):
    data, url = tmp_path / "data", str(tmp_path / "store")
    clock = ManualClock()
    async with running(data, clock=clock) as broker:
        await broker.streams.create(
            StreamConfig(
                name="old", captures=("old",), segment_bytes=4096, retention=Retention(age_ms=1000)
            )
        )
        await broker.streams.create(
            StreamConfig(
                name="keyed",
                captures=("keyed/#",),
                segment_bytes=4096,
                cleanup=Cleanup.COMPACT,
                compaction=Compaction(min_dirty_ratio=0.0),
            )
        )
        for number in range(50):
            await say(broker, "old", f"{number:0500}")
            await say(broker, "keyed/1", f"{number:0500}")
        expected = await history(broker, "old", "keyed/#")
        sending = asyncio.Event()
        send = broker.backups._send

        async def held(*words):
            sending.set()
            clock.advance(10_000)
            await say(broker, "keyed/1", "newest" + "x" * 5000, "newest" + "y" * 5000)
            await broker.maintenance.run_once()
            await broker.streams.delete("old")
            return await send(*words)

        monkeypatch.setattr(broker.backups, "_send", held)
        run = await back_up(broker, url)
        assert run.state == "done", run.message
        assert sending.is_set()
        assert broker.maintenance.counters.compactions
        assert broker.maintenance.counters.segments_deleted
    restore_into(tmp_path / "again", url)
    assert await all_of(tmp_path / "again", "old", "keyed/#") == expected


async def test_nothing_leaves_the_log_between_the_cut_and_the_links(tmp_path):
    hold = LeavingHold()
    done = []

    def leave() -> None:
        with hold.leaving():
            done.append("left")

    hold.hold()
    task = asyncio.create_task(asyncio.to_thread(leave))
    await asyncio.sleep(0.05)
    assert not done
    hold.release()
    await task
    assert done


async def test_a_second_backup_sends_only_what_is_new(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await say(broker, "t", *("x" * 1000 for _ in range(3000)))
        first = await back_up(broker, url)
        before = sum(sent_files(tmp_path / "store").values())
        await say(broker, "t", "small")
        second = await back_up(broker, url)
        after = sum(sent_files(tmp_path / "store").values())
    assert first.new_bytes > 3_000_000
    assert second.size_bytes > 3_000_000
    # The rest of the log's last piece, metadata, checkpoints; not the 3 MB again.
    (log,) = (row for row in repository_in(tmp_path / "store").load(second.id).files
              if row.path.endswith(".log") and row.size_bytes > 3_000_000)  # fmt: skip
    assert second.new_bytes <= log.size_bytes + 400_000
    assert after - before <= second.new_bytes + 100_000


async def test_one_backup_at_a_time_and_a_cancelled_one_leaves_nothing_behind(
    tmp_path, monkeypatch
):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await say(broker, "t", *("x" * 10_000 for _ in range(100)))
        run = broker.backups.start(url, {}, 1)
        with pytest.raises(Conflict, match="under way"):
            broker.backups.start(url)
        mark = tmp_path / "store" / mark_name(run.id)
        await until(mark.exists)
        with pytest.raises(Conflict, match=f"{run.id} is under way"):
            repository_in(tmp_path / "store").prune(1, None, now_ms())
        ended = await broker.backups.cancel(run.id)
        assert ended.state == "cancelled"
        assert not frozen_left(data)
        assert not mark.exists()
        with pytest.raises(Conflict, match="already"):
            await broker.backups.cancel(run.id)
        with pytest.raises(NotFound):
            await broker.backups.cancel("20260101T000000Z-000000")
        assert (await back_up(broker, url)).state == "done"


async def test_a_broker_that_stops_ends_its_backup(tmp_path):
    data = tmp_path / "data"
    async with running(data) as broker:
        await say(broker, "t", *("x" * 10_000 for _ in range(100)))
        run = broker.backups.start(str(tmp_path / "store"), {}, 1)
    assert broker.backups.find(run.id).state == "cancelled"
    assert not frozen_left(data)
    assert not repository_in(tmp_path / "store").ids()


async def test_links_of_a_broker_that_was_killed_are_removed_at_the_next_start(tmp_path):
    data = tmp_path / "data"
    (data / "backup.tmp/frozen/segment").mkdir(parents=True)
    async with running(data):
        assert not frozen_left(data)


async def test_a_worker_that_is_killed_is_an_error_that_says_what_to_do(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await say(broker, "t", *("x" * 10_000 for _ in range(100)))
        run = broker.backups.start(url, {}, 1)
        await until(lambda: broker.backups._worker is not None)
        os.kill(broker.backups._worker.pid, signal.SIGKILL)
        await broker.backups.ended()
        found = broker.backups.find(run.id)
        assert found.state == "failed"
        assert "begin again" in found.message
        assert broker.troubles.count("backup") == 1
        assert (await back_up(broker, url)).state == "done"


@pytest.mark.parametrize(
    "point", ["backup.read", "backup.put", "backup.put=exit:1", "backup.sent", "backup.flushed"]
)
async def test_a_worker_that_dies_at_any_step_leaves_the_older_backup_whole(
    tmp_path, monkeypatch, point
):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await say(broker, "t", *("x" * 10_000 for _ in range(300)))
        first = await back_up(broker, url)
        await say(broker, "u", *("y" * 10_000 for _ in range(300)))
        monkeypatch.setenv("ONELOG_FAULTS", point if "=" in point else f"{point}=exit")
        assert (await back_up(broker, url)).state == "failed"
        assert not frozen_left(data)
        repository = repository_in(tmp_path / "store")
        assert repository.ids() == [first.id]
        assert not repository.verify([repository.load(first.id)]).problems
        monkeypatch.delenv("ONELOG_FAULTS")
        last = await back_up(broker, url)
        assert last.state == "done", last.message
        assert not repository.verify([repository.load(last.id)]).problems


@pytest.mark.parametrize("code", [28, 13, 5])
async def test_an_error_of_the_disk_while_links_are_made_fails_the_backup_alone(tmp_path, code):
    data = tmp_path / "data"
    async with running(data) as broker:
        await say(broker, "t", "x")
        faults.arm("segment.freeze", faults.fail_with(code))
        run = await back_up(broker, str(tmp_path / "store"))
        assert run.state == "failed"
        assert "cannot be linked" in run.message
        faults.disarm()
        await say(broker, "t", "y")
        await broker.maintenance.run_once()  # nothing is held any more
        assert (await back_up(broker, str(tmp_path / "store"))).state == "done"


async def test_a_folder_that_cannot_be_written_fails_the_backup_alone(tmp_path):
    (tmp_path / "file").write_text("in the way")
    async with running(tmp_path / "data") as broker:
        run = await back_up(broker, str(tmp_path / "file/store"))
        assert run.state == "failed"
        assert "file/store" in run.message
        with pytest.raises(InvalidRequest):
            broker.backups.start("not/absolute")


@pytest.mark.parametrize("where", ["data", "data/backup.tmp/x", "data/new/x", "link/segment/x"])
async def test_a_folder_in_the_data_directory_is_refused(tmp_path, where):
    data = tmp_path / "data"
    (tmp_path / "link").symlink_to(data)
    async with running(data) as broker:
        run = await back_up(broker, str(tmp_path / where))
        assert (run.state, "in the data directory" in run.message) == ("failed", True)
        assert not (tmp_path / where / "objects").exists()
        assert not frozen_left(data)


async def test_a_stopped_partition_is_left_out_and_named(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await broker.streams.create(StreamConfig(name="bad", captures=("bad",)))
        await say(broker, "bad", "x")
        await say(broker, "good", "y")
        broker.streams.get("bad").local[0].stop(StorageError("the disk is gone"))
        run = await back_up(broker, url)
    assert run.state == "done"
    assert run.left_out == ("bad/0: the disk is gone",)
    restored = restore_into(tmp_path / "again", url)
    assert restored.backup.left_out == run.left_out
    assert await all_of(tmp_path / "again", "good") == ["good=y"]


async def test_a_stream_in_memory_begins_empty(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await broker.streams.create(StreamConfig(name="m", captures=("m",), engine="memory"))
        await say(broker, "m", "x")
        run = await back_up(broker, url)
        assert run.state == "done", run.message
    restore_into(tmp_path / "again", url)
    async with running(tmp_path / "again") as broker:
        assert await history(broker, "m") == []
        await say(broker, "m", "y")
        assert await history(broker, "m") == ["m=y"]


async def test_a_stream_in_rocksdb_is_restored_up_to_the_cut(tmp_path, monkeypatch):
    pytest.importorskip("rocksdict")
    data, url = tmp_path / "data", str(tmp_path / "store")
    async with running(data) as broker:
        await broker.streams.create(StreamConfig(name="kv", captures=("kv",), engine="kv"))
        await say(broker, "kv", *map(str, range(100)))
        engine = broker._engines["kv"]
        freeze = engine.freeze

        def later(cuts, into):  # what comes after the cut is in RocksDB's files, too
            asyncio.run_coroutine_threadsafe(say(broker, "kv", "later"), loop).result()
            return freeze(cuts, into)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(engine, "freeze", later)
        run = await back_up(broker, url)
        assert run.state == "done", run.message
    restore_into(tmp_path / "again", url)
    async with running(tmp_path / "again") as broker:
        assert await history(broker, "kv") == [f"kv={number}" for number in range(100)]
        await say(broker, "kv", "new")
        assert (await history(broker, "kv"))[-1] == "kv=new"


async def test_a_restore_goes_into_an_empty_directory_only(tmp_path):
    url = str(tmp_path / "store")
    async with running(tmp_path / "data") as broker:
        await say(broker, "t", "x")
        await back_up(broker, url)
    with pytest.raises(Conflict, match="not empty"):
        restore_into(tmp_path / "data", url)
    (tmp_path / "again").mkdir()
    restore_into(tmp_path / "again", url)
    assert await all_of(tmp_path / "again", "#") == ["t=x"]


async def test_a_restore_that_fails_leaves_no_broker_behind(tmp_path):
    url = str(tmp_path / "store")
    async with running(tmp_path / "data") as broker:
        await say(broker, "t", *("x" * 10_000 for _ in range(300)))
        await back_up(broker, url)
    store = tmp_path / "store"
    name = max((row for row in sent_files(store) if row.startswith("objects/")),
               key=lambda row: (store / row).stat().st_size)  # fmt: skip
    flip(store / name, 1000)
    with pytest.raises(StorageError, match="damaged"):
        restore_into(tmp_path / "again", url)
    assert not (tmp_path / "again/metadata.db").exists()
    with pytest.raises(Conflict, match="not empty"):
        restore_into(tmp_path / "again", url)


async def test_going_back_to_a_moment_leaves_out_later_records_and_reuses_no_offset(tmp_path):
    data, url = tmp_path / "data", str(tmp_path / "store")
    clock = ManualClock()
    async with running(data, clock=clock) as broker:
        await broker.streams.create(StreamConfig(name="s", captures=("s",)))
        await say(broker, "s", "1", "2")
        moment_ms = clock.now_ms()
        clock.advance(60)
        await say(broker, "s", "3", "4")
        cursor = await broker.cursors.open_offset("c", ["s"], start=EARLIEST, principal=LOCAL)
        assert len(cursor.fetch(10)) == 4
        cursor.commit_read()
        await broker.cursors.save(cursor)
        clock.advance(60)
        run = await back_up(broker, url)
        assert run.state == "done", run.message
    restored = restore_into(tmp_path / "again", url, moment_ms)
    (row,) = (row for row in restored.partitions if row.stream == "s")
    assert (row.end, row.next) == (2, 4)
    async with running(tmp_path / "again", clock=clock) as broker:
        assert await history(broker, "s") == ["s=1", "s=2"]
        await say(broker, "s", "new")
        assert await history(broker, "s") == ["s=1", "s=2", "s=new"]
        cursor = await broker.cursors.open_offset("c", ["s"], start=EARLIEST, principal=LOCAL)
        assert spoken(cursor.fetch(10)) == ["s=new"]
    with pytest.raises(NotFound, match="older than that"):
        restore_into(tmp_path / "never", url, clock.now_ms() + 1_000_000)


async def test_commands_begin_show_and_cancel(tmp_path):
    async with running(tmp_path / "data") as broker:
        await say(broker, "t", *("x" * 10_000 for _ in range(100)))

        async def ask(command):
            message = msgspec.json.encode(command)
            return decode_backup_answer(await run_backup_command(broker.backups, message)).runs

        url = str(tmp_path / "store")
        (run,) = await ask(StartBackup(url=url, bytes_per_s=1))
        assert run.is_active
        with pytest.raises(Conflict):
            await ask(StartBackup(url=url))
        assert (await ask(ShowBackup(id=run.id)))[0].url == url
        assert (await ask(CancelBackup(id=run.id)))[0].state == "cancelled"
        assert [row.id for row in await ask(ShowBackup())] == [run.id]
