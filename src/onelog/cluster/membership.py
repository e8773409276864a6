"""Which replicas count for a leader: the committed row, one pending change of it, and who is next.

Rules:
- The committed row is the newest revision that was seen. A change is written with a compare of that
  revision.
- DONE makes the change the committed row. UNKNOWN tries the same change again later. REFUSED reads
  the row: a compare that failed once fails for ever, so what the read shows is the outcome of every
  attempt.
- A replica leaves when it has not reached what this log had `lag_s` ago, when its node is not
  registered, or when it lost records. One that left for its lag comes back only after a while that
  doubles each time, unless the ISR is too small to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from onelog.cluster.outputs import ReadRow, WriteRow
from onelog.cluster.rows import (
    NodeFacts,
    PartitionChange,
    ReplicaSet,
    with_member,
    without_lost,
    without_members,
)
from onelog.storage.engine import PartitionKey

RETRY_S: Final = 0.3
"""Wait before a change whose outcome is unknown is tried again."""
HOLD_OFF_S: Final = 0.5
"""A replica that left for its lag waits so long at first."""
HOLD_OFF_S_MAX: Final = 30.0
NEVER: Final = float("inf")


class RowOutcome(StrEnum):
    """What became of a write of a row."""

    DONE = "done"
    REFUSED = "refused"
    """A compare failed. Nothing was written."""
    UNKNOWN = "unknown"
    """It was written, or will be, or not."""


class Membership:
    """The ISR of a led partition, as it is and as it is about to be."""

    def __init__(
        self,
        partition: PartitionKey,
        node: int,
        row: ReplicaSet,
        revision: int,
        lag_s: float,
        now: float,
    ) -> None:
        self._partition = partition
        self._node = node
        self.row = row
        self.revision = revision
        self.pending: PartitionChange | None = None
        self.nodes: Mapping[int, NodeFacts] = {}
        self._lag_s = lag_s
        self._is_asking = self._must_read = False
        self._retry_at = 0.0
        self._behind: dict[int, float] = dict.fromkeys(row.isr.keys() - {node}, now)
        """Since when a replica lacks something."""
        self._goals: dict[int, tuple[int, float]] = {}
        """What a replica must reach, and when this log had it."""
        self._lost: set[int] = set()
        self._silent: set[int] = set()
        """Replicas that left for their lag, and have said nothing since."""
        self._hold_offs: dict[int, tuple[float, float]] = {}
        """Node → until when it does not come back, and how long that was."""
        self.due = now

    def maximal(self) -> set[int]:
        """All that may be in the ISR: none of them may be left behind (KIP-497)."""
        members = {self._node, *self.row.isr}
        return members if self.pending is None else members | self.pending.row.isr.keys()

    def knows(self, node: int, node_epoch: int, *, observer: bool) -> bool:
        """Whether a node may copy: it is a replica, and no newer process of it is known."""
        facts = self.nodes.get(node)
        is_current = facts is None or node_epoch >= facts.node_epoch
        return is_current and (observer or node in self.row.replicas)

    # -- what is heard of replicas

    def reached(self, node: int, end: int, log_end: int, now: float) -> None:
        """A replica counts up to `end`; this log ends at `log_end`."""
        goal = self._goals.get(node)
        if end >= log_end:
            self._behind.pop(node, None)
            self._goals.pop(node, None)
        elif goal is None:
            self._goals[node] = (log_end, now)
            self._behind.setdefault(node, now)
        elif end >= goal[0]:
            self._behind[node] = goal[1]
            self._goals[node] = (log_end, now)

    def heard(self, node: int) -> None:
        """A replica said how far it is."""
        self._silent.discard(node)

    def counts_on(self, node: int) -> bool:
        """Whether a replica is, or is about to be, one that may be elected."""
        return node in self.maximal() or node in self.row.elr

    def lost(self, node: int) -> None:
        """A replica does not have what it was proved to have."""
        if self.counts_on(node):
            self._lost.add(node)

    @property
    def lost_nodes(self) -> frozenset[int]:
        """Replicas that are to leave because they lack records; the row may not say so yet."""
        return frozenset(self._lost)

    # -- the row

    def adopt(self, row: ReplicaSet, revision: int, now: float) -> bool:
        """A row was seen; False: it is not newer than the known one."""
        if revision <= self.revision:
            return False
        for node in row.isr.keys() - self.row.isr.keys():
            self._behind[node] = now
        self._lost -= self._lost - row.isr.keys() - row.elr.keys()
        self.row, self.revision, self.pending = row, revision, None
        self._is_asking = self._must_read = False
        return True

    def read(self, revision: int) -> None:
        """The row was read after a refusal; `adopt` has taken it if it is newer."""
        if self._must_read and revision == self.revision:
            self.pending, self._is_asking, self._must_read = None, False, False

    def written(
        self, change: PartitionChange, outcome: RowOutcome, revision: int, now: float
    ) -> None:
        """The outcome of a change; with DONE, the revision that it made."""
        if change is not self.pending:
            return
        self._is_asking = False
        match outcome:
            case RowOutcome.DONE:
                self.adopt(change.row, revision, now)
            case RowOutcome.REFUSED:
                self._must_read = True
                self._retry_at = 0.0
            case RowOutcome.UNKNOWN:
                self._retry_at = now + RETRY_S

    # -- what is to be done

    def flush(
        self,
        end_of: Callable[[int], int],
        ready: Mapping[int, int],
        log_end: int,
        now: float,
    ) -> list[ReadRow | WriteRow]:
        """The next step of the row.

        `ready` holds replicas that may enter the ISR, and their node epochs.
        """
        for node in self.row.isr:
            if node != self._node:
                self.reached(node, end_of(node), log_end, now)
        out: list[ReadRow | WriteRow] = []
        if self.pending is None:
            self.pending = self._next(ready, now)
            self._retry_at = 0.0
        if self.pending is not None and not self._is_asking and now >= self._retry_at:
            self._is_asking = True
            if self._must_read:
                out.append(ReadRow())
            else:
                out.append(WriteRow(self.pending))
        self.due = self._next_due(now)
        return out

    def read_failed(self, now: float) -> None:
        """The row could not be read: try again later."""
        self._is_asking, self._retry_at = False, now + RETRY_S

    def _next(self, ready: Mapping[int, int], now: float) -> PartitionChange | None:
        row = self.row
        added = []
        for node, node_epoch in ready.items():
            if node not in row.isr and self._may_enter(node, node_epoch, now):
                row = with_member(row, node, node_epoch)
                added.append((node, node_epoch))
                self._lost.discard(node)  # it has everything again
        if self._lost:
            row = without_lost(row, self._lost)
        lagging = [node for node in self.row.isr if node in row.isr and self._lags(node, now)]
        if lagging:
            row = without_members(row, lagging)
            self._silent.update(lagging)
        for node in lagging:
            self._hold_off(node, now)
        if row == self.row:
            return None
        return PartitionChange(
            partition=self._partition, expected=self.revision, row=row, nodes=tuple(added)
        )

    def _may_enter(self, node: int, node_epoch: int, now: float) -> bool:
        facts = self.nodes.get(node)
        if facts is None or facts.node_epoch != node_epoch or facts.draining:
            return False
        if node in self._silent:
            return False
        is_short = len(self.row.isr) < self.row.min_insync
        return is_short or now >= self._hold_offs.get(node, (0.0, 0.0))[0]

    def _lags(self, node: int, now: float) -> bool:
        since = self._behind.get(node)
        return since is not None and now >= since + self._lag_s

    def _hold_off(self, node: int, now: float) -> None:
        until, length = self._hold_offs.get(node, (0.0, 0.0))
        calm = now - until > HOLD_OFF_S_MAX
        length = HOLD_OFF_S if calm or not length else min(2 * length, HOLD_OFF_S_MAX)
        self._hold_offs[node] = (now + length, length)

    def _next_due(self, now: float) -> float:
        if self.pending is not None:
            return NEVER if self._is_asking else self._retry_at
        times = [
            since + self._lag_s for node, since in self._behind.items() if node in self.row.isr
        ]
        times += [
            until
            for node, (until, _length) in self._hold_offs.items()
            if node not in self.row.isr and until > now
        ]
        return min(times, default=NEVER)
