"""What 10,000 hostile connections cost clients that are logged in: their p99, and memory.

Rules: the connections (`hostile_load.py`) are on every kind of listener, TLS, WebSocket and the
admin API among them, with the default limits. Latency is from publish to the subscriber's hand at
1,000 messages a second, in each protocol (`viewload.c`), the median of the rounds, beside that of
the same broker before they came. Memory is the highest of the broker's process while they stood,
beyond what it was before.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import views_load
from bench.mqtt import free_port, process_of
from bench.report import ROOT, Row, child_environment, data_dir, median, row, say

COUNT = 10_000
COMING, AGAIN = 2_000, 500
"""Connections a second: until all have come, and those that come again afterwards."""
ROUNDS = 3
MEASURED_S = 3.0
PACED = ("-x", "-r", "1000", "-w", "0.5")
PROTOCOLS = {"MQTT": "M", "Kafka": "K", "AMQP": "A"}
P99_BAR, GROWTH_BAR_MB = 2.0, 200.0
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
    with process_of(command, ports["mqtt"]) as pid:
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

    def until_it_stands(self) -> None:
        """Wait until all of them are open."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.startswith(f"{COUNT} "):
            raise SystemExit(f"the hostile connections could not be opened: {said}")

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
    return views_load.load(target, letter, letter, name, PACED, MEASURED_S)["p99_us"]


def rounds(target: views_load.Target, when: str) -> dict[str, float]:
    """The median of each protocol."""
    found: dict[str, list[float]] = {name: [] for name in PROTOCOLS}
    for number in range(ROUNDS):
        for name, letter in PROTOCOLS.items():
            found[name].append(p99(target, f"{when}{number}{letter.lower()}", letter))
    return {name: median(values) for name, values in found.items()}


def measure() -> list[Row]:
    """Before, while they come, and while they stand."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    views_load.build()
    with data_dir("hostile") as folder, broker(folder) as (target, ports):
        pid = target.pids[0]
        rounds(target, "warm")
        before = rounds(target, "before")
        rss_kb = memory_kb(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest so far counts from here
        crowd = Crowd(ports)
        coming = p99(target, "coming", "M")
        crowd.until_it_stands()
        among = rounds(target, "among")
        grown_mb = (memory_kb(pid, "VmHWM") - rss_kb) / 1024
        say(f"hostile connections: {crowd.end()}, memory {rss_kb / 1024:.0f} MB before")
    rows = []
    count = f"{COUNT:,} hostile connections"
    named = [(f"{name}, p99 while they stand", name, value) for name, value in among.items()]
    for text, name, value in [("MQTT, p99 while they come", "MQTT", coming), *named]:
        say(f"{text}: {before[name]:,.0f} to {value:,.0f} us")
        peer = ("before, us", before[name])
        rows.append(
            row(f"{count}: {text}", value / before[name], "ratio", P99_BAR, low=True, peer=peer)
        )
    rows.append(row(f"{count}: memory", grown_mb, "MB more", GROWTH_BAR_MB, low=True))
    return rows
