"""The curves of `make bench-growth`, read from its rows.

Rules: a row is named `KIND, COUNT: UNIT`, for example `topics, 1,000: us of CPU`; the
count is the place on the curve. The rows that have a figure of the peer are its curve.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from bench.page_rows import Figure

NAME = re.compile(r"(?P<kind>.*), (?P<count>[\d,]+)")


class Curve(NamedTuple):
    """The points of one side."""

    kind: str
    unit: str
    side: str
    points: list[tuple[float, float]]

    @property
    def rise(self) -> float:
        """How many times more the last point costs than the first."""
        return self.points[-1][1] / max(self.points[0][1], 1e-9)


def curves_of(figures: Sequence[Figure]) -> list[Curve]:
    """All curves, ours before the peer's."""
    found: dict[tuple[str, str, str], Curve] = {}
    for one in figures:
        match = NAME.fullmatch(one.name)
        if match is None:
            continue
        count = float(match["count"].replace(",", ""))
        for side, value in (("OneLog", one.ours), (one.side, one.theirs)):
            if value is not None:
                key = (match["kind"], one.unit, side)
                found.setdefault(key, Curve(*key, [])).points.append((count, value))
    for curve in found.values():
        curve.points.sort()
    return list(found.values())
