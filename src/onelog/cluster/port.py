"""A partition of this node as the machine of its replica looks at it (`ReplicaLog`)."""

from __future__ import annotations

from collections.abc import Callable

from onelog.log.partition import Partition


class PartitionPort:
    """A partition as the machine looks at it."""

    def __init__(self, partition: Partition, compacts: Callable[[], bool] = lambda: False) -> None:
        """`compacts` says whether the stream drops records that newer ones of their key replace."""
        self.partition = partition
        self.compacts = compacts
        self.floor = 0
        """Where a copy that began anew starts: its log is empty until the first piece."""
        self._goal: int | None = None
        """What the leader showed when it first spoke to this copy; None: it has not spoken yet."""
        self.has_copied = False
        """Whether this copy has come there."""

    def begin_anew(self, partition: Partition, start: int) -> None:
        """Another, empty log takes the place of this one, and begins at `start`."""
        self.partition, self.floor = partition, start
        self._goal, self.has_copied = None, False

    def told(self, high_watermark: int) -> bool:
        """The leader spoke, and what came with it is appended. Returns whether all is here that it
        showed when it first spoke."""
        if self._goal is None:
            self._goal = high_watermark
        self.has_copied = self.end >= self._goal
        return self.has_copied

    @property
    def start(self) -> int:
        """The first offset that may be read."""
        return max(self.partition.start_offset, self.floor)

    @property
    def end(self) -> int:
        """Where the log ends."""
        return max(self.partition.end_offset, self.floor)

    @property
    def durable(self) -> int:
        """The disk has everything below."""
        return max(self.partition.durable, self.floor)

    @property
    def high_watermark(self) -> int:
        """What readers see."""
        return self.partition.high_watermark

    @property
    def gone_below(self) -> int:
        """See `ReplicaLog`: compaction works on sealed segments only."""
        if not self.compacts() or self.partition.stopped is not None:
            return 0
        rows = self.partition.segments()
        return rows[-1].base_offset if rows else 0

    def last_epoch(self) -> int:
        """The epoch of the last record; -1: there is none."""
        end = self.partition.end_offset
        found = [epoch for epoch, begin in self.partition.epochs.rows() if begin < end]
        return found[-1] if found else -1

    def end_of(self, epoch: int) -> tuple[int, int]:
        """See `ReplicaLog`."""
        return self.partition.epochs.end_of(epoch, self.partition.end_offset)
