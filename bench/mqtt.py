"""`make bench-mqtt`: MQTT against Mosquitto, both on this machine, in turns, in one run.

Rules: the load is `mqttload.c`; messages received a second, and per second of the broker's CPU,
are compared as ratios, median of the rounds. Ours writes the log (durability `os`, then `fsync`),
Mosquitto keeps nothing. A case in which a message was lost is reported as 0.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import mqtt_resume
from bench.report import ROOT, Row, child_environment, data_dir, median, report, row, say
from onelog.kernel import probe_ring

LOAD = ROOT / "build" / "mqttload"
ROUNDS = 3
SECONDS = "1.5"
PACED_ROUNDS = 9
"""Of a second each: one round of latency says nothing."""
CASES: dict[str, tuple[tuple[str, ...], float, float | None]] = {
    # name: (options of the load, bar of the ratio with `os`, bar with `fsync`)
    "1 to 1, QoS 0": (("-l", "256"), 20, None),
    "1 to 1, QoS 1": (("-l", "256", "-q", "1", "-I", "1000"), 30, 8),
    "10 to 1, QoS 0": (("-l", "256", "-P", "10"), 12, None),
    "10 to 1, QoS 1": (("-l", "256", "-P", "10", "-q", "1"), 25, 8),
    "1 to 100, QoS 0": (("-l", "256", "-S", "100"), 40, None),
    "100 pairs, window 20, QoS 0": (
        ("-l", "256", "-P", "100", "-S", "100", "-x", "-W", "20"),
        12,
        None,
    ),
    "100 pairs, window 20, QoS 1": (
        ("-l", "256", "-P", "100", "-S", "100", "-x", "-W", "20", "-q", "1"),
        18,
        10,
    ),
    "100 pairs, one message each, QoS 0": (
        ("-l", "64", "-P", "100", "-S", "100", "-x", "-W", "1"),
        1.4,
        None,
    ),
    "100 pairs, one message each, QoS 1": (
        ("-l", "64", "-P", "100", "-S", "100", "-x", "-W", "1", "-q", "1"),
        1.5,
        None,
    ),
}
RING_BARS = {
    # name: bar of messages per CPU-second, as a ratio, where sends go by io_uring
    "100 pairs, one message each, QoS 0": 1.5,
    "100 pairs, one message each, QoS 1": 1.65,
}


class Running(NamedTuple):
    """A broker that runs."""

    port: int
    pid: int
    admin_port: int = 0


def build_load() -> None:
    """Compile the load generator."""
    LOAD.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", LOAD, ROOT / "bench" / "mqttload.c"], check=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until somebody listens."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the broker ended with code {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens on port {port} after 30 s")


@contextlib.contextmanager
def process_of(
    command: Sequence[str | Path], port: int, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """A broker for the length of a block; its pid."""
    process = subprocess.Popen(
        command,
        env=environment or child_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, process)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@contextlib.contextmanager
def onelog(folder: Path, durability: str, *settings: str) -> Iterator[Running]:
    """Our broker."""
    port, admin = free_port(), free_port()
    values = (
        f"listeners.mqtt.port={port}",
        f"listeners.admin.port={admin}",
        "listeners.mqtt_ws.enabled=false",
        "listeners.kafka.enabled=false",
        "listeners.amqp.enabled=false",
        f'defaults.stream.durability="{durability}"',
        "mqtt.limits.inflight=65535",
        "mqtt.limits.connects_per_second=0",
        'limits.page_cache_bytes="256MiB"',
        *settings,
    )
    flags = [part for value in values for part in ("--set", value)]
    command = [sys.executable, "-m", "onelog", "serve", "--data", str(folder), *flags]
    with process_of(command, port) as pid:
        yield Running(port, pid, admin)


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[Running | None]:
    """The peer; None where it is not installed."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        say("mosquitto is not installed: run 'apt-get install mosquitto' as root for the ratios")
        yield None
        return
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 1000000\n"
        "max_inflight_messages 0\nset_tcp_nodelay true\nlog_dest none\nuser root\n"
    )
    with process_of([program, "-c", config], port) as pid:
        yield Running(port, pid)


def load(broker: Running, options: tuple[str, ...]) -> dict[str, float]:
    """One run of the load generator."""
    port, pid = broker.port, broker.pid
    done = subprocess.run(
        [LOAD, "-p", str(port), "-c", str(pid), "-t", SECONDS, "-w", "0.5", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    if answer["lost"] or answer["dup"]:
        say(f"LOST {answer['lost']}, DOUBLED {answer['dup']}: {' '.join(options)}")
        answer["recv_s"] = 0.0
    return answer


def compare(durability: str, ours: Running, peer: Running | None) -> list[Row]:
    """The throughput cases of one durability level."""
    bars = {
        name: os_bar if durability == "os" else fsync_bar
        for name, (_options, os_bar, fsync_bar) in CASES.items()
    }
    return compare_cases(durability, bars, ours, peer)


def ring(folder: Path, peer: Running | None) -> list[Row]:
    """Lone messages where sends go by io_uring; nothing where the system has none for us."""
    try:
        probe_ring()
    except OSError as error:
        say(f"io_uring cannot be used here: {error}")
        return []
    with onelog(folder / "ring", "os", 'net.backend="io_uring"') as ours:
        return compare_cases("os, io_uring", RING_BARS, ours, peer)


def compare_cases(
    durability: str, bars: Mapping[str, float | None], ours: Running, peer: Running | None
) -> list[Row]:
    """The throughput cases that have a bar."""
    rows: list[Row] = []
    for name, bar in bars.items():
        if bar is None:
            continue
        options = CASES[name][0]
        mine: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        for _round in range(ROUNDS):
            if peer is not None:
                theirs.append(load(peer, options))
            mine.append(load(ours, options))
        rate = median([run["recv_s"] for run in mine])
        say(f"{durability}, {name}: {rate:,.0f} msg/s")
        if not theirs:
            rows.append(row(f"{durability}, {name}", rate, "msg/s"))
            continue
        peer_rate = median([run["recv_s"] for run in theirs])
        cpu = median([run["recv_s"] / max(run["broker_cpu"], 0.01) for run in mine])
        peer_cpu = median([run["recv_s"] / max(run["broker_cpu"], 0.01) for run in theirs])
        said = ("Mosquitto, msg/s", peer_rate)
        rows.append(row(f"{durability}, {name}: msg/s", rate / peer_rate, "ratio", bar, peer=said))
        said = ("Mosquitto, msg per CPU-second", peer_cpu)
        rows.append(row(f"{durability}, {name}: per CPU", cpu / peer_cpu, "ratio", bar, peer=said))
    return rows


def latency(ours: Running, peer: Running | None) -> list[Row]:
    """p50 and p99 at 1 000 messages a second; last while the admin listener is busy."""
    rows: list[Row] = []
    for qos, busy, p99_bar in (("0", False, 1.2), ("1", False, 1.2), ("0", True, 1.3)):
        options = ("-l", "256", "-r", "1000", "-q", qos, "-t", "1")
        mine: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        # The peer runs beside the same work of the machine.
        with admin_load(ours) if busy else contextlib.nullcontext():
            for _round in range(PACED_ROUNDS):
                mine.append(load(ours, options))
                if peer is not None:
                    theirs.append(load(peer, options))
        when = f"at 1 000 msg/s, QoS {qos}" + (", admin listener busy" if busy else "")
        for name, field, bar in (("p50", "p50_us", 1.1), ("p99", "p99_us", p99_bar)):
            us = median([run[field] for run in mine])
            say(f"{name} {when}: {us:,.0f} us")
            if theirs:
                said = ("Mosquitto, us", median([run[field] for run in theirs]))
                ratio = us / said[1]
                rows.append(row(f"{name} {when}", ratio, "ratio", bar, low=True, peer=said))
            else:
                rows.append(row(f"{name} {when}", us, "us"))
    return rows


@contextlib.contextmanager
def admin_load(broker: Running) -> Iterator[None]:
    """Keep the admin listener of our broker busy for the length of a block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.admin_load", str(broker.admin_port)], env=child_environment()
    )
    try:
        yield
        if process.poll() is not None:
            raise SystemExit("the load on the admin listener ended before its time")
    finally:
        process.kill()
        process.wait()


def idle(folder: Path) -> list[Row]:
    """Memory and rate of 10 000 connections that do nothing."""
    with onelog(folder / "idle", "os") as ours:
        done = subprocess.run(
            [LOAD, "-p", str(ours.port), "-c", str(ours.pid), "-i", "10000"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    grown = answer["rss_after_mb"] - answer["rss_before_mb"]
    return [
        row("10 000 idle connections: memory", grown, "MB", 150, low=True),
        row("10 000 connects", answer["conn_per_s"], "per second", 5000),
    ]


def main() -> int:
    """Measure everything."""
    from bench import mqtt_connects  # noqa: PLC0415 - it needs the brokers of this module

    build_load()
    rows: list[Row] = []
    with data_dir("mqtt") as folder, mosquitto(folder) as peer:
        with onelog(folder / "os", "os") as ours:
            rows += compare("os", ours, peer)
            rows += latency(ours, peer)
        rows += ring(folder, peer)
        with onelog(folder / "fsync", "fsync") as ours:
            rows += compare("fsync", ours, peer)
        rows += idle(folder)
        with onelog(folder / "connects", "os") as ours:
            rows += mqtt_connects.run(ours, peer)
        with onelog(folder / "resume", "os") as ours:
            rows += mqtt_resume.run(ours.port, ours.pid)
    report("mqtt", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
