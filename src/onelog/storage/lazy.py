"""An engine that is opened at its first use: a broker without kv streams never loads RocksDB, and
one without object streams asks no store for a chain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from onelog.base.ids import Offset
from onelog.storage.engine import Engine, LogSettings, PartitionKey, PartitionLog


class LazyEngine:
    """Stands for an engine. Opens it for the first partition, or if there is data."""

    volatile = False

    def __init__(
        self,
        has_data: Callable[[], bool],
        make: Callable[[], Engine],
        *,
        lies_in_store: bool = False,
    ) -> None:
        self.lies_in_store = lies_in_store
        self._has_data = has_data
        self._make = make
        self._engine: Engine | None = None
        self._lock = threading.Lock()

    def _opened(self) -> Engine:
        with self._lock:
            if self._engine is None:
                self._engine = self._make()
            return self._engine

    def open(self, key: PartitionKey, settings: LogSettings) -> PartitionLog:
        """Open or create a partition."""
        return self._opened().open(key, settings)

    def delete(self, key: PartitionKey) -> None:
        """Delete a closed partition. No error if it does not exist."""
        if self._engine is not None or self._has_data():
            self._opened().delete(key)

    def set_aside(self, key: PartitionKey) -> None:
        """Take a damaged partition away. No error if it does not exist."""
        if self._engine is not None or self._has_data():
            self._opened().set_aside(key)

    def partitions(self) -> list[PartitionKey]:
        """Every partition that exists on disk."""
        if self._engine is None and not self._has_data():
            return []
        return self._opened().partitions()

    def check_room(self) -> None:
        """Raise StorageFull when there is no room; an engine that was never opened needs none."""
        if self._engine is not None:
            self._engine.check_room()

    def freeze(self, cuts: Mapping[PartitionKey, Offset], into: Path) -> dict[str, int]:
        """Link the files of partitions; an engine that was never opened has none."""
        return {} if self._engine is None else self._engine.freeze(cuts, into)

    def close(self) -> None:
        """Close the engine if it was opened."""
        if self._engine is not None:
            self._engine.close()
