"""The memory bars: 10 000 idle partitions, and an idle cursor of each kind.

Each figure is the growth of the resident memory of a fresh process, so that everything counts:
Python objects, the kernel's own allocations and what the allocator could not give back.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from pathlib import Path

from bench.report import (
    ROOT,
    Row,
    child_environment,
    data_dir,
    resident_bytes,
    row,
    run_loop,
    say,
)
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import (
    EARLIEST,
    LOCAL,
    Broker,
    BrokerSettings,
    Durability,
    Message,
    StreamConfig,
)

PARTITIONS = 10_000
CURSORS = 10_000
KINDS = ("tail", "offset", "session", "queue", "table")


async def make_partitions(directory: Path) -> None:
    """A stream of 10 000 partitions with one record in each, closed cleanly."""
    broker = await open_broker(directory, BrokerSettings(), SystemClock())
    config = StreamConfig(
        name="wide", captures=("wide",), partitions=PARTITIONS, durability=Durability.OS
    )
    await broker.streams.create(config)
    for number in range(PARTITIONS):
        await broker.publish(Message("wide", b"x" * 64), partition=number, principal=LOCAL)
    await broker.close()


async def partitions_bytes(directory: Path) -> int:
    """What an open broker holds for them, in a process that did nothing else."""
    # A first, empty broker in the process takes what does not depend on partitions.
    with data_dir("empty") as other:
        await (await open_broker(other, BrokerSettings(), SystemClock())).close()
    before = _settled_bytes()
    broker = await open_broker(directory, BrokerSettings(), SystemClock())
    assert broker.streams.get("wide").partitions[-1].end_offset == 1
    grown = _settled_bytes() - before
    await broker.close()
    return grown


async def cursor_bytes(directory: Path, kind: str, durable: bool) -> float:
    """Bytes per idle cursor, each on a filter of its own in a stream that has records."""
    broker = await open_broker(directory, BrokerSettings(), SystemClock())
    await broker.publish_many([Message(f"c/{n}/x", b"1") for n in range(1000)], principal=LOCAL)
    await _open_cursors(broker, kind, 0, 200, durable)
    before = _settled_bytes()
    await _open_cursors(broker, kind, 200, 200 + CURSORS, durable)
    grown = _settled_bytes() - before
    await broker.close()
    return grown / CURSORS


async def _open_cursors(broker: Broker, kind: str, first: int, last: int, durable: bool) -> None:
    desk = broker.cursors
    for start in range(first, last, 200):
        numbers = range(start, start + 200)
        if kind == "tail":
            for number in numbers:
                desk.open_tail([f"c/{number}/x"], principal=LOCAL)
            continue
        opener = {
            "offset": desk.open_offset,
            "session": desk.open_session,
            "queue": desk.open_queue,
            "table": desk.open_table,
        }[kind]
        await asyncio.gather(
            *(
                opener(
                    f"{kind}-{n}", [f"c/{n}/x"], start=EARLIEST, durable=durable, principal=LOCAL
                )  # type: ignore[operator]
                for n in numbers
            )
        )


def _settled_bytes() -> int:
    gc.collect()
    return resident_bytes()


def _child(what: str, directory: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "bench.log_memory", what, str(directory)],
        cwd=ROOT, env=child_environment(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(json.loads(done.stdout))


def run() -> list[Row]:
    """Every row of the memory table."""
    with data_dir("wide") as directory:
        say("memory: making 10 000 partitions")
        _child("make", directory)
        grown = _child("partitions", directory)
    say(f"memory: {grown / 1e6:.0f} MB for 10 000 partitions")
    rows = [row("memory of 10 000 idle partitions", grown / 1e6, "MB", 200, low=True)]
    for kind in KINDS:
        with data_dir("cursors") as directory:
            each = _child(f"{kind}:idle", directory)
        rows.append(row(f"memory of an idle {kind} cursor", each, "B", 1024, low=True))
        if kind != "tail":
            with data_dir("cursors") as directory:
                each = _child(f"{kind}:durable", directory)
            rows.append(row(f"memory of a durable {kind} cursor", each, "B"))
        say(f"memory: {each:.0f} B per {kind} cursor")
    return rows


def main() -> None:
    what, directory = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        run_loop(make_partitions(directory))
        print(0)
    elif what == "partitions":
        print(run_loop(partitions_bytes(directory)))
    else:
        kind, _, durable = what.partition(":")
        print(run_loop(cursor_bytes(directory, kind, durable == "durable")))


if __name__ == "__main__":
    main()
