"""The leader epochs of a partition: which epoch wrote from which offset on.

Rules: epochs and offsets both ascend. Truncation forgets what lay beyond the cut. Followers ask
for the end of an epoch to find where their log and the leader's part.
"""

from __future__ import annotations

from bisect import bisect_right

from onelog.base.errors import Fenced
from onelog.base.ids import Epoch, Offset


class EpochHistory:
    """Epochs with the first offset of each, in order."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[tuple[int, int]] | None = None) -> None:
        self._rows: list[tuple[int, int]] = rows if rows is not None else []

    @property
    def latest(self) -> Epoch:
        """The newest epoch that wrote here; 0 for an empty log."""
        return Epoch(self._rows[-1][0]) if self._rows else Epoch(0)

    def note(self, epoch: int, start: int) -> None:
        """`epoch` writes from `start` on. An epoch before it that wrote nothing is forgotten."""
        if self._rows and epoch <= self._rows[-1][0]:
            if epoch < self._rows[-1][0]:
                raise Fenced(f"epoch {epoch} is older than {self._rows[-1][0]}, which wrote here")
            return
        self.truncate(start)
        self._rows.append((epoch, start))

    def at(self, offset: int) -> Epoch:
        """The epoch that wrote at `offset`, or would write there next."""
        position = bisect_right(self._rows, offset, key=lambda row: row[1])
        return Epoch(self._rows[position - 1][0]) if position else self.latest

    def end_of(self, epoch: int, log_end: int) -> tuple[Epoch, Offset]:
        """The largest epoch <= `epoch` that wrote here, and the offset where it ended.

        (-1, -1) when every epoch here is newer.
        """
        position = bisect_right(self._rows, epoch, key=lambda row: row[0])
        if position == 0:
            return Epoch(-1), Offset(-1)
        end = self._rows[position][1] if position < len(self._rows) else log_end
        return Epoch(self._rows[position - 1][0]), Offset(end)

    def truncate(self, end: int) -> None:
        """Forget epochs that began at or after `end`."""
        while self._rows and self._rows[-1][1] >= end:
            self._rows.pop()

    def rows(self) -> list[tuple[int, int]]:
        """Every epoch with its first offset."""
        return list(self._rows)
