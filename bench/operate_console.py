"""How large the web console is, and how soon it is there.

Rules: the size is that of all files together by gzip, pages that nobody opens included. The first
paint is that of Chromium, from an empty cache, over a real `onelog serve`: the median of the
rounds. Where the console cannot be built or there is no Chromium, that is an error and no row.
"""

from __future__ import annotations

import gzip

from bench.mqtt import free_port, process_of
from bench.operate_metrics import serve_flags, until_ready
from bench.report import ROOT, Row, data_dir, median, row
from tests.console.browsing import CHROMIUM, Visitor, build, chromium

STATIC = ROOT / "src" / "onelog" / "admin" / "static"
ROUNDS = 9
SIZE_BAR_KB = 150.0
PAINT_BAR_MS = 1000.0
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def size_kb() -> float:
    """All files by gzip, in kilobytes."""
    files = [path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".gz"]
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) / 1024


def paints_ms(port: int) -> list[float]:
    """The first paint of the overview, each time for a browser that knows nothing yet."""
    found = []
    with chromium() as browser:
        for _round in range(ROUNDS):
            visitor = Visitor(browser, f"http://127.0.0.1:{port}")
            found.append(float(visitor.go("overview").evaluate(PAINT)))
            visitor.close()
    return found


def measure() -> list[Row]:
    """Size and first paint."""
    if problem := build():
        raise SystemExit(problem)
    if CHROMIUM is None:
        raise SystemExit("Chromium is missing: run 'apt-get install chromium' as root")
    port = free_port()
    with data_dir("console") as folder, process_of(serve_flags(folder, port), port):
        until_ready(port)
        paints = paints_ms(port)
    return [
        row("console: all files by gzip", size_kb(), "KB", SIZE_BAR_KB, low=True),
        row("console: first paint", median(paints), "ms", PAINT_BAR_MS, low=True),
    ]
