"""The rows of a benchmark: printed as a table, written to `build/bench/NAME.json`.

Beside them, `NAME.origin.json` says where and when they were measured. Some cases alone are in
`NAME-CASES.json`.

Rules: `holds` is computed here, from the value and the bar, and nowhere else. A missed bar is shown
and does not fail the run: a busy machine is not a broken one.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from rich.console import Console
from rich.table import Table

from bench import origin

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "bench"
DATA = ROOT / "build" / "bench-data"
"""Where the data of a run lies: the disk of the repository, not a tmpfs."""

Row = dict[str, Any]
T = TypeVar("T")


def row(
    name: str,
    value: float,
    unit: str,
    bar: float | None = None,
    *,
    low: bool = False,
    peer: tuple[str, float] | None = None,
) -> Row:
    """One line of the table; `low` means that less is better."""
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "bar": bar,
        "holds": None if bar is None else (value <= bar if low else value >= bar),
        "low": low,
        "peer": peer[0] if peer else None,
        "peer_value": round(peer[1], 4) if peer else None,
    }


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that the server uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def child_environment() -> dict[str, str]:
    """The environment in which a child process finds the sources."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def say(text: str) -> None:
    """Tell what is under way; the table itself goes to standard output."""
    print(f"  {text}", file=sys.stderr, flush=True)


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def resident_bytes() -> int:
    """Memory of this process that is in RAM now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def data_dir(name: str) -> Iterator[Path]:
    """A fresh directory on the repository's disk, gone afterwards."""
    DATA.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=DATA))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def report(name: str, rows: list[Row], *parts: str) -> None:
    """Print the table, write the JSON, name the bars that do not hold.

    A run of some cases only says which by `parts`: it has a file of its own, `NAME-PART.json`, so
    that several such runs lie beside each other until the page takes them in.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = re.sub(r"\W+", "-", "-".join((name, *parts))).strip("-")
    path = RESULTS / f"{file}.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")
    origin.write(RESULTS / f"{file}.origin.json", origin.measured_now(DATA))
    console = Console(width=None if sys.stdout.isatty() else 140)
    title = f"{name}: Python {platform.python_version()}, {os.cpu_count()} cores"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column, justify in (
        ("measured", "left"), ("value", "right"), ("unit", "left"), ("bar", "right"),
        ("holds", "left"), ("peer", "left"), ("peer's value", "right"),
    ):  # fmt: skip
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for line in rows:
        table.add_row(*_cells(line), style=None if line["holds"] is not False else "bold red")
    console.print(table)
    missed = [line["name"] for line in rows if line["holds"] is False]
    held = sum(line["holds"] is True for line in rows)
    console.print(
        f"{held} bars hold, {len(missed)} do not" + "".join(f"\n  NO  {n}" for n in missed)
    )
    console.print(f"written to {path.relative_to(ROOT)}")


def _cells(line: Row) -> list[str]:
    return [
        line["name"],
        _number(line["value"]),
        line["unit"],
        "" if line["bar"] is None else _number(line["bar"]),
        {None: "", True: "yes", False: "NO"}[line["holds"]],
        line["peer"] or "",
        "" if line["peer_value"] is None else _number(line["peer_value"]),
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
