"""What a tier needs of the engine that it wraps, beside the contract of every engine.

Rules: the wrapped engine keeps each partition in a folder of its own, in which the tier keeps its
copies of the manifest. The wrapped log's start is where the local window begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from onelog.base.ids import Offset, TimestampMs
from onelog.storage.engine import Engine, LogSettings, PartitionKey, PartitionLog, Rewrite


class LocalLog(PartitionLog, Protocol):
    """One partition on this machine's disk."""

    def prepend(self, start: Offset, log_start: Offset, created_ms: TimestampMs) -> Rewrite:
        """Begin to put batches from `start` on in front of the first segment; the log then begins
        at `log_start`."""
        ...

    def sealed_topics(self, base: Offset) -> bytes | None:
        """The chunks of the topic index of the sealed segment that begins at `base`; None: it has
        none, or they cannot be used."""
        ...

    def sealed_log(self, base: Offset) -> Path:
        """The file with the batches of the sealed segment that begins at `base`."""
        ...


class LocalEngine(Engine, Protocol):
    """An engine whose sealed segments may move."""

    def open(self, key: PartitionKey, settings: LogSettings) -> LocalLog:
        """See `Engine`."""
        ...

    def folder(self, key: PartitionKey) -> Path:
        """Where the files of a partition are, or would be."""
        ...

    def begin(self, key: PartitionKey, offset: Offset, beside: Mapping[str, bytes]) -> None:
        """Make a partition that does not exist, empty, whose first record gets `offset`; `beside`
        are further files in its folder."""
        ...
