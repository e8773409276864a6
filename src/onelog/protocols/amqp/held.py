"""Messages that a channel was sent and has not acknowledged: runs of delivery tags.

Rules: tags ascend, and messages that went out together are one run: their tags follow each other,
and so do their places. Acknowledging a part of a run leaves the rest of it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onelog.protocols.amqp.consumer import ChannelConsumer
    from onelog.queues.queue import Queue


class UnsettledRun:
    """Messages of one queue that went out together."""

    __slots__ = ("consumer", "count", "place", "queue", "since", "tag")

    def __init__(
        self,
        tag: int,
        count: int,
        queue: Queue,
        place: int,
        consumer: ChannelConsumer | None,
        since: float,
    ) -> None:
        self.tag = tag
        """The tag of the first message."""
        self.count = count
        self.queue = queue
        self.place = place
        """The place of the first message."""
        self.consumer = consumer
        self.since = since
        """The loop's time when they were sent."""

    @property
    def places(self) -> range:
        """The places of all of them."""
        return range(self.place, self.place + self.count)

    def cut(self, tag: int) -> UnsettledRun:
        """Keep the messages before a tag. Returns the rest as a run."""
        kept = tag - self.tag
        rest = UnsettledRun(
            tag, self.count - kept, self.queue, self.place + kept, self.consumer, self.since
        )
        self.count = kept
        return rest


class HeldRuns:
    """The unacknowledged messages of one channel, the oldest first."""

    __slots__ = ("_runs", "_tags", "size")

    def __init__(self) -> None:
        self._runs: list[UnsettledRun] = []
        self._tags: list[int] = []
        """The first tag of each run."""
        self.size = 0

    @property
    def oldest(self) -> UnsettledRun | None:
        """The run that has waited longest."""
        return self._runs[0] if self._runs else None

    def add(self, held: UnsettledRun) -> None:
        """Add messages that went out, with higher tags than any before."""
        self._runs.append(held)
        self._tags.append(held.tag)
        self.size += held.count

    def _find(self, tag: int) -> int:
        """The index of the run with a tag; -1: none."""
        number = bisect_right(self._tags, tag) - 1
        if number < 0 or tag >= self._tags[number] + self._runs[number].count:
            return -1
        return number

    def put_back(self, runs: list[UnsettledRun]) -> None:
        """Hold runs again that were taken."""
        self._runs = sorted([*self._runs, *runs], key=lambda run: run.tag)
        self._tags = [run.tag for run in self._runs]
        self.size += sum(run.count for run in runs)

    def take_all(self) -> list[UnsettledRun]:
        """Take everything."""
        runs, self._runs, self._tags, self.size = self._runs, [], [], 0
        return runs

    def take_oldest(self, tag: int, *, multiple: bool) -> UnsettledRun | None:
        """Take the oldest run, if an acknowledgement covers exactly that; None: it does not."""
        if not self._runs:
            return None
        run = self._runs[0]
        if run.tag + run.count - 1 != tag or (run.count > 1 and not multiple):
            return None
        del self._runs[0], self._tags[0]
        self.size -= run.count
        return run

    def take_upto(self, tag: int) -> list[UnsettledRun]:
        """Take everything up to a tag, which must be held. Raises KeyError."""
        number = self._find(tag)
        if number < 0:
            raise KeyError(tag)
        last = self._runs[number]
        taken = self._runs[: number + 1]
        if tag + 1 == last.tag + last.count:
            del self._runs[: number + 1], self._tags[: number + 1]
        else:
            rest = last.cut(tag + 1)
            self._runs[: number + 1] = [rest]
            self._tags[: number + 1] = [rest.tag]
        self.size -= sum(run.count for run in taken)
        return taken

    def take(self, tag: int) -> UnsettledRun:
        """Take the one with a tag. Raises KeyError."""
        number = self._find(tag)
        if number < 0:
            raise KeyError(tag)
        run = self._runs[number]
        taken = run if tag == run.tag else run.cut(tag)
        rest = [run] if taken is not run else []
        if taken.count > 1:
            rest.append(taken.cut(tag + 1))
        self._runs[number : number + 1] = rest
        self._tags[number : number + 1] = [row.tag for row in rest]
        self.size -= 1
        return taken
