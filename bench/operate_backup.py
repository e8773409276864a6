"""How fast a backup is against `cp`, and what messages notice of it.

Rules: a broker that serves holds `SIZE_MB` of log, warm in memory. Its first backup into a new
folder, from the command to its end, is measured beside `cp -r` of its data directory with a `sync`
of what it wrote: both then survive power loss, both on the same disk, in turns, the quickest of
each counts. A second backup with little new beside it shows what an incremental one costs. p99 is
from publish to the subscriber's hand at 1,000 messages a second while backups follow each other
without a pause, beside that of the same broker before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench import views_load
from bench.operate_hostile import PROTOCOLS, broker, rounds
from bench.operate_metrics import until_ready
from bench.report import ROOT, Row, child_environment, data_dir, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import LOCAL, BrokerSettings, Message

SIZE_MB = 3_000
TURNS = 3
SPEED_BAR, P99_BAR = 0.7, 1.5


async def fill(folder: Path) -> None:
    """A log of many topics, as clients leave it."""
    opened = await open_broker(folder, BrokerSettings(), SystemClock())
    value = bytes(range(250)) * 4
    for start in range(0, SIZE_MB * 1_000, 1_000):
        rows = [Message(f"plant/{n % 100}/d", value) for n in range(start, start + 1_000)]
        await opened.publish_many(rows, principal=LOCAL)
    await opened.close()


def back_up(folder: Path, store: Path, *options: str) -> dict[str, int]:
    """One backup by the command; its numbers."""
    words = ["backup", "create", str(store), "--json", "--data", str(folder), *options]
    done = subprocess.run(
        [sys.executable, "-m", "onelog", *words],
        env=child_environment(), cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def copy(folder: Path, into: Path) -> float:
    """Seconds of a plain copy that survives power loss."""
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", str(folder / "segment"), str(into)], check=True)
    subprocess.run(["sync", "-f", str(into)], check=True)
    return time.perf_counter() - begun


def speeds(folder: Path, place: Path) -> tuple[float, float, float]:
    """MB/s of a copy and of a backup, and seconds of a backup with nothing new."""
    copies, backups, again = [], [], []
    for turn in range(TURNS):
        size_mb = sum(path.stat().st_size for path in (folder / "segment").rglob("*.log")) / 1e6
        copies.append(size_mb / copy(folder, place / "copy"))
        shutil.rmtree(place / "copy")
        made = back_up(folder, place / f"store{turn}")
        backups.append(made["size_bytes"] / 1e3 / (made["ended_ms"] - made["began_ms"]))
        made = back_up(folder, place / f"store{turn}")
        again.append((made["ended_ms"] - made["began_ms"]) / 1000)
        shutil.rmtree(place / f"store{turn}")
        say(f"backup: turn {turn}: cp {copies[-1]:.0f} MB/s, backup {backups[-1]:.0f} MB/s,"
            f" again {again[-1]:.2f} s")  # fmt: skip
    return max(copies), max(backups), min(again)


class Endless:
    """Backups without a pause, each into a new folder, until it is ended."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.made = 0
        self._folder, self._place = folder, place
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            back_up(self._folder, self._place / "endless")
            shutil.rmtree(self._place / "endless")
            self.made += 1

    def end(self) -> None:
        """Wait for the last one."""
        self._stop.set()
        self._thread.join()


def measure() -> list[Row]:
    """Speed, then latency."""
    views_load.build()
    with data_dir("backup") as place:
        folder = place / "data"
        folder.mkdir()
        say(f"backup: writing {SIZE_MB} MB")
        run_loop(fill(folder))
        with broker(place) as (target, ports):
            until_ready(ports["admin"])
            copied, sent, again_s = speeds(folder, place)
            rounds(target, "warm")
            before = rounds(target, "before")
            endless = Endless(folder, place)
            among = rounds(target, "among")
            endless.end()
            say(f"backup: {endless.made} backups while latency was measured")
    rows = [
        row(
            f"backup of {SIZE_MB:,} MB against cp", sent / copied, "ratio of MB/s", SPEED_BAR,
            peer=("cp, MB/s", copied),
        ),
        row(f"backup of {SIZE_MB:,} MB again, with nothing new", again_s, "s", 3.0, low=True),
    ]  # fmt: skip
    for name in PROTOCOLS:
        say(f"backup: {name} p99 {before[name]:,.0f} to {among[name]:,.0f} us")
        peer = ("before, us", before[name])
        ratio = among[name] / before[name]
        rows.append(
            row(f"during a backup: {name}, p99", ratio, "ratio", P99_BAR, low=True, peer=peer)
        )
    return rows
