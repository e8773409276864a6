"""What a restore is asked for, and what it made."""

from __future__ import annotations

import msgspec

from onelog.backup.manifest import BackupSummary


class RestoredPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as it was restored."""

    stream: str
    partition: int
    internal: bool
    start: int
    end: int
    """Records of the backup end here."""
    next: int
    """The next record gets this offset."""


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be restored, and where to."""

    url: str
    options: dict[str, str] = {}
    data_dir: str
    id: str = ""
    """Which backup; empty: the newest, or the first after `upto_ms`."""
    upto_ms: int | None = None
    """Records after this moment are left out."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore made."""

    backup: BackupSummary
    data_dir: str
    upto_ms: int | None
    partitions: tuple[RestoredPartition, ...]
