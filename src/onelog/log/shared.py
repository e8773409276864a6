"""The objects that the partitions of a catalog share: threads, clock, bounds, and the register of
troubles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.base.clock import Clock
from onelog.log.couriers import Couriers
from onelog.log.holding import LeavingHold
from onelog.log.room import DiskRoom
from onelog.log.sync_watch import SyncWatch
from onelog.log.syncer import Syncer
from onelog.log.visibility import UnseenBytes
from onelog.observe.troubles import Troubles

if TYPE_CHECKING:
    from onelog.log.partition import Partition


class Shared:
    """One object for all partitions."""

    __slots__ = (
        "begun", "clock", "couriers", "hold", "room", "syncer", "syncs", "torn_bytes", "torn_tails",
        "troubles", "unseen",
    )  # fmt: skip

    def __init__(self, syncer: Syncer, clock: Clock, troubles: Troubles) -> None:
        self.syncer = syncer
        self.clock = clock
        self.troubles = troubles
        self.couriers = Couriers(troubles)
        self.unseen = UnseenBytes()
        self.hold = LeavingHold()
        self.room = DiskRoom(troubles)
        self.syncs = SyncWatch(troubles, clock)
        self.torn_tails = 0
        """Partitions whose end was cut when they were opened."""
        self.torn_bytes = 0
        self.begun: Callable[[Partition], None] = _ignore
        """Called with a partition when its first records are durable."""


def _ignore(_partition: Partition) -> None:
    pass
