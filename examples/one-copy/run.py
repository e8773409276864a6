"""One copy: devices publish by MQTT; a week later Kafka replays the same files that SQL aggregates.

Run it: make example-one-copy, or .venv/bin/python examples/one-copy/run.py [--format iceberg]

The bucket is a folder of the store. The second broker has a clock that is a week ahead: by then the
history has left the disk. The exit code is 0 when everybody saw each message exactly once, and each
message lies in the bucket exactly once: its files hold every offset once, and few bytes besides.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from broker import Ports, ask, running  # noqa: E402 - beside this file
from bucket import NotOnce, check_once  # noqa: E402
from clients import publish, replay  # noqa: E402

STREAM, WEEK_DAYS = "plant", 7
DEVICES, READINGS = 20, 1_000
MOVED_S = 120.0
ONELOG = [sys.executable, "-m", "onelog"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--format", choices=("log", "iceberg", "delta"), default="iceberg")
    parser.add_argument("--no-sql", action="store_true", help="leave the SQL part away (no Spark)")
    parser.add_argument("--readings", type=int, default=READINGS, help="messages of each device")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), chosen.format, chosen.readings, with_sql=not chosen.no_sql)


def run(folder: Path, form: str, readings: int, *, with_sql: bool) -> None:
    (folder / "bucket").mkdir()  # a store that is not there may be a disk that is not mounted
    with running(folder) as ports:
        make_stream(folder, form)
        sent = publish(ports.mqtt, DEVICES, readings)
        print(f"monday: {DEVICES} devices sent {sent.messages:,} messages by MQTT,"
              f" {sent.value_bytes:,} bytes of values")  # fmt: skip
        print_places(folder, ports)
        log_bytes = sum(row["size_bytes"] for row in parts(ports, "partitions"))
    with running(folder, days=WEEK_DAYS) as ports:
        wait_until_moved(ports)
        print(f"{WEEK_DAYS} days later: the history is in the bucket, and no longer on the disk")
        print_places(folder, ports)
        seen = replay(ports.kafka, sent.messages)
        check("a Kafka group that is new", seen.by_device, sent.by_device)
        if with_sql:
            check("SQL, over the same files", by_sql(folder, ports), sent.by_device)
        check_bucket(folder, ports, sent.messages, log_bytes)
    print("each message was written once, moved once, and read by both")


def make_stream(folder: Path, form: str) -> None:
    """A stream whose history goes to the bucket, and leaves the disk after a day."""
    onelog(
        folder,
        *("stream", "create", STREAM, "--capture", f"{STREAM}/#", "--retention", "365d"),
        *("--tier", form, "--local-age", "1d", "--tier-commit", "1s"),
    )


def onelog(folder: Path, *words: str) -> str:
    """Run a command against the broker of the folder; what it printed."""
    done = subprocess.run(
        [*ONELOG, *words, "--data", str(folder / "data")],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return done.stdout


def wait_until_moved(ports: Ports) -> None:
    """Until nothing of the stream is on the disk only; the broker does it by its timers."""
    until = time.monotonic() + MOVED_S
    while time.monotonic() < until:
        ends = {row["partition"]: row["end_offset"] for row in parts(ports, "partitions")}
        rows = parts(ports, "tier")
        if all(row["local_start_offset"] >= ends[row["partition"]] for row in rows):
            return
        time.sleep(0.5)
    raise SystemExit(f"after {MOVED_S:.0f} s the history is still on the disk: {rows}")


def parts(ports: Ports, what: str) -> list[dict[str, Any]]:
    """The partitions of the stream, or their tiers."""
    found: list[dict[str, Any]] = ask(ports, f"streams/{STREAM}/{what}")["items"]
    return found


def print_places(folder: Path, ports: Ports) -> None:
    """Where the bytes of the stream are."""
    disk = sum(path.stat().st_size for path in (folder / "data").rglob("*.log"))
    kinds: Counter[str] = Counter()
    for path in (folder / "bucket").rglob("*"):
        if path.is_file():
            kinds[path.suffix or "manifests"] += path.stat().st_size
    stored = ", ".join(f"{kind} {size:,}" for kind, size in sorted(kinds.items())) or "nothing"
    held = sum(row["records"] for row in [ask(ports, f"streams/{STREAM}")["stream"]])
    print(f"  {held:,} records; bytes of segments on the disk: {disk:,}; in the bucket: {stored}")


def by_sql(folder: Path, ports: Ports) -> Counter[str]:
    """Messages of each device, by Spark."""
    query = f"select topic, count(*) as n from stream('{STREAM}') group by topic"  # noqa: S608
    printed = subprocess.run(
        [*ONELOG, "sql", query, "--output", "json", "--servers", f"127.0.0.1:{ports.kafka}"],
        check=True, stdout=subprocess.PIPE, text=True, cwd=folder,
    ).stdout  # fmt: skip
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return Counter({str(row["topic"]).split("/")[1]: int(row["n"]) for row in rows})


def check(who: str, found: Counter[str], wanted: Counter[str]) -> None:
    """Everybody sees each message exactly once."""
    if found != wanted:
        raise SystemExit(f"{who} saw {found.total():,} messages, and not {wanted.total():,}")
    print(f"  {who}: {found.total():,} messages of {len(found)} devices, each once")


def check_bucket(folder: Path, ports: Ports, messages: int, log_bytes: int) -> None:
    """Each message lies in the bucket exactly once."""
    ends = {row["partition"]: row["end_offset"] for row in parts(ports, "partitions")}
    if sum(ends.values()) != messages:
        raise SystemExit(f"the stream has {sum(ends.values()):,} records, and not {messages:,}")
    try:
        size = check_once(folder / "bucket", ends, log_bytes)
    except NotOnce as problem:
        raise SystemExit(str(problem)) from None
    print(f"  the bucket: {messages:,} messages, each once, in {size:,} bytes;"
          f" the log had {log_bytes:,}")  # fmt: skip


if __name__ == "__main__":
    main()
