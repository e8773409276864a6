"""Whether the disks have room: a full disk is a standing trouble until there is room again.

Rules: code that finds no room for a write calls `refused` once. From then on there is a standing
trouble, and the process is not ready, so that no balancer sends more. Because nobody may write
then, the broker asks the engines for room (`look_again`) and does not wait for a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from onelog.base.errors import OnelogError, StorageFull
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Engine

DISK_FULL: Final = "disk-full"
_PLACE: Final = "storage"


class DiskRoom:
    """The room on the disks of all engines."""

    __slots__ = ("_troubles", "is_full", "on_change", "refusals")

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self.is_full = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when the disk is full, and when there is room again."""
        self.refusals = 0
        """Appends that were refused."""

    def refused(self, error: StorageFull) -> None:
        """The disk had no room for a write."""
        self.refusals += 1
        if not self.is_full:
            self.is_full = True
            self._troubles.stand(DISK_FULL, _PLACE, error, blocks=True)
            self.on_change()

    def found(self) -> None:
        """There is room again."""
        self.is_full = False
        self._troubles.clear(DISK_FULL, _PLACE)
        self.on_change()


def has_room(engines: Iterable[Engine]) -> bool:
    """In a thread: whether every engine has room for a write."""
    for engine in engines:
        try:
            engine.check_room()
        except StorageFull:
            return False
        except OnelogError:
            continue  # an engine that stopped has reported it elsewhere
    return True
