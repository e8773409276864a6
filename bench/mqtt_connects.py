"""Connects: one after the other and fifty at once, clean and kept sessions, beside Mosquitto.

Rules: the load is `connectload.c`. A connection counts when its CONNACK came; all stay open until
the last one stands. The sides take turns, and each figure is the median of the rounds. Kept
sessions of ours are durable before they are answered; Mosquitto keeps them in memory. `python -m
bench.mqtt_connects` runs these cases alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench import mqtt
from bench.report import ROOT, Row, data_dir, median, report, row, say

LOAD = ROOT / "build" / "connectload"
COUNT = "3000"
ROUNDS = 3
CASES: dict[str, tuple[tuple[str, ...], float | None]] = {
    # name: (options of the load, connects per second that ours should reach)
    "connects, one after the other": (("-k", "1"), 5000),
    "connects, 50 at once": (("-k", "50"), 5000),
    "connects with kept sessions, one after the other": (("-k", "1", "-s"), None),
    "connects with kept sessions, 50 at once": (("-k", "50", "-s"), 5000),
    "sessions that come back, 50 at once": (("-k", "50", "-s", "-N", "back"), 5000),
    "sessions that never expire come back, 50 at once": (
        ("-k", "50", "-s", "-e", "-N", "ever"),
        5000,
    ),
}


def build_load() -> None:
    """Compile the load generator."""
    LOAD.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", LOAD, ROOT / "bench" / "connectload.c"], check=True)


def load(broker: mqtt.Running, options: tuple[str, ...]) -> dict[str, float]:
    """One run of the load generator; then the broker gets a moment to end the connections."""
    command: list[str | Path] = [
        LOAD,
        "-p",
        str(broker.port),
        "-c",
        str(broker.pid),
        "-n",
        COUNT,
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    time.sleep(1)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def run(ours: mqtt.Running, peer: mqtt.Running | None) -> list[Row]:
    """Every case, in turns."""
    build_load()
    rows: list[Row] = []
    for name, (options, bar) in CASES.items():
        if "-N" in options:
            for side in (ours, peer):
                if side is not None:
                    load(side, options)  # the sessions are made
        mine: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        for _round in range(ROUNDS):
            mine.append(load(ours, options))
            if peer is not None:
                theirs.append(load(peer, options))
        rate = median([answer["conn_per_s"] for answer in mine])
        cpu_us = median([answer["cpu_us_per_conn"] for answer in mine])
        say(f"{name}: {rate:,.0f} a second, {cpu_us:.0f} us of CPU each")
        said = None
        if theirs:
            said = ("Mosquitto, per second", median([answer["conn_per_s"] for answer in theirs]))
        rows.append(row(name, rate, "per second", bar, peer=said))
        if theirs:
            peer_us = median([answer["cpu_us_per_conn"] for answer in theirs])
            said = ("Mosquitto, us", peer_us)
        rows.append(row(f"{name}: CPU", cpu_us, "us", peer=said))
    return rows


def main() -> int:
    """These cases alone."""
    with (
        data_dir("mqtt-connects") as folder,
        mqtt.mosquitto(folder) as peer,
        mqtt.onelog(folder / "os", "os") as ours,
    ):
        rows = run(ours, peer)
    report("mqtt", rows, "connects")
    return 0


if __name__ == "__main__":
    sys.exit(main())
