"""A log in memory that has what replication looks at: a written and a durable end, and its epochs.

Rules: a kill keeps what was written; without power some of what was not synced is gone. A cut and a
trim are durable. The high watermark is kept now and then.
"""

from __future__ import annotations

import random

from onelog.log.epochs import EpochHistory

Stored = tuple[int, int, int]
"""Offset, epoch, value."""


class SimulatedLog:
    """One replica's records."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.start = 0
        self.first = 0
        """The offset of the first record that is held, or would be."""
        self.durable = 0
        self.high_watermark = 0
        self.kept = 0
        self.gone_below = 0
        """Where the last segment begins: what lies before it may be compacted."""
        self.cuts = 0
        """How often records went: a sync that began before says nothing of what came after."""
        self.epochs = EpochHistory()
        self.is_damaged = False
        """What it holds cannot be trusted, also after a restart."""

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def last_epoch(self) -> int:
        found = [epoch for epoch, begin in self.epochs.rows() if begin < self.end]
        return found[-1] if found else -1

    def end_of(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_of(epoch, self.end)

    def value(self, offset: int) -> int | None:
        """The record at an offset; None: it is not here."""
        at = offset - self.first
        return self.records[at][2] if 0 <= at < len(self.records) else None

    def read(self, offset: int, upto: int, count: int) -> list[Stored]:
        at = offset - self.first
        return self.records[at : min(at + count, upto - self.first)]

    # -- changes

    def append(self, epoch: int, value: int) -> int:
        """As a leader."""
        offset = self.end
        self.epochs.note(epoch, offset)
        self.records.append((offset, epoch, value))
        return offset

    def append_copy(self, data: list[Stored]) -> None:
        """As a follower."""
        for offset, epoch, value in data:
            assert offset == self.end, f"a copy of {offset} came to a log that ends at {self.end}"
            self.epochs.note(epoch, offset)
            self.records.append((offset, epoch, value))

    def take_mark(self, high_watermark: int, start: int) -> None:
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.end))
        self.trim(min(start, self.high_watermark))

    def trim(self, start: int) -> None:
        if start > self.start:
            self.start = start
            self.durable = self.end
            del self.records[: start - self.first]
            self.first = start
            self.kept = max(self.kept, start)

    def seal(self, at: int) -> None:
        """A segment ends; compaction works on sealed ones."""
        self.gone_below = max(self.gone_below, at)

    def truncate(self, end: int) -> None:
        assert end >= self.high_watermark, "what all replicas had is cut"
        del self.records[end - self.first :]
        self.durable = min(self.durable, self.end)
        self.gone_below = min(self.gone_below, self.end)
        self.epochs.truncate(self.end)
        self.cuts += 1

    def rot(self, chance: random.Random) -> None:
        """The disk gives back other bytes than it got."""
        self.is_damaged = True
        for at in range(chance.randint(0, len(self.records)), len(self.records)):
            offset, epoch, value = self.records[at]
            self.records[at] = offset, epoch, -value

    def begin_anew(self, start: int) -> None:
        self.is_damaged = False
        self.records, self.epochs = [], EpochHistory()
        self.start = self.first = self.durable = self.high_watermark = self.kept = start
        self.gone_below = start
        self.cuts += 1

    def keep(self) -> None:
        self.kept = max(self.kept, self.high_watermark)

    # -- ends of processes

    def reopen(self) -> None:
        """The process ended; what was written is there. A mark beyond what was lost must not count
        once the log has grown past it."""
        self.kept = min(self.kept, self.end)
        self.high_watermark = max(self.start, min(self.kept, self.end))
        self.epochs.truncate(self.end)
        self.cuts += 1

    def lose_cache(self, chance: random.Random) -> None:
        """The power went, before a `reopen`."""
        if self.end > self.durable:
            left = chance.choice((self.durable, chance.randint(self.durable, self.end)))
            del self.records[left - self.first :]
        self.gone_below = min(self.gone_below, self.end)
        self.epochs.truncate(self.end)
