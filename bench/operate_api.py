"""The admin API under load: what it does to the latency of messages.

Rules: MQTT clients that are logged in send 1,000 messages a second. Their p99 while `admin_load`
asks for all that a console and a metrics collector ask for, as often as it is answered, is beside
the p99 of the same broker when nobody asks. Runs alternate, so that a machine that gets slower is
slower for both; the median of each counts. The API takes a share of the event loop: how many
answers it gave meanwhile is reported beside it. After the load, the median of some answers counts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import views_load
from bench.mqtt import free_port, process_of
from bench.operate_metrics import fetch, serve_flags, until_ready
from bench.report import Row, data_dir, median, row, say

P99_BAR = 1.5
ROUNDS = 5
AFTER = 7
PACED = ("-x", "-r", "1000", "-w", "0.5")
MEASURED_S = 4.0
ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def asked(port: int) -> Iterator[None]:
    """Somebody asks the API all the time, for the length of a block."""
    command = [sys.executable, "-m", "bench.admin_load", str(port)]
    asking = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
        if asking.poll() is not None:
            raise SystemExit(f"bench.admin_load ended with {asking.returncode}")
    finally:
        asking.terminate()
        asking.wait()


def overview_s(port: int) -> float:
    """How long an overview takes, on a connection of its own."""
    status, _body, took = fetch(port, "/api/v1/overview")
    if status != 200:
        raise SystemExit(f"GET /api/v1/overview answered {status} after the load")
    return took


def measure() -> list[Row]:
    """Every row."""
    views_load.build()
    with data_dir("api") as folder:
        admin, mqtt = free_port(), free_port()
        command = [*serve_flags(folder, admin), "--set", f"listeners.mqtt.port={mqtt}"]
        with process_of(command, mqtt) as pid:
            until_ready(admin)
            target = views_load.Target(mqtt, 0, 0, (pid,))

            def p99(name: str) -> float:
                return views_load.load(target, "M", "M", name, PACED, MEASURED_S)["p99_us"]

            p99("warm")
            alone, busy = [], []
            for number in range(ROUNDS):
                alone.append(p99(f"alone{number}"))
                with asked(admin):
                    busy.append(p99(f"busy{number}"))
            took = [overview_s(admin) for _request in range(AFTER)]
    say(f"overview after the load: {', '.join(f'{one * 1000:.1f}' for one in took)} ms")
    ratio = median(busy) / median(alone)
    said = ("nobody asks, us", median(alone))
    rows = [
        row("admin API under load: MQTT p99", ratio, "ratio", P99_BAR, low=True, peer=said),
        row("admin API after the load: overview", median(took) * 1000, "ms", 250.0, low=True),
    ]
    for line in rows:
        say(f"{line['name']}: {line['value']:,.2f} {line['unit']}")
    return rows
