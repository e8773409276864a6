"""What a row of a benchmark says: our figure, the other side's, and which of them is better.

Rules: a row whose unit is a ratio has the other side's figure in `peer_value`, so ours is the
product of both. Whether less is better follows from the bar, and without one from the unit. Another
side is a *peer* unless it is known to be OneLog itself in another state: a new benchmark with an
unknown side shows up among the worse ones rather than nowhere.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from bench.report import Row

OURSELVES = (
    "base", "without", "before", "nobody asks", "no rules", "no consumer", "one queue",
    "backlog of", "our ", "interpreted", "MQTT to MQTT", "wildcard cursor", "bytes of the store",
    "CPU of the broker", "append of the same rows", "load", "raw ", "plain Parquet", "the model",
    "through the broker",
)  # fmt: skip
"""How sides begin that are OneLog itself, or what it stands on; they are no peers."""
LESS_IS_BETTER = re.compile(r"(ns|us|ms|s|B|KB|MB|GB|%)(?=$|[ ]|/msg|/request)")
TAILS = (": per CPU",)


class Figure(NamedTuple):
    """One case, both sides in the same unit."""

    bench: str
    name: str
    unit: str
    ours: float
    theirs: float | None
    side: str
    """The other side; empty if there is none."""
    is_peer: bool
    is_low: bool
    """Whether less is better."""
    bar: float | None
    """In the unit, like both sides."""
    holds: bool | None

    @property
    def times(self) -> float | None:
        """How many times better than the other side ours is; below 1 ours is worse."""
        if self.theirs is None:
            return None
        over, under = (self.theirs, self.ours) if self.is_low else (self.ours, self.theirs)
        return over / under if under else (math.inf if over else 1.0)

    @property
    def is_worse(self) -> bool:
        """Worse than a peer, or than the bar that we set."""
        return self.is_behind or self.holds is False

    @property
    def is_behind(self) -> bool:
        """Worse than a peer."""
        times = self.times
        return self.is_peer and times is not None and times < 1


def figure(bench: str, row: Row) -> Figure:
    """The case of a row."""
    side, _, scale = (row["peer"] or "").partition(", ")
    value, unit, share = float(row["value"]), str(row["unit"]), _share(row)
    theirs = None if row["peer_value"] is None else float(row["peer_value"])
    bar = None if row["bar"] is None else float(row["bar"])
    if share is not None and theirs is not None:
        value, bar = value * share * theirs, None if bar is None else bar * share * theirs
        unit = scale or str(row["name"]).rpartition(", ")[2]
    is_peer = bool(side) and not side.startswith(OURSELVES)
    is_low = _is_low(row, unit)
    return Figure(bench, _plain(row["name"], unit), unit, value, theirs, side, is_peer, is_low,
                  bar, row["holds"])  # fmt: skip


def _share(row: Row) -> float | None:
    """What the value is a multiple of, if it is a ratio."""
    if str(row["unit"]).startswith("ratio"):
        return 1.0
    return 0.01 if row["unit"] == "%" else None


def _is_low(row: Row, unit: str) -> bool:
    if row["bar"] is None:
        return bool(row.get("low")) or LESS_IS_BETTER.match(unit) is not None
    if "low" in row:
        return bool(row["low"])
    return bool((row["value"] <= row["bar"]) == row["holds"])


def _plain(name: str, unit: str) -> str:
    """The name of the case without its unit, which stands elsewhere."""
    for tail in (*TAILS, f": {unit}", f", {unit}"):
        name = name.removesuffix(tail)
    return name


def number(value: float) -> str:
    """Short, for people: 1.23 M, 45.6 k, 789, 1.23, 0.0123."""
    if math.isinf(value) or math.isnan(value):
        return "failed"
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == ' k' else limit):.3g}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def times_text(times: float) -> str:
    """`3.2x` as good; `0.8x` as good."""
    return "-" if math.isinf(times) else f"{times:.0f}x" if times >= 99.5 else f"{times:.2g}x"
