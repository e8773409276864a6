"""This tree beside another commit, in turns, without sockets: the frame of lockstep and lone.

Rules: a case is a child process (`*_child.py`) that runs on the sources of a tree and prints its
figures last. Base and this tree take turns, so that a machine that gets slower is slower for both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.against import tree_of
from bench.report import ROOT, Row, report

TURNS = 5
Arguments = tuple[str, ...]
Figures = list[float]


def run_child(tree: Path, child: Path, arguments: Arguments, figures: int) -> Figures:
    """One run on the sources of a tree: the last figures that it prints."""
    path = os.pathsep.join(map(str, (tree / "src", tree, ROOT)))
    done = subprocess.run(
        [sys.executable, child, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{tree}, {arguments}: {done.stderr.strip()[-2000:]}")
    return [float(word) for word in done.stdout.split()[-figures:]]


def run_cases(
    name: str,
    about: str | None,
    cases: Mapping[str, Arguments],
    cost: Callable[[Path, Arguments], Figures],
    judge: Callable[[str, list[Figures], list[Figures]], list[Row]],
    arguments: list[str],
) -> int:
    """Run the cases whose name has all words of the command line, and report them."""
    parser = argparse.ArgumentParser(prog=f"bench.{name}", description=about)
    parser.add_argument("words", nargs="*", help="only cases whose name has all of these")
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--base-tree", type=Path, help="a folder with it, kernel compiled")
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args(arguments)
    base = (chosen.base_tree or tree_of(chosen.base)).resolve()
    rows: list[Row] = []
    for case, given in cases.items():
        if not all(word.lower() in case.lower() for word in chosen.words):
            continue
        was, now = [], []
        for _turn in range(chosen.turns):
            was.append(cost(base, given))
            now.append(cost(ROOT, given))
        rows += judge(case, was, now)
    report(name, rows, *chosen.words)
    return 0
