"""What a thousand access rules cost: publish, deliver and settle, beside a broker without rules.

Rules: as in `lockstep.py`: the broker's own CPU per message, the quickest round of many. With and
without rules run in turns, and the order of a turn is the reverse of that of the turn before, so
that a machine that gets busier or quieter favours neither. `python -m bench.operate_access kafka`
measures the cases whose names have the word.
"""

from __future__ import annotations

import sys

from bench.lockstep import BAR, CASES, cost
from bench.report import ROOT, Row, report, row, say

RULES = 1_000
TURNS = 8


def measure(words: tuple[str, ...] = ()) -> list[Row]:
    """The ratio of both, for each case of `lockstep.py` whose name has all the words."""
    rows = []
    for case, arguments in CASES.items():
        name = f"{RULES:,} access rules: {case}"
        if not all(word.lower() in name.lower() for word in words):
            continue
        best = {"0": float("inf"), str(RULES): float("inf")}
        for turn in range(TURNS):
            for rules in list(best)[:: -1 if turn % 2 else 1]:
                best[rules] = min(best[rules], *cost(ROOT, (*arguments, rules)))
        none, many = best.values()
        say(f"{name}: {none:.3f} to {many:.3f} us, {many / none:.3f}")
        peer = ("no rules, us per message", none)
        rows.append(row(name, many / none, "ratio of us per message", BAR, low=True, peer=peer))
    return rows


if __name__ == "__main__":
    report("operate", measure(tuple(sys.argv[1:])), "access")
