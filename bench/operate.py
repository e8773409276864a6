"""`make bench-operate`: what running the broker safely costs; prints a table, writes JSON.

Rules: each part is a module with `measure() -> list[Row]`, and one line of `PARTS`. A part that
fails is named and ends the run with an error; the rows of the other parts are reported all the
same. `ARGS="access metrics"` runs some parts only.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

from bench.report import Row, report, say

PARTS = {
    # name: its module
    "access": "bench.operate_access",
    "metrics": "bench.operate_metrics",
    "hostile": "bench.operate_hostile",
    "topics": "bench.operate_topics",
    "backup": "bench.operate_backup",
    "api": "bench.operate_api",
    "console": "bench.operate_console",
}


def main(arguments: list[str]) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.operate", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}")
    chosen = parser.parse_args(arguments).parts
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    rows: list[Row] = []
    failed = []
    for name, module in PARTS.items():
        if chosen and name not in chosen:
            continue
        say(name)
        try:
            rows += importlib.import_module(module).measure()
        except (Exception, SystemExit):  # noqa: BLE001 - the other parts are measured
            traceback.print_exc()
            failed.append(name)
    report("operate", rows)
    if failed:
        print(f"these parts failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
