"""How long a scrape takes, and how many series it has: 10,000 topics, 1,000 cursors.

Rules: the worst kind of topic is that of Kafka, because each is a stream. 10,000 of those and
10,000 topics of MQTT are in the broker, and a thousand cursors that it keeps. A real `onelog serve`
answers over its socket; the time is that of a whole scrape to its last byte, the median of the
rounds. Beside it stands the CPU that the broker spent on one: a busy machine does not move that. A
series more for each topic would be no bound: with all of them there are not many more than
`METRIC_STREAMS_MAX` times the samples of a stream.
"""

from __future__ import annotations

import http.client
import os
import sys
import time
from pathlib import Path

from bench.mqtt import free_port, process_of
from bench.report import Row, data_dir, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import LOCAL, BrokerSettings, Durability, Message, StreamConfig

STREAMS = 10_000
TOPICS = 10_000
CURSORS = 1_000
SCRAPES = 12
PAUSE_S = 2.5
"""Collectors ask every few seconds. A scrape is paid for within a second or two: the admin API has
a twentieth of the loop, and who asks earlier waits for the rest of that time."""
EARLY, EARLY_S = 5, 0.2
"""Scrapes that come too early, and the pause before each."""
TIME_BAR_MS = 100.0
SERIES_BAR = 5_000.0


async def fill(folder: Path) -> None:
    """Streams, topics and cursors, as clients leave them."""
    broker = await open_broker(folder, BrokerSettings(), SystemClock())
    for number in range(STREAMS):
        name = f"kafka-{number}"
        await broker.streams.create(
            StreamConfig(name=name, captures=(name,), durability=Durability.OS)
        )
    for start in range(0, TOPICS, 1_000):
        rows = [Message(f"plant/{n % 100}/d{n}", b"x" * 64) for n in range(start, start + 1_000)]
        await broker.publish_many(rows, principal=LOCAL)
    for number in range(CURSORS):
        filters = [f"plant/{number % 100}/d{number}"]
        await broker.cursors.open_queue(f"jobs-{number}", filters, principal=LOCAL)
    await broker.close()


def serve_flags(folder: Path, admin: int) -> list[str]:
    """The command of a broker that has an admin listener and MQTT."""
    values = (
        f"listeners.admin.port={admin}",
        "listeners.mqtt.port=0",
        "listeners.kafka.port=0",
        "listeners.amqp.port=0",
    )
    flags = [part for value in values for part in ("--set", value)]
    return [sys.executable, "-m", "onelog", "serve", "--data", str(folder), *flags]


def cpu_ms(pid: int) -> float:
    """What a process has spent so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * 1000 / os.sysconf("SC_CLK_TCK")


def until_ready(port: int, within_s: float = 120.0) -> None:
    """Until the broker has recovered."""
    deadline = time.monotonic() + within_s
    while fetch(port, "/health/ready")[0] != 200:
        if time.monotonic() > deadline:
            raise SystemExit(f"the broker is not ready after {within_s:.0f} s")
        time.sleep(0.1)


def fetch(port: int, path: str) -> tuple[int, bytes, float]:
    """Status, body and seconds of one request on a connection of its own."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    took = time.perf_counter() - begun
    connection.close()
    return answer.status, body, took


def scrape(port: int, count: int, pause_s: float) -> list[float]:
    """Milliseconds of scrapes, each after a pause."""
    times = []
    for _ in range(count):
        time.sleep(pause_s)
        times.append(fetch(port, "/metrics")[2] * 1000)
    return times


def measure() -> list[Row]:
    """Time and series of a scrape."""
    with data_dir("metrics") as folder:
        say(f"metrics: making {STREAMS:,} streams, {TOPICS:,} topics, {CURSORS:,} cursors")
        run_loop(fill(folder))
        port = free_port()
        with process_of(serve_flags(folder, port), port) as pid:
            until_ready(port)
            body = fetch(port, "/metrics")[1]
            spent = cpu_ms(pid)
            times = scrape(port, SCRAPES, PAUSE_S)
            spent = (cpu_ms(pid) - spent) / SCRAPES
            early = scrape(port, EARLY, EARLY_S)
    series = sum(1 for line in body.splitlines() if not line.startswith(b"#"))
    if b'stream="~rest"' not in body:
        raise SystemExit("the scrape has no row for the rest of the streams")
    about = f"{STREAMS:,} streams, {TOPICS:,} topics, {CURSORS:,} cursors"
    say(f"metrics: {median(times):.1f} ms, at most {max(times):.1f} ms, CPU {spent:.1f} ms")
    return [
        row(
            f"/metrics with {about}", median(times), "ms", TIME_BAR_MS, low=True,
            peer=("CPU of the broker, ms", spent),
        ),
        row(f"/metrics with {about}: asked again after {EARLY_S} s", median(early), "ms", low=True),
        row(f"/metrics with {about}: series", series, "series", SERIES_BAR, low=True),
    ]  # fmt: skip
