"""A million topics: how long the admin API takes to know and to find them, and what they take.

Rules: the topics are in the log before the broker starts, one message each. The survey is the time
from the first question until the API says that its list is complete; a search is a later question,
the median of the rounds. Memory is the growth of the process by the survey. While it works, and
while searches go on, MQTT clients that are logged in send 1,000 messages a second: their p99 is
beside that of the same broker when nobody asks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import views_load
from bench.mqtt import free_port, process_of
from bench.operate_hostile import memory_kb
from bench.operate_metrics import fetch, serve_flags, until_ready
from bench.report import Row, data_dir, median, row, run_loop, say
from onelog.assembly import open_broker
from onelog.base.clock import SystemClock
from onelog.broker import BrokerSettings
from onelog.kernel import BatchBuilder

TOPICS = 999_000
"""The API keeps a million at most, and the load below adds some."""
SITES = 1_000
BATCH_RECORDS = 1_000
SURVEY_WITHIN_S = 300.0
SURVEY_BAR_S, SEARCH_BAR_MS, MEMORY_BAR_MB, P99_BAR = 60.0, 250.0, 600.0, 1.5
"""The issue names no figures: a person waits for the first answer once, and for no search."""
PACED = ("-x", "-r", "1000", "-w", "0.5")
MEASURED_S = 4.0
SEARCHES = {
    "one topic of a million": "filter=" + quote(f"site/{SITES // 2}/device/500500", safe=""),
    "a thousand topics by filter": "filter="
    + quote(f"site/{SITES // 2}/#", safe="")
    + "&limit=1000",
    "the first page of a filter for all": "filter="
    + quote("site/+/device/+", safe="")
    + "&limit=100",
}


async def fill(folder: Path) -> None:
    """A message of each topic."""
    broker = await open_broker(folder, BrokerSettings(), SystemClock())
    stream = broker.streams.get("main")
    now_ms = time.time_ns() // 1_000_000
    builders = {partition: BatchBuilder(True) for partition in stream.partitions}
    for number in range(TOPICS):
        name = b"site/%d/device/%d" % (number % SITES, number)
        partition = stream.partition_of(name)
        builder = builders[partition]
        builder.add(name, name, b"x" * 32, (), now_ms)
        if builder.count >= BATCH_RECORDS:
            partition.append_built(builder, index_topics=True)
    for partition, builder in builders.items():
        if builder.count:
            partition.append_built(builder, index_topics=True)
    await broker.close()


def ask(port: int, query: str) -> tuple[dict[str, Any], float]:
    """A page of topics, and how long it took in seconds."""
    status, body, took = fetch(port, f"/api/v1/topics?{query}")
    if status != 200:
        raise SystemExit(f"GET /api/v1/topics?{query} answered {status}: {body[:300]!r}")
    return json.loads(body), took


def survey(port: int) -> float:
    """Seconds until all topics are known."""
    begun, page = time.perf_counter(), {}
    while (took := time.perf_counter() - begun) < SURVEY_WITHIN_S:
        page = ask(port, "limit=1")[0]
        if page["complete"] and page["known"] >= TOPICS:
            return took
    raise SystemExit(f"the API knows {page['known']} topics of {TOPICS} after {took:.0f} s")


class Meanwhile:
    """Runs a call again and again in a thread, for the length of a block."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self._work()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def measure() -> list[Row]:
    """Every row."""
    views_load.build()
    rows = []
    with data_dir("topics") as folder:
        say(f"topics: writing {TOPICS:,}")
        run_loop(fill(folder))
        admin, mqtt = free_port(), free_port()
        command = [*serve_flags(folder, admin), "--set", f"listeners.mqtt.port={mqtt}"]
        with process_of(command, mqtt) as pid:
            until_ready(admin)
            target = views_load.Target(mqtt, 0, 0, (pid,))

            def p99(name: str) -> float:
                return views_load.load(target, "M", "M", name, PACED, MEASURED_S)["p99_us"]

            p99("warm")
            alone = median([p99(f"alone{number}") for number in range(3)])
            before_kb = memory_kb(pid, "VmRSS")
            took: list[float] = []
            working = threading.Thread(target=lambda: took.append(survey(admin)))
            working.start()
            during = p99("survey")
            working.join()
            if not took:
                raise SystemExit("the survey did not end")
            grown_mb = (memory_kb(pid, "VmRSS") - before_kb) / 1024
            rows.append(row("1 M topics: first survey", took[0], "s", SURVEY_BAR_S, low=True))
            rows.append(
                row("1 M topics: memory of the survey", grown_mb, "MB", MEMORY_BAR_MB, low=True)
            )
            for name, query in SEARCHES.items():
                times = [ask(admin, query)[1] * 1000 for _ in range(7)]
                rows.append(
                    row(f"1 M topics: {name}", median(times), "ms", SEARCH_BAR_MS, low=True)
                )
            with Meanwhile(lambda: [ask(admin, query) for query in SEARCHES.values()]):
                busy = median([p99(f"busy{number}") for number in range(3)])
            for name, value in (("the survey works", during), ("searches go on", busy)):
                said = ("nobody asks, us", alone)
                text = f"1 M topics: MQTT p99 while {name}"
                rows.append(row(text, value / alone, "ratio", P99_BAR, low=True, peer=said))
    for line in rows:
        say(f"{line['name']}: {line['value']:,.2f} {line['unit']}")
    return rows
