"""`make bench-operate`: what running the broker safely costs; prints a table, writes JSON.

Rules: as in `lockstep.py`: the broker's own CPU per message, the quickest round of many, with and
without what is measured in turns. The bar is a ratio of the two.
"""

from __future__ import annotations

import argparse
import sys

from bench.lockstep import BAR, CASES, cost
from bench.report import ROOT, Row, report, row, say

RULES = 1_000
TURNS = 5


def measure(words: list[str], turns: int) -> list[Row]:
    """What an access list costs: publish, deliver and settle, with many rules and with none."""
    rows = []
    for case, arguments in CASES.items():
        name = f"{RULES:,} access rules: {case}"
        if not all(word.lower() in name.lower() for word in words):
            continue
        none, many = [], []
        for _turn in range(turns):
            none.append(cost(ROOT, arguments))
            many.append(cost(ROOT, (*arguments, str(RULES))))
        ratio = min(many) / min(none)
        say(f"{name}: {min(none):.3f} to {min(many):.3f} us, {ratio:.3f}")
        peer = ("no rules, us per message", min(none))
        rows.append(row(name, ratio, "ratio of us per message", BAR, low=True, peer=peer))
    return rows


def main(arguments: list[str]) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.operate", description=__doc__)
    parser.add_argument("words", nargs="*", help="only rows whose name has all of these")
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args(arguments)
    report("operate", measure(chosen.words, chosen.turns))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
