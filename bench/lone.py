"""`make bench-lone BASE=rev`: what a message that comes alone costs, beside another commit.

Rules: as in `lockstep.py` there is no socket and no second process, but the disk is a real one and
is waited for (`lone_child.py`). CPU is that of all threads. A case runs on the base and on this
tree in turns. The value is the best block of 50 rounds: other work only ever adds to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.report import Row, data_dir, row, say
from bench.turns import Arguments, Figures, run_cases, run_child

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

WHAT = ("us of CPU per message", "us of a round")


def cost(tree: Path, arguments: Arguments) -> Figures:
    """µs of CPU of a message, and µs that a round takes."""
    with data_dir("lone") as folder:
        return run_child(tree, CHILD, (str(folder / "data"), *arguments), len(WHAT))


def judge(case: str, was: list[Figures], now: list[Figures]) -> list[Row]:
    """The best of each figure."""
    rows = []
    for at, what in enumerate(WHAT):
        before, after = min(run[at] for run in was), min(run[at] for run in now)
        say(f"{case}: {before:.1f} to {after:.1f} {what}")
        rows.append(row(case, after, what, low=True, peer=(f"base, {what}", before)))
    return rows


if __name__ == "__main__":
    sys.exit(run_cases("lone", __doc__, CASES, cost, judge, sys.argv[1:]))
