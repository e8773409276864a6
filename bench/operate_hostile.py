"""What 10,000 hostile connections cost clients that are logged in: their p99, and memory.

Rules: the connections (`hostile_load.py`) are on every kind of listener, TLS, WebSocket and the
admin API among them, with the default limits. Latency is from publish to the subscriber's hand at
1,000 messages a second, in each protocol (`viewload.c`), the median of the rounds, beside that of
the same broker before they came. For each round of their coming, all of them come anew. The broker
and the clients that are measured come first on the machine (`priority.py`). Beside the p99 by the
clock stands how long one message in a hundred waits for the loop's processor time (`passes.py`).
Memory is the highest of the broker's process while they stood, beyond what it was before.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import passes, priority, views_load
from bench.mqtt import free_port, process_of
from bench.report import ROOT, Row, child_environment, data_dir, median, row, say

COUNT = 10_000
COMING, AGAIN = 2_000, 500
"""Connections a second: until all have come, and those that come again afterwards."""
ROUNDS = 3
MEASURED_S = 3.0
PACED = ("-x", "-r", "1000", "-w", "0.5")
PROTOCOLS = {"MQTT": "M", "Kafka": "K", "AMQP": "A"}
PASSES = "passes"
P99_BAR, GROWTH_BAR_MB = 2.0, 200.0
Came = list[tuple[float, passes.Passes]]
LISTENERS = ("mqtt", "mqtt_tls", "mqtt_ws", "kafka", "amqp", "admin")


def make_certificate(folder: Path) -> list[str]:
    """The settings of a TLS listener with a certificate of its own."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return [
        "listeners.mqtt_tls.enabled=true",
        f'listeners.mqtt_tls.tls.cert_file="{certificate}"',
        f'listeners.mqtt_tls.tls.key_file="{key}"',
    ]


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[tuple[views_load.Target, dict[str, int]]]:
    """Our broker with every kind of listener, and its ports."""
    ports = {name: free_port() for name in LISTENERS}
    values = [
        *(f"listeners.{name}.port={port}" for name, port in ports.items()),
        "listeners.mqtt_ws.enabled=true",
        "kafka.groups.initial_rebalance_delay_ms=0",
        'defaults.stream.durability="os"',
        'limits.page_cache_bytes="256MiB"',
        *make_certificate(folder),
    ]
    flags = [part for value in values for part in ("--set", value)]
    command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder / "data"), *flags]
    environment = {**child_environment(), **passes.environment(folder / PASSES)}
    with process_of(priority.first(command), ports["mqtt"], environment) as pid:
        yield (
            views_load.Target(ports["mqtt"], ports["kafka"], ports["amqp"], (pid,)),
            ports,
        )


class Crowd:
    """The hostile connections, in a process of their own."""

    def __init__(self, ports: dict[str, int]) -> None:
        places = [f"{name}={port}" for name, port in ports.items()]
        words = [str(COUNT), str(COMING), str(AGAIN), *places]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.hostile_load", *words],
            env=child_environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.until("begins")

    def until(self, said: str) -> None:
        """Wait until it says so."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != said:
            raise SystemExit(f"the hostile connections could not be opened: {line}")

    def end(self) -> dict[str, object]:
        """Close all. Returns its numbers."""
        self._process.send_signal(signal.SIGTERM)
        said, _nothing = self._process.communicate(timeout=30)
        found: dict[str, object] = json.loads(said.strip().splitlines()[-1])
        return found


def memory_kb(pid: int, name: str) -> int:
    """A line of the process's status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/{pid}/status has no {name}")


def p99(target: views_load.Target, name: str, letter: str) -> float:
    """One round of one protocol."""
    before = [str(word) for word in priority.first([])]
    return views_load.load(target, letter, letter, name, PACED, MEASURED_S, before)["p99_us"]


def rounds(target: views_load.Target, when: str) -> dict[str, float]:
    """The median of each protocol."""
    found: dict[str, list[float]] = {name: [] for name in PROTOCOLS}
    for number in range(ROUNDS):
        for name, letter in PROTOCOLS.items():
            found[name].append(p99(target, f"{when}{number}{letter.lower()}", letter))
    return {name: median(values) for name, values in found.items()}


def waits(folder: Path, work: Callable[[], float]) -> tuple[float, passes.Passes]:
    """What one round found, and the passes of the loop meanwhile."""
    begin_ns = time.monotonic_ns()
    found = work()
    return found, passes.between(folder / PASSES, begin_ns, time.monotonic_ns())


def coming(target: views_load.Target, ports: dict[str, int], folder: Path) -> Came:
    """Round by round all of them come, and go."""
    found: Came = []
    for number in range(ROUNDS):
        crowd = Crowd(ports)
        name = f"coming{number}"
        found.append(waits(folder, partial(p99, target, name, "M")))
        crowd.until(f"{COUNT} connections")
        crowd.end()
        time.sleep(1.0)  # the broker closes them
    return found


def measure() -> list[Row]:
    """Before, while they come, and while they stand."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    views_load.build()
    passes.build()
    with data_dir("hostile") as folder, broker(folder) as (target, ports):
        pid = target.pids[0]
        rounds(target, "warm")
        before = rounds(target, "before")
        _p99, alone = waits(folder, partial(p99, target, "alone", "M"))
        rss_kb = memory_kb(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest so far counts from here
        came = coming(target, ports, folder)
        crowd = Crowd(ports)
        crowd.until(f"{COUNT} connections")
        among = rounds(target, "among")
        grown_mb = (memory_kb(pid, "VmHWM") - rss_kb) / 1024
        say(f"hostile connections: {crowd.end()}, memory {rss_kb / 1024:.0f} MB before")
    for found, held in came:
        say(f"while they come: p99 {found:,.0f} us; passes {held}; before {alone}")
    rows = []
    count = f"{COUNT:,} hostile connections"
    named = [(f"{name}, p99 while they stand", name, value) for name, value in among.items()]
    came_p99 = median([found for found, _held in came])
    for text, name, value in [("MQTT, p99 while they come", "MQTT", came_p99), *named]:
        say(f"{text}: {before[name]:,.0f} to {value:,.0f} us")
        peer = ("before, us", before[name])
        rows.append(
            row(f"{count}: {text}", value / before[name], "ratio", P99_BAR, low=True, peer=peer)
        )
    waited_us = median([held.wait_us for _found, held in came])
    peer = ("before, us", alone.wait_us)
    text = f"{count}: processor time of the loop that 1 % of messages wait for, while they come"
    rows.append(row(text, waited_us, "us", low=True, peer=peer))
    rows.append(row(f"{count}: memory", grown_mb, "MB more", GROWTH_BAR_MB, low=True))
    return rows
