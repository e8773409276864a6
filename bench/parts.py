"""A benchmark of several parts: each is a module with `measure() -> list[Row]`.

Rules: a part that fails is named and ends the run with an error; the rows of the other parts are
reported all the same. The names of parts on the command line run these parts only.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Mapping

from bench.report import Row, report, say


def run_parts(name: str, about: str | None, parts: Mapping[str, str], arguments: list[str]) -> int:
    """Measure and report; `parts` has the module of each part. The exit code."""
    parser = argparse.ArgumentParser(prog=f"bench.{name}", description=about)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(parts)}")
    chosen = parser.parse_args(arguments).parts
    if unknown := set(chosen) - set(parts):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(parts)}")
    rows: list[Row] = []
    failed = []
    for part, module in parts.items():
        if chosen and part not in chosen:
            continue
        say(part)
        try:
            rows += importlib.import_module(module).measure()
        except (Exception, SystemExit):  # noqa: BLE001 - the other parts are measured
            traceback.print_exc()
            failed.append(part)
    report(name, rows, *chosen)
    if failed:
        print(f"these parts failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
