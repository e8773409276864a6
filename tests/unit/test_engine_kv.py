"""What only the kv engine promises: one database, kill -9, damage, a full disk, space back."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from onelog.base import faults
from onelog.base.clock import ManualClock
from onelog.base.errors import (
    Conflict,
    DataDirLocked,
    PartitionCorrupt,
    PartitionStopped,
    StorageFull,
)
from onelog.kernel import scan_batches, topic_hash
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.kv import KvEngine, KvLog, meta
from tests.batches import append, fill, make_batch, read_all, spans

KEY = PartitionKey("s-1", 0)
OTHER = PartitionKey("s-1", 1)
SMALL = LogSettings(segment_bytes=2_000)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.disarm()


def run_and_die(root: Path, body: str) -> str:
    """Run `body` with an engine on `root` in a process that then dies as kill -9 would have it."""
    script = f"""
import os, sys
from onelog.kernel import scan_batches
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.kv import KvEngine
from tests.batches import append, fill, make_batch
KEY, OTHER = PartitionKey("s-1", 0), PartitionKey("s-1", 1)
SMALL = LogSettings(segment_bytes=2_000)
engine = KvEngine(sys.argv[1])
{body}
sys.stdout.flush()
os._exit(137)
"""
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=60,
        check=False,
    )
    assert done.returncode == 137, done.stderr
    return done.stdout


# ---- kill -9 ----


def test_what_was_appended_survives_kill_9_without_a_sync(tmp_path: Path):
    """I4, level `os`; also in a partition that never rolled or closed."""
    run_and_die(tmp_path, "fill(engine.open(KEY, SMALL), 100, size=50)")
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    assert [first for first, _ in spans(read_all(log))] == list(range(100))
    assert log.durable_offset == 100
    assert log.size_bytes == len(read_all(log))
    assert sum(row.size_bytes for row in log.segments()) == log.size_bytes
    engine.close()


def test_counts_are_right_after_kill_9_in_the_middle_of_a_segment(tmp_path: Path):
    big = "LogSettings()"
    for run in range(3):
        run_and_die(tmp_path, f"fill(engine.open(KEY, {big}), 10, size={run})")
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, LogSettings())
    assert log.end_offset == 30
    assert [(row.base_offset, row.size_bytes) for row in log.segments()] == [(0, log.size_bytes)]
    assert log.size_bytes == len(read_all(log))
    engine.close()


def test_trim_truncate_and_rewrite_survive_kill_9(tmp_path: Path):
    run_and_die(
        tmp_path,
        """
log = engine.open(KEY, SMALL)
fill(log, 60, size=60)
log.roll()
log.truncate(50)
log.trim(12)
rows = [row for row in log.segments() if row.sealed and row.base_offset >= 12]
rewrite = log.rewrite(rows[0].base_offset, rows[0].end_offset)
rewrite.commit()
print(rows[0].base_offset, rows[0].end_offset)
""",
    )
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    held = [first for first, _ in spans(read_all(log))]
    assert (log.start_offset, log.end_offset) == (12, 50)
    gap = sorted(set(range(12, 50)) - set(held))
    assert gap
    assert gap == list(range(gap[0], gap[-1] + 1))
    assert log.size_bytes == sum(row.size_bytes for row in log.segments())
    engine.close()


def test_a_rewrite_that_a_crash_ended_leaves_the_old_batches_and_no_trace(tmp_path: Path):
    run_and_die(
        tmp_path,
        """
log = engine.open(KEY, SMALL)
fill(log, 30, size=60)
log.roll()
rewrite = log.rewrite(0, 30)
batch = make_batch(0)
rewrite.append(batch, scan_batches(batch))
""",
    )
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    assert [first for first, _ in spans(read_all(log))] == list(range(30))
    named = {segment.number for segment in log._layout.segments}
    stored = {int.from_bytes(key[9:17], "big") for key in batch_keys(log)}
    assert stored <= named
    engine.close()


def batch_keys(log: KvLog) -> list[bytes]:
    prefix = log._number.to_bytes(8, "big") + b"b"
    return [key for key, _ in log._db.scan(prefix, prefix[:-1] + b"c")]


# ---- damage ----


def wal(root: Path) -> Path:
    return max((root / "db").glob("*.log"), key=lambda path: path.stat().st_size)


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes((byte[0] ^ 0xFF,)))


def test_damage_past_the_last_sync_is_cut(tmp_path: Path):
    run_and_die(
        tmp_path,
        "log = engine.open(KEY, SMALL)\nfill(log, 20, size=50)\nlog.sync()\nfill(log, 20, size=50)",
    )
    path = wal(tmp_path)
    damage(path, path.stat().st_size - 50)
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    held = [first for first, _ in spans(read_all(log))]
    assert 20 <= len(held) < 40
    assert held == list(range(log.end_offset))
    fill(log, 3)
    assert spans(read_all(log))[-1] == (log.end_offset - 1, log.end_offset - 1)
    engine.close()


def test_damage_before_the_last_sync_stops_the_engine_and_changes_nothing(tmp_path: Path):
    """I9: corruption before the recovery point stops the partition with a clear error."""
    run_and_die(tmp_path, "log = engine.open(KEY, SMALL)\nfill(log, 40, size=50)\nlog.sync()")
    path = wal(tmp_path)
    size = path.stat().st_size
    damage(path, size // 2)
    for _ in range(2):
        with pytest.raises(PartitionCorrupt, match="synced"):
            KvEngine(tmp_path)
    assert path.stat().st_size == size
    damage(path, size // 2)  # the same flip repairs it
    engine = KvEngine(tmp_path)
    assert engine.open(KEY, SMALL).end_offset == 40
    engine.close()


def test_a_second_process_is_refused(tmp_path: Path):
    engine = KvEngine(tmp_path)
    with pytest.raises(DataDirLocked):
        KvEngine(tmp_path)
    engine.close()


# ---- syncing ----


def test_one_sync_serves_all_partitions_that_wait(tmp_path: Path):
    engine = KvEngine(tmp_path)
    logs = [engine.open(PartitionKey("s", at), SMALL) for at in range(8)]
    for log in logs:
        fill(log, 3)
    syncs = 0
    inside, go = threading.Event(), threading.Event()

    def count() -> None:
        nonlocal syncs
        syncs += 1
        inside.set()
        go.wait(30)

    faults.arm("kv.sync", count)
    first = threading.Thread(target=logs[0].sync)
    first.start()
    assert inside.wait(30)
    for log in logs:
        fill(log, 1)  # an append never waits for a sync
    others = [threading.Thread(target=log.sync) for log in logs]
    for thread in others:
        thread.start()
    go.set()
    for thread in [first, *others]:
        thread.join(30)
    assert syncs == 2
    assert [log.durable_offset for log in logs] == [4] * 8
    faults.disarm()
    engine.close()


def test_a_failed_sync_stops_every_partition_until_the_next_open(tmp_path: Path):
    """I4: after a failed sync nothing is answered."""
    engine = KvEngine(tmp_path)
    log, other = engine.open(KEY, SMALL), engine.open(OTHER, SMALL)
    fill(log, 3)
    log.sync()
    fill(log, 2)
    faults.arm("kv.sync", faults.fail_with(errno.EIO))
    with pytest.raises(PartitionStopped, match="restart"):
        log.sync()
    faults.disarm()
    assert log.durable_offset == 3
    with pytest.raises(PartitionStopped):
        log.sync()
    with pytest.raises(PartitionStopped):
        fill(other, 1)
    assert len(read_all(log)) > 0, "reading goes on"
    with pytest.raises(PartitionStopped):
        engine.close()
    engine = KvEngine(tmp_path)
    fill(engine.open(OTHER, SMALL), 1)
    assert engine.open(KEY, SMALL).end_offset == 5
    engine.close()


# ---- a full disk ----


def test_append_after_enospc_leaves_the_log_as_it_was_and_goes_on(tmp_path: Path):
    engine = KvEngine(tmp_path, ManualClock())
    log = engine.open(KEY, SMALL)
    fill(log, 20, size=60)
    before, rows = read_all(log), log.segments()
    faults.arm("kv.write", faults.fail_with(errno.ENOSPC))
    for _ in range(3):
        with pytest.raises(StorageFull):
            fill(log, 1, size=1_900)  # would roll
    with pytest.raises(StorageFull):
        log.truncate(4)
    with pytest.raises(StorageFull):
        log.trim(4)
    faults.disarm()
    assert (read_all(log), log.segments()) == (before, rows)
    fill(log, 30, size=60)
    assert log.sync() == 50
    engine.close()
    engine = KvEngine(tmp_path)
    assert [first for first, _ in spans(read_all(engine.open(KEY, SMALL)))] == list(range(50))
    engine.close()


def test_appends_leave_a_reserve_and_trimming_may_use_it(tmp_path: Path):
    engine = KvEngine(tmp_path, reserve_bytes=1 << 60)
    log = engine.open(KEY, SMALL)
    with pytest.raises(StorageFull, match="retention"):
        append(log, make_batch(0, size=2 * 1024 * 1024))
    assert log.end_offset == 0
    log.save_state("producers", 0, b"x")
    engine.close()


@pytest.mark.fault
def test_a_really_full_disk_refuses_appends_loses_nothing_and_goes_on(tmp_path: Path):
    """I4 on a file system of 64 MB. RocksDB comes back by itself when there is room."""
    room = tmp_path / "small"
    room.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(room)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        engine = KvEngine(room / "kv", reserve_bytes=0)
        log = engine.open(KEY, LogSettings())
        with pytest.raises(StorageFull):
            while True:
                append(log, make_batch(log.end_offset, size=60_000))
        end = log.end_offset
        synced, stopped = 0, False
        try:  # RocksDB may have made room by itself meanwhile
            synced = log.sync()
        except StorageFull:
            pass
        except PartitionStopped:  # the sync met the failed write: it goes on after a restart
            stopped = True
        assert log.durable_offset == synced
        assert synced in (0, end)
        subprocess.run(["mount", "-o", "remount,size=256m", str(room)], check=True)
        if stopped:
            with contextlib.suppress(StorageFull):  # RocksDB tells of the failed write once more
                engine.close()
            engine = KvEngine(room / "kv", reserve_bytes=0)
            log = engine.open(KEY, LogSettings())
            assert log.end_offset == end
        deadline = time.monotonic() + 30
        while log.end_offset == end and time.monotonic() < deadline:
            try:
                append(log, make_batch(end))
            except StorageFull:
                time.sleep(0.05)  # RocksDB looks for room every few seconds
        assert log.sync() == end + 1
        assert [first for first, _ in spans(read_all(log))] == list(range(end + 1))
        engine.close()
        engine = KvEngine(room / "kv", reserve_bytes=0)
        assert engine.open(KEY, LogSettings()).end_offset == end + 1
        engine.close()
    finally:
        subprocess.run(["umount", "--lazy", str(room)], check=True)


# ---- space ----


def size_on_disk(root: Path) -> int:
    size = 0
    for path in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # RocksDB deletes files meanwhile
            size += path.stat().st_size
    return size


@pytest.mark.parametrize("how", ["trim", "delete", "rewrite"])
def test_dropped_segments_give_their_space_back(tmp_path: Path, how: str):
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, LogSettings(segment_bytes=4 * 1024 * 1024))
    noise = os.urandom(60_000)
    for number in range(600):
        append(log, make_batch_of(noise, log.end_offset))
        if number % 100 == 99:  # a file goes as a whole: on a busy machine they would grow large
            log._db._db.flush()
    log.roll()
    log._db._db.flush()
    full = size_on_disk(tmp_path)
    if how == "trim":
        log.trim(590)
    elif how == "rewrite":
        log.rewrite(0, 600).commit()
    else:
        log.close()
        engine.delete(KEY)
    assert full > 35_000_000
    deadline = time.monotonic() + 60
    while size_on_disk(tmp_path) >= full * 0.4:  # RocksDB deletes files in a thread of its own
        assert time.monotonic() < deadline
        time.sleep(0.02)
    engine.close()


def make_batch_of(value: bytes, offset: int) -> bytes:
    from onelog.record.batch import build_batch  # noqa: PLC0415

    return build_batch([(None, None, value, (), 0)], base_offset=offset)


# ---- the rest ----


def test_truncate_takes_topic_entries_along(tmp_path: Path):
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    append(log, make_batch(0, 3, topic=b"a"), make_batch(3, 3, topic=b"a"))
    log.truncate(3)
    append(log, make_batch(3, 3, topic=b"b"))
    assert log.offsets_of_topic(topic_hash(b"a"), 0, 6, 10) == [0, 1, 2]
    assert log.offsets_of_topic(topic_hash(b"b"), 0, 6, 10) == [3, 4, 5]
    engine.close()


def test_a_rewrite_of_segments_that_were_dropped_is_refused_and_cleaned_up(tmp_path: Path):
    engine = KvEngine(tmp_path)
    log = engine.open(KEY, SMALL)
    fill(log, 30, size=60)
    log.roll()
    rewrite = log.rewrite(0, 30)
    batch = make_batch(0)
    rewrite.append(batch, scan_batches(batch))
    log.trim(30)
    with pytest.raises(Conflict):
        rewrite.commit()
    assert batch_keys(log) == []
    engine.close()


def test_partitions_whose_names_begin_alike_are_apart(tmp_path: Path):
    engine = KvEngine(tmp_path)
    names = [PartitionKey("a", 0), PartitionKey("a", 256), PartitionKey("aa", 0)]
    for at, key in enumerate(names):
        fill(engine.open(key, SMALL), at + 1)
    engine.close()
    engine = KvEngine(tmp_path)
    assert engine.partitions() == names
    engine.delete(names[0])
    assert engine.partitions() == names[1:]
    assert [engine.open(key, SMALL).end_offset for key in names] == [0, 2, 3]
    engine.close()


def test_a_meta_that_older_software_wrote_is_read():
    """It has no high watermark: none was kept."""
    found = meta.decode(msgspec.msgpack.encode([0, 5, 1, [[0, 0, 0, True]]]), "s/0")
    assert (found.end_offset, found.high_watermark) == (5, 0)
