"""How much longer a broker takes to start when a partition has many cold rows, and what it asks.

Rules: both brokers have the same local log. One has rows for all of its history in the copy of its
manifest, as 1 TB in pieces of 256 MiB has them (4,096), or as small pieces have them. Both were
served once before: the first start after a stream was made reads its log once, to keep what it says
from then on. The time is from the start of the process to its word that it is ready. Rounds take
turns, and medians count.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.operate_metrics import fetch
from bench.report import ROOT, Row, child_environment, data_dir, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import LOCAL, BrokerSettings, Message, StreamConfig
from onelog.objects.manifest import NONCE_BYTES, VERSION, Manifest
from onelog.objects.names import new_tag, tier_piece
from onelog.objects.rows import Row as PieceRow
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine
from onelog.storage.tiered.copies import TierFiles, copy_of

ROWS = (4_096, 100_000)
ROUNDS = 5
TIME_BAR, REQUESTS_BAR = 1.2, 0
STREAM = "history"


async def make_log(folder: Path, records: int) -> None:
    """A stream of so many records, in few batches."""
    (folder / "data").mkdir(parents=True)
    broker = await open_broker(folder / "data", BrokerSettings(), SystemClock())
    await broker.streams.create(StreamConfig(name=STREAM, captures=(STREAM,)))
    for start in range(0, records, 1_000):
        count = min(1_000, records - start)
        await broker.publish_many([Message(STREAM, b"x")] * count, principal=LOCAL)
    await broker.close()


def make_cold(folder: Path, rows: int) -> None:
    """Let all records be cold, one row for each: nobody reads them here."""
    root = folder / "data" / "segment"
    engine = SegmentEngine(root, SystemClock())
    logs = {key: engine.open(key, LogSettings()) for key in engine.partitions()}
    ((key, log),) = (found for found in logs.items() if found[1].end_offset >= rows)
    log.roll()
    log.trim(log.end_offset)
    engine.close()
    files = TierFiles(engine.folder(key))
    files.save(copy_of(manifest_of(key, rows)))


def manifest_of(key: PartitionKey, rows: int) -> Manifest:
    """One row for each record."""
    made = [
        PieceRow(
            base=at, end=at + 1, log_bytes=1 << 28, records=1, min_timestamp_ms=1,
            max_timestamp_ms=1, created_ms=1, kind="log",
            object=tier_piece(key.stream_id, key.partition, at, at + 1, new_tag()), position=0,
            piece_bytes=(1 << 28) + 4096, index_bytes=4096, index_crc=0, leader_epoch=0,
        )
        for at in range(rows)
    ]  # fmt: skip
    return Manifest(
        VERSION, 1, secrets.token_bytes(NONCE_BYTES), 0, b"{}", key.partition, 0, tuple(made)
    )


@contextmanager
def started(folder: Path) -> Iterator[tuple[float, int]]:
    """A broker on a folder: the seconds until it was ready, and its admin port."""
    ports = {"listeners.admin.port": 0, "listeners.mqtt.port": 0, "listeners.kafka.port": 0}
    values = {**ports, "listeners.amqp.port": 0, "store.url": f"file://{folder / 'bucket'}"}
    flags = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder / "data"), *flags]
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            port = 0
            for line in process.stdout:
                if told := re.search(r"^ +admin +\w+://[\w.]+:(\d+)", line):
                    port = int(told[1])
                if "kernel" in line:
                    break
            else:
                raise SystemExit("the broker did not start")
            yield time.perf_counter() - begun, port
        finally:
            process.terminate()
            process.wait(60)


def requests(port: int) -> int:
    """Requests that the store got."""
    total = json.loads(fetch(port, "/api/v1/store")[1])["total"]
    return int(total["put"] + total["get"] + total["list"] + total["delete"])


def measure() -> list[Row]:
    """The rows of the table."""
    lines = []
    for count in ROWS:
        with data_dir("object-restart") as place:
            plain, cold = place / "plain", place / "cold"
            run_loop(make_log(plain, count))
            with started(plain):
                pass
            shutil.copytree(plain, cold)
            make_cold(cold, count)
            times: dict[Path, list[float]] = {plain: [], cold: []}
            asked = 0
            for _ in range(ROUNDS):
                for folder, found in times.items():
                    with started(folder) as (took, port):
                        found.append(took)
                        asked = max(asked, requests(port)) if folder is cold else asked
            say(
                f"{count:,} rows: {median(times[plain]):.2f} s without, {median(times[cold]):.2f} s"
            )
            lines += [
                row(
                    f"restart with {count:,} cold rows", median(times[cold]) / median(times[plain]),
                    "ratio", TIME_BAR, low=True, peer=("without, s", median(times[plain])),
                ),
                row(f"requests before ready, {count:,} rows", asked, "requests", REQUESTS_BAR,
                    low=True),
            ]  # fmt: skip
    return lines
