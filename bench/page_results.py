"""The results that `docs/benchmarks.md` is made of, kept beside the page.

Rules: `docs/benchmarks/results/BENCH.json` holds runs, each with its origin (`origin.py`) and its
rows. A new run of some cases replaces these cases only: the other cases stay, with the origin they
have. What lies in `build/bench` is taken in as often as one likes, with the same outcome. A run
without a file of its origin counts as measured when its rows were written.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import Row

ORIGIN = ".origin.json"


class Run(NamedTuple):
    """Rows that were measured together."""

    date: str
    commit: str
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: list[Row]
    note: str = ""


class Bench(NamedTuple):
    """All that is known of one benchmark, the newest run last."""

    name: str
    runs: list[Run]

    def rows(self) -> list[Row]:
        """In the order in which the newest run that has most of them shows them."""
        longest = max(self.runs, key=lambda run: len(run.rows))
        others = [row for run in self.runs if run is not longest for row in run.rows]
        return [*longest.rows, *others]


def bench_of(path: Path) -> str:
    """`log-broker.json` holds some parts of the benchmark `log`."""
    return path.name.removesuffix(".json").partition("-")[0]


def read_kept(folder: Path) -> dict[str, Bench]:
    """What earlier pages were made of."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        text = json.loads(path.read_text())
        found[text["bench"]] = Bench(text["bench"], [Run(**run) for run in text["runs"]])
    return found


def read_new(folder: Path) -> dict[str, list[Run]]:
    """What benchmarks wrote since; a file that is no list of rows is left alone."""
    found: dict[str, list[Run]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(ORIGIN):
            continue
        rows = json.loads(path.read_text())
        if isinstance(rows, list) and rows:
            found.setdefault(bench_of(path), []).append(_run(path, rows))
    return found


def _run(path: Path, rows: list[Row]) -> Run:
    origin = path.with_name(path.name.removesuffix(".json") + ORIGIN)
    if origin.exists() and origin.stat().st_mtime >= path.stat().st_mtime:
        return Run(**json.loads(origin.read_text()), rows=rows)
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Run(f"{written:%Y-%m-%d %H:%M:%S} UTC", "not recorded", {}, {}, rows)


def merge(name: str, runs: list[Run]) -> Bench:
    """Each case as it was measured last; runs that have none left are gone."""
    seen: set[tuple[str, str]] = set()
    kept: list[Run] = []
    for run in sorted(runs, key=lambda run: run.date, reverse=True):
        rows = [row for row in run.rows if (row["name"], _scale(row)) not in seen]
        seen |= {(row["name"], _scale(row)) for row in rows}
        if rows:
            kept.append(run._replace(rows=rows))
    return Bench(name, kept[::-1])


def _scale(row: Row) -> str:
    """Some benchmarks have a case twice, with two units."""
    return str(row["unit"])


def take_in(kept: Path, new: Path, *, replace: bool = False) -> dict[str, Bench]:
    """Keep what is new; with `replace`, nothing else of the benchmarks that have new results."""
    found = read_kept(kept)
    for name, runs in read_new(new).items():
        before = found[name].runs if name in found and not replace else []
        found[name] = merge(name, [*before, *runs])
    kept.mkdir(parents=True, exist_ok=True)
    for name, bench in found.items():
        text = {"bench": name, "runs": [run._asdict() for run in bench.runs]}
        (kept / f"{name}.json").write_text(json.dumps(text, indent=1) + "\n")
    return found
