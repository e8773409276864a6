"""Messages that a channel was sent and has not acknowledged: runs of delivery tags.

Rules: tags ascend, and messages that went out together are one run: their tags follow each other,
and so do their places. Acknowledging a part of a run leaves the rest of it.
"""

from __future__ import annotations

from bisect import bisect_right

from onelog.kernel import HeldEnd, UnsettledRun

__all__ = ["HeldRuns", "UnsettledRun"]


class HeldRuns(HeldEnd):
    """The unacknowledged messages of one channel, the oldest first."""

    __slots__ = ()

    def __init__(self) -> None:
        self.runs = []
        self.tags = []
        self.size = 0

    @property
    def oldest(self) -> UnsettledRun | None:
        """The run that has waited longest."""
        return self.runs[0] if self.runs else None

    def add(self, held: UnsettledRun) -> None:
        """Add messages that went out, with higher tags than any before."""
        self.runs.append(held)
        self.tags.append(held.tag)
        self.size += held.count

    def _find(self, tag: int) -> int:
        """The index of the run with a tag; -1: none."""
        number = bisect_right(self.tags, tag) - 1
        if number < 0 or tag >= self.tags[number] + self.runs[number].count:
            return -1
        return number

    def put_back(self, runs: list[UnsettledRun]) -> None:
        """Hold runs again that were taken."""
        self.runs = sorted([*self.runs, *runs], key=lambda run: run.tag)
        self.tags = [run.tag for run in self.runs]
        self.size += sum(run.count for run in runs)

    def take_all(self) -> list[UnsettledRun]:
        """Take everything."""
        runs, self.runs, self.tags, self.size = self.runs, [], [], 0
        return runs

    def take_oldest(self, tag: int, *, multiple: bool) -> UnsettledRun | None:
        """Take the oldest run, if an acknowledgement covers exactly that; None: it does not."""
        if not self.runs:
            return None
        run = self.runs[0]
        if run.tag + run.count - 1 != tag or (run.count > 1 and not multiple):
            return None
        del self.runs[0], self.tags[0]
        self.size -= run.count
        return run

    def take_upto(self, tag: int) -> list[UnsettledRun]:
        """Take everything up to a tag, which must be held. Raises KeyError."""
        number = self._find(tag)
        if number < 0:
            raise KeyError(tag)
        last = self.runs[number]
        taken = self.runs[: number + 1]
        if tag + 1 == last.tag + last.count:
            del self.runs[: number + 1], self.tags[: number + 1]
        else:
            rest = last.cut(tag + 1)
            self.runs[: number + 1] = [rest]
            self.tags[: number + 1] = [rest.tag]
        self.size -= sum(run.count for run in taken)
        return taken

    def take(self, tag: int) -> UnsettledRun:
        """Take the one with a tag. Raises KeyError."""
        number = self._find(tag)
        if number < 0:
            raise KeyError(tag)
        run = self.runs[number]
        taken = run if tag == run.tag else run.cut(tag)
        rest = [run] if taken is not run else []
        if taken.count > 1:
            rest.append(taken.cut(tag + 1))
        self.runs[number : number + 1] = rest
        self.tags[number : number + 1] = [row.tag for row in rest]
        self.size -= 1
        return taken
