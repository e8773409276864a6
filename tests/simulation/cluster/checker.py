"""What clients of the simulated cluster were told, and whether it stays true (C1 to C3, C5, C7)."""

from __future__ import annotations

from collections import Counter, defaultdict

from onelog.storage.engine import PartitionKey
from tests.simulation.cluster.log import SimulatedLog


class Violation(AssertionError):
    """A promise was broken."""


class Checker:
    """The history of one seed."""

    def __init__(self) -> None:
        self.attempted: dict[int, PartitionKey] = {}
        self.refused: set[int] = set()
        self.answered: defaultdict[PartitionKey, dict[int, int]] = defaultdict(dict)
        self.known: defaultdict[PartitionKey, dict[int, int]] = defaultdict(dict)
        """Offset → value that somebody read or was answered."""
        self.since: defaultdict[PartitionKey, dict[int, int]] = defaultdict(dict)
        """Offset → the first epoch in which anybody was told: later ones have the record. A process
        that hears late of its election may begin in an older epoch; it will answer nothing."""
        self.starts: Counter[PartitionKey] = Counter()
        self.led: dict[tuple[PartitionKey, int], tuple[int, int]] = {}
        self.count: Counter[str] = Counter()
        self.anew: Counter[PartitionKey] = Counter()
        """The epoch in which a partition began anew with a loss: older copies do not count."""

    # -- clients

    def attempt(self, partition: PartitionKey, value: int) -> None:
        self.attempted[value] = partition
        self.count["attempted"] += 1

    def refuse(self, value: int) -> None:
        self.refused.add(value)
        self.count["refused"] += 1
        for known in self.known.values():
            if value in known.values():
                raise Violation(f"C7: {value} was read and then refused")

    def answer(self, partition: PartitionKey, offset: int, value: int, epoch: int) -> None:
        """The leader of an epoch answered."""
        self.count["answered"] += 1
        if epoch >= self.anew[partition]:
            self.answered[partition][offset] = value
            self._note(partition, offset, value, epoch, "an answer")

    def see(
        self, partition: PartitionKey, log: SimulatedLog, epoch: int, who: str, shown: int = 0
    ) -> None:
        """Somebody reads what a replica shows from `shown` on; it knows of this epoch."""
        self.count["reads"] += 1
        if log.last_epoch() < self.anew[partition]:
            return
        if log.high_watermark > log.end:
            raise Violation(f"C5: {who} shows {log.high_watermark}, but has only {log.end}")
        for offset, _epoch, value in log.read(max(log.start, shown), log.high_watermark, 1 << 30):
            self._note(partition, offset, value, epoch, who)

    def _note(self, partition: PartitionKey, offset: int, value: int, epoch: int, who: str) -> None:
        known = self.known[partition].setdefault(offset, value)
        since = self.since[partition]
        since[offset] = min(epoch, since.get(offset, epoch))
        if known != value:
            raise Violation(f"C2: {who} has {value} at {offset}, others were told {known}")
        if self.attempted.get(value) != partition:
            raise Violation(f"C3: {who} has {value} at {offset}, which nobody sent")
        if value in self.refused:
            raise Violation(f"C7: {who} has {value} at {offset}, which was refused")

    # -- leaders

    def lead(
        self, partition: PartitionKey, node: int, process: int, epoch: int, log: SimulatedLog
    ) -> None:
        """A leader begins: it has all that anybody was told."""
        self.count["led"] += 1
        if self.led.setdefault((partition, epoch), (node, process)) != (node, process):
            raise Violation(f"two processes lead {partition} in epoch {epoch}")
        self.complete(partition, log, epoch, f"the leader of epoch {epoch}, node {node},")

    def complete(self, partition: PartitionKey, log: SimulatedLog, epoch: int, who: str) -> None:
        """A leader's log has all that anybody was told before its epoch, from its start on."""
        self.starts[partition] = max(self.starts[partition], log.start)
        for offset, value in self.known[partition].items():
            if offset < log.start or self.since[partition][offset] >= epoch:
                continue
            found = log.value(offset)
            if found != value:
                rule = "C1" if offset in self.answered[partition] else "C5"
                raise Violation(f"{rule}: {who} has {found} at {offset}, others were told {value}")

    def forget(self, partition: PartitionKey, epoch: int) -> None:
        """The partition began anew with a loss that the row names."""
        self.anew[partition] = epoch
        self.count["recovered"] += 1
        self.known[partition].clear()
        self.since[partition].clear()
        self.answered[partition].clear()
