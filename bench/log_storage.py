"""The segment engine's bars: append and read beside raw files, reopening, recovery after a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import ROOT, Row, child_environment, data_dir, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.base.ids import Offset, PartitionId
from onelog.broker import Broker, BrokerSettings, Durability, Retention, StreamConfig
from onelog.kernel import CHECKPOINT_BYTES, BatchBuilder, crc32c, place_batches, scan_batches
from onelog.storage.engine import LogSettings, PartitionKey, PartitionLog
from onelog.storage.segment import SegmentEngine, SegmentLog

GIB = 1024**3
APPEND_BYTES = GIB
STORE_BYTES = 10 * 1000**3
PARTITIONS = 8
TAIL_BYTES = 400 * 1000**2
"""Written to one partition after the reopening, before the kill."""
KEY = PartitionKey("bench-1", PartitionId(0))
STREAM = "bench"


class Batch:
    """One batch of 256 B messages that can be appended again and again."""

    def __init__(self, size: int, topics: int = 100) -> None:
        builder = BatchBuilder(True)
        value = os.urandom(256)
        now_ms = time.time_ns() // 1_000_000
        self.count = 0
        while builder.size_bytes < size - 350:
            topic = b"sensors/d%d/telemetry" % (self.count % topics)
            builder.add(topic, topic, value, (), now_ms)
            self.count += 1
        self.topics = builder.topics()
        self.data = bytearray(builder.seal(0, 0))

    def append_to(self, log: PartitionLog) -> None:
        """Append it at the log's end, as a partition does: offsets set in place."""
        log.append(self.data, place_batches(self.data, log.end_offset, 0), self.topics)


def append_rows() -> list[Row]:
    """1 GiB in batches of 128 KB, without any sync, beside os.write of the same buffer."""
    batch = Batch(128 * 1024)
    times = APPEND_BYTES // len(batch.data)
    written = times * len(batch.data)

    def raw(directory: Path) -> float:
        data = bytes(batch.data)
        path = directory / "raw"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            start = time.perf_counter()
            for _ in range(times):
                os.write(fd, data)
            return written / (time.perf_counter() - start) / 1e6
        finally:
            os.close(fd)
            path.unlink()

    def ours(directory: Path) -> float:
        log = SegmentEngine(directory / "ours").open(KEY, LogSettings())
        start = time.perf_counter()
        for _ in range(times):
            batch.append_to(log)
        rate = written / (time.perf_counter() - start) / 1e6
        log.trim(log.end_offset)  # the files go
        return rate

    pairs = []
    for number in range(6):
        with data_dir("append") as directory:
            order = (raw, ours) if number % 2 == 0 else (ours, raw)
            rates = {work: work(directory) for work in order}
            pairs.append((rates[ours], rates[raw]))
            say(f"append: {rates[ours]:.0f} MB/s, raw write {rates[raw]:.0f} MB/s")
    ours_rate, raw_rate = (median([pair[at] for pair in pairs]) for at in (0, 1))
    return [
        row("segment append, 128 KB batches", ours_rate, "MB/s", peer=("os.write", raw_rate)),
        row(
            "segment append / raw write",
            median([mine / other for mine, other in pairs]),
            "ratio",
            0.70,
        ),
    ]


def read_rows() -> list[Row]:
    """1 GiB through `read` in 1 MB pieces, every byte touched by a CRC, maps opened anew."""
    with data_dir("read") as directory:
        engine = SegmentEngine(directory)
        log = engine.open(KEY, LogSettings())
        batch = Batch(128 * 1024)
        while log.size_bytes < GIB:
            batch.append_to(log)
        size, end = log.size_bytes, log.end_offset
        engine.close()

        def read_through(touch: Callable[[memoryview], object]) -> float:
            log = SegmentEngine(directory).open(KEY, LogSettings())
            start = time.perf_counter()
            offset = log.start_offset
            while offset < end:
                view = log.read(offset, 1 << 20, end)
                touch(view)
                last = scan_batches(view, 0, False)[-1]
                offset = Offset(last.last_offset + 1)
            took = time.perf_counter() - start
            log.close()
            return size / took / 1e9

        def plain_file() -> float:
            buffer = bytearray(1 << 20)
            start = time.perf_counter()
            for path in sorted((directory / KEY.stream_id / "0").glob("*.log")):
                with path.open("rb", buffering=0) as file:
                    while (got := file.readinto(buffer)) > 0:
                        crc32c(memoryview(buffer)[:got])
            return size / (time.perf_counter() - start) / 1e9

        crc, copy, raw = [], [], []
        for _ in range(3):
            crc.append(read_through(crc32c))
            raw.append(plain_file())
            copy.append(read_through(bytes))
    say(f"read: {median(crc):.1f} GB/s")
    peer = ("readinto of the files + CRC", median(raw))
    return [
        row("read of cached data, CRC of every byte", median(crc), "GB/s", 1.5, peer=peer),
        row("read of cached data, copied to bytes", median(copy), "GB/s", peer=peer),
    ]


async def reopen_rows() -> list[Row]:
    """10 GB in 8 partitions: closed cleanly and opened; then written to, killed and opened."""
    with data_dir("store") as directory:
        start = time.perf_counter()
        await _fill(directory)
        say(f"10 GB store written in {time.perf_counter() - start:.0f} s")
        cold, warm = [], []
        for _ in range(3):
            _forget_cached(directory)
            cold.append(await _reopen(directory))
            warm.append(await _reopen(directory))
        say(f"reopened in {median(cold):.2f} s with cold files")
        _kill_while_writing(directory)
        start = time.perf_counter()
        broker = await open_store(directory)
        recovery_s = time.perf_counter() - start
        logs = [partition.log for partition in broker.streams.get(STREAM).local]
        stats = [log.recovery for log in logs if isinstance(log, SegmentLog)]
        total = sum(log.size_bytes for log in logs)
        assert not stats[0].clean, "the kill must leave something to recover"
        await broker.close()
    scanned = max(found.bytes_scanned for found in stats)
    bar = (CHECKPOINT_BYTES + LogSettings().segment_bytes) / 1e6
    return [
        row("reopen a cleanly closed 10 GB store, files not cached", max(cold), "s", 2, low=True),
        row("reopen a cleanly closed 10 GB store, files cached", max(warm), "s", 2, low=True),
        row(
            "recovery after kill -9: bytes scanned",
            scanned / 1e6, "MB", bar, low=True, peer=("bytes of the store", total / 1e6),
        ),
        row("recovery after kill -9: open", recovery_s, "s"),
    ]  # fmt: skip


async def open_store(directory: Path) -> Broker:
    """A broker with the stream that the 10 GB lie in."""
    broker = await open_broker(directory, BrokerSettings(), SystemClock())
    if broker.streams.find(STREAM) is None:
        await broker.streams.create(
            StreamConfig(
                name=STREAM,
                captures=("sensors/#",),
                partitions=PARTITIONS,
                durability=Durability.OS,
                retention=Retention(age_ms=-1),
            )
        )
    return broker


async def _fill(directory: Path) -> None:
    broker = await open_store(directory)
    partitions = broker.streams.get(STREAM).local
    batch = Batch(1 << 20)
    written, told = 0, 0
    while written < STORE_BYTES:
        for partition in partitions:
            partition.append_checked(batch.data)
            written += len(batch.data)
        await asyncio.sleep(0)
        if written - told >= 2 * 1000**3:
            told = written
            say(f"store: {written / 1e9:.0f} of {STORE_BYTES / 1e9:.0f} GB")
    await broker.close()


async def _reopen(directory: Path) -> float:
    start = time.perf_counter()
    broker = await open_store(directory)
    partitions = broker.streams.get(STREAM).local
    for partition in partitions:  # ready means: the first and the last record can be read
        assert len(partition.read(partition.start_offset, 1))
        assert len(partition.read(Offset(partition.end_offset - 1), 1))
    took = time.perf_counter() - start
    assert all(partition.log.recovery.clean for partition in partitions)  # type: ignore[attr-defined]
    await broker.close()
    return took


def _forget_cached(directory: Path) -> None:
    """Drop the store's files from the page cache (they are synced, so nothing is lost)."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _kill_while_writing(directory: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "bench.log_storage", str(directory)],
        cwd=ROOT, env=child_environment(), check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.returncode


async def write_and_die(directory: Path) -> None:
    """Write to one partition with a sync now and then, and die with unsynced bytes behind it."""
    broker = await open_store(directory)
    partition = broker.streams.get(STREAM).local[0]
    batch = Batch(1 << 20)
    for number in range(TAIL_BYTES // len(batch.data)):
        partition.append_checked(batch.data)
        if number % 4 == 0:
            await partition.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def run() -> list[Row]:
    """Every row of the storage table."""
    return [*append_rows(), *read_rows(), *run_loop(reopen_rows())]


if __name__ == "__main__":
    run_loop(write_and_die(Path(sys.argv[1])))
