"""What a tier needs of the engine that it wraps, beside the contract of every engine.

Rules: the wrapped log's start is where the local window begins. An engine on a disk keeps each
partition in a folder of its own, in which the tier keeps its copies of the manifest; one without a
disk keeps them itself (`copies.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from onelog.base.ids import Offset, TimestampMs
from onelog.storage.engine import (
    Engine,
    LogSettings,
    PartitionKey,
    PartitionLog,
    Rewrite,
    SegmentInfo,
)
from onelog.storage.tables import SealedFile
from onelog.storage.tiered.copies import CopyNotes


class LocalLog(PartitionLog, Protocol):
    """One partition in the wrapped engine."""

    def prepend(self, start: Offset, log_start: Offset, created_ms: TimestampMs) -> Rewrite:
        """Begin to put batches from `start` on in front of the first segment; the log then begins
        at `log_start`. Raises InvalidRequest where nothing comes back."""
        ...

    def sealed_topics(self, base: Offset) -> bytes | None:
        """The chunks of the topic index of the sealed segment that begins at `base`; None: it has
        none, or they cannot be used."""
        ...

    def sealed_file(self, info: SegmentInfo) -> AbstractContextManager[SealedFile]:
        """A file with the batches of a sealed segment, while the block runs. It may block. Raises
        Conflict when they left meanwhile."""
        ...


class MovingEngine(Engine, Protocol):
    """An engine whose sealed segments may move."""

    def open(self, key: PartitionKey, settings: LogSettings) -> LocalLog:
        """See `Engine`."""
        ...


class KeepingEngine(MovingEngine, CopyNotes, Protocol):
    """Such an engine without a disk, which keeps what is known of tiers itself."""


class LocalEngine(MovingEngine, Protocol):
    """Such an engine on this machine's disk."""

    def folder(self, key: PartitionKey) -> Path:
        """Where the files of a partition are, or would be."""
        ...

    def begin(self, key: PartitionKey, offset: Offset, beside: Mapping[str, bytes]) -> None:
        """Make a partition that does not exist, empty, whose first record gets `offset`; `beside`
        are further files in its folder."""
        ...
