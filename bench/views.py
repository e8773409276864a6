"""`make bench-views`: what it costs that every protocol reads what every other wrote.

Parts: `disk` (bytes written with and without consumers), `latency` (across protocols), `strangers`
(consumers of other topics), `crash` (kill -9 in the middle). Words choose parts, `--quick` runs
all of them shortly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from bench import views_crash, views_disk, views_load, views_rates
from bench.report import Row, data_dir, report

MESSAGES, QUICK_MESSAGES = 1_000_000, 100_000
ROUNDS, QUICK_ROUNDS = 9, 3
MEASURED_S, QUICK_MEASURED_S = 1.0, 1.0
KILLS, QUICK_KILLS = 5, 1

PARTS: dict[str, Callable[[Path, bool], list[Row]]] = {
    "disk": lambda folder, quick: views_disk.amplification(
        folder, QUICK_MESSAGES if quick else MESSAGES
    ),
    "latency": lambda folder, quick: views_rates.latency(folder, *_rounds(quick)),
    "strangers": lambda folder, quick: views_rates.strangers(folder, *_rounds(quick)),
    "crash": lambda folder, quick: views_crash.kills(folder, QUICK_KILLS if quick else KILLS),
}


def _rounds(quick: bool) -> tuple[int, float]:
    return (QUICK_ROUNDS, QUICK_MEASURED_S) if quick else (ROUNDS, MEASURED_S)


def main(words: list[str]) -> int:
    """Measure everything, or some parts."""
    parser = argparse.ArgumentParser(prog="bench.views", description="One log, many views")
    parser.add_argument("--quick", action="store_true", help="fewer messages, shorter rounds")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    asked = parser.parse_args(words)
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; choose of {', '.join(PARTS)}")
    views_load.build()
    rows: list[Row] = []
    with data_dir("views") as folder:
        for name in asked.parts or PARTS:
            rows += PARTS[name](folder, asked.quick)
    report("views", rows, *asked.parts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
