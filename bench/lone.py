"""`make bench-lone BASE=rev`: what a message that comes alone costs, beside another commit.

Rules: as in `lockstep.py` there is no socket and no second process, but the disk is a real one and
is waited for (`lone_child.py`). CPU is that of all threads. A case runs on the base and on this
tree in turns. The value is the best block of 50 rounds: other work only ever adds to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench.against import tree_of
from bench.report import ROOT, Row, data_dir, report, row, say

TURNS = 5
CHILD = Path(__file__).with_name("lone_child.py")
CASES = {
    # name: arguments of the child: durability, partitions, pairs, rounds
    "fsync, 1 publisher": ("fsync", "8", "1", "1500"),
    "fsync, 1 publisher, 1 partition": ("fsync", "1", "1", "1500"),
    "fsync, 100 publishers": ("fsync", "8", "100", "200"),
    "fsync, 100 publishers, 1 partition": ("fsync", "1", "100", "200"),
    "os, 1 publisher": ("os", "8", "1", "1500"),
    "os, 100 publishers": ("os", "8", "100", "200"),
    "os, 100 publishers, 1 partition": ("os", "1", "100", "200"),
}

Figures = tuple[float, float]
"""µs of CPU of a message, and µs that a round takes."""


def cost(tree: Path, arguments: tuple[str, ...]) -> Figures:
    """One run on a tree."""
    path = os.pathsep.join(map(str, (tree / "src", tree, ROOT)))
    with data_dir("lone") as folder:
        done = subprocess.run(
            [sys.executable, CHILD, folder / "data", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{tree}, {arguments}: {done.stderr.strip()[-2000:]}")
    cpu_us, wall_us = map(float, done.stdout.split()[-2:])
    return cpu_us, wall_us


def measure(base: Path, words: list[str], turns: int) -> list[Row]:
    """Every case whose name has all the words."""
    rows = []
    for name, arguments in CASES.items():
        if not all(word.lower() in name.lower() for word in words):
            continue
        was: list[Figures] = []
        now: list[Figures] = []
        for _turn in range(turns):
            was.append(cost(base, arguments))
            now.append(cost(ROOT, arguments))
        for at, what in enumerate(("us of CPU per message", "us of a round")):
            before, after = min(row[at] for row in was), min(row[at] for row in now)
            say(f"{name}: {before:.1f} to {after:.1f} {what}")
            rows.append(row(name, after, what, low=True, peer=(f"base, {what}", before)))
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.lone", description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases whose name has all of these")
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--base-tree", type=Path, help="a folder with it, kernel compiled")
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args(arguments)
    base = chosen.base_tree or tree_of(chosen.base)
    report("lone", measure(base.resolve(), chosen.words, chosen.turns))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
