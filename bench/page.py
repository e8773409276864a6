"""`make bench-page`: writes docs/benchmarks.md and its pictures from the results of all benchmarks.

Rules: results of `build/bench` that are newer are taken into `docs/benchmarks/results`, which is
committed with the page; the page is made of the latter alone. A benchmark that was never measured
is named and fails nothing. `--replace` forgets older cases of the benchmarks that were repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.page_drawing import draw_cases, draw_growth, drawable
from bench.page_growth import curves_of
from bench.page_results import Bench, take_in
from bench.page_texts import BENCHES
from bench.page_writing import figures_of, page
from bench.report import RESULTS, ROOT, say

PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = ROOT / "docs" / "benchmarks" / "results"


def draw(folder: Path, benches: Mapping[str, Bench], form: str = "svg") -> list[Path]:
    """A picture for each benchmark that has something to show."""
    made = []
    for name, figures in figures_of(benches).items():
        path = folder / f"{name}.{form}"
        curves = curves_of(figures) if name == "growth" else []
        if curves:
            draw_growth(path, curves)
        elif drawable(figures):
            draw_cases(path, figures)
        else:
            continue
        made.append(path)
    return made


def main(arguments: list[str]) -> int:
    """Take new results in, then write everything anew."""
    parser = argparse.ArgumentParser(prog="bench.page", description=__doc__)
    parser.add_argument("--replace", action="store_true", help="forget older cases")
    parser.add_argument("--new", type=Path, default=RESULTS, help="where new results lie")
    parser.add_argument("--png", type=Path, help="also draw PNG files, into this folder")
    chosen = parser.parse_args(arguments)
    benches = take_in(KEPT, chosen.new, replace=chosen.replace)
    for missing in [name for name in BENCHES if name not in benches]:
        say(f"{missing} was never measured: {BENCHES[missing].repeat}")
    made = draw(PAGE.with_suffix(""), benches)
    if chosen.png:
        draw(chosen.png, benches, "png")
    PAGE.write_text(page(benches))
    say(f"{PAGE.relative_to(ROOT)} and {len(made)} pictures are written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
