"""How many of a partition's offsets are markers of transactions, which are no records.

Rules: memory is bounded, however many transactions there were. Markers are counted in ranges of
(first offset, last offset, count). When there are too many ranges, neighbours are joined. Where the
log begins inside a joined range, the count of the rest is an estimate; everything else is exact.
"""

from __future__ import annotations

from typing import Final

import msgspec

RUNS_MAX: Final = 256


class MarkerRange(msgspec.Struct, array_like=True, gc=False):
    """Markers from one offset to another."""

    first_offset: int
    last_offset: int
    count: int


class Markers:
    """The markers of one partition, in the order of their offsets."""

    __slots__ = ("count", "runs")

    def __init__(self, runs: list[MarkerRange] | None = None) -> None:
        self.runs = runs or []
        self.count = sum(run.count for run in self.runs)

    def note(self, offset: int) -> None:
        """A marker was appended."""
        self.count += 1
        last = self.runs[-1] if self.runs else None
        if last is not None and last.last_offset + 1 == offset == last.first_offset + last.count:
            last.last_offset, last.count = offset, last.count + 1  # markers side by side
            return
        self.runs.append(MarkerRange(offset, offset, 1))
        if len(self.runs) > RUNS_MAX:
            self._join()

    def _join(self) -> None:
        """Join neighbours to about half as many ranges, with about equal counts."""
        size = 4 * self.count // RUNS_MAX + 1
        joined = [self.runs[0]]
        for run in self.runs[1:]:
            last = joined[-1]
            if last.count + run.count <= size:
                last.last_offset, last.count = run.last_offset, last.count + run.count
            else:
                joined.append(run)
        self.runs = joined

    def forget_before(self, start: int) -> None:
        """The log begins at this offset now."""
        gone = 0
        while gone < len(self.runs) and self.runs[gone].last_offset < start:
            gone += 1
        del self.runs[:gone]
        if self.runs and self.runs[0].first_offset < start:
            run = self.runs[0]
            left, all_ = run.last_offset - start + 1, run.last_offset - run.first_offset + 1
            run.count = max(1, run.count * left // all_)  # the last one is there in any case
            run.first_offset = start
        self.count = sum(run.count for run in self.runs)
