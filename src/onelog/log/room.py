"""Whether there is room on the disk: a full one is told until there is room again.

Rules: who is refused for want of room says so once (`refused`). From then on it is a standing
trouble that keeps the process from being ready, so that no balancer sends more. Because nobody may
write then, room is looked for by asking the engines (`look_again`), not by waiting for a write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onelog.base.errors import OnelogError, StorageFull
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Engine

DISK_FULL: Final = "disk-full"
_PLACE: Final = "storage"


class DiskRoom:
    """The room of all engines."""

    __slots__ = ("_troubles", "is_full", "refusals")

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self.is_full = False
        self.refusals = 0
        """Appends that were refused."""

    def refused(self, error: StorageFull) -> None:
        """There was no room for something."""
        self.refusals += 1
        if not self.is_full:
            self.is_full = True
            self._troubles.stand(DISK_FULL, _PLACE, error, blocks=True)

    def found(self) -> None:
        """There is room again."""
        self.is_full = False
        self._troubles.clear(DISK_FULL, _PLACE)


def has_room(engines: Iterable[Engine]) -> bool:
    """In a thread: whether every engine could write some."""
    for engine in engines:
        try:
            engine.check_room()
        except StorageFull:
            return False
        except OnelogError:
            continue  # whatever stopped it is told elsewhere
    return True
