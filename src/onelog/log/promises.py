"""What an append promises: how durable it is when it is answered, and which time records have."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from onelog.base.ids import Offset


class Durability(StrEnum):
    """What an answer promises (I4)."""

    MEMORY = "memory"
    OS = "os"
    FSYNC = "fsync"


class Timestamps(StrEnum):
    """Which time a record has."""

    CREATE = "create"
    """The one that its producer gave it."""
    APPEND = "append"
    """When it was appended."""


class Appended(NamedTuple):
    """Where records were appended. `duplicate`: an idempotent batch had been appended before."""

    base_offset: Offset
    end_offset: Offset
    duplicate: bool = False
    append_time_ms: int = -1
    """The time that all of them got; -1: they have their producers' times."""

    @property
    def last_offset(self) -> Offset:
        """The offset of the last record: when it is visible, all of them are."""
        return Offset(self.end_offset - 1)


LiveFeed = Callable[[bytes | bytearray], None]
"""Called with whole batches that are visible now, in order."""
