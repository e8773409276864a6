"""The memory engine itself: the partitions that are open, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from onelog.base.clock import Clock, SystemClock
from onelog.base.errors import Closed, Conflict
from onelog.base.ids import Offset
from onelog.storage.engine import LogSettings, PartitionKey, PartitionLog
from onelog.storage.memory.ring import MemoryLog


class MemoryEngine:
    """Partitions in memory. They are gone with `close`, `delete` or the process."""

    volatile = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._open: dict[PartitionKey, _EngineLog] = {}
        self._closed = False

    def open(self, key: PartitionKey, settings: LogSettings) -> PartitionLog:
        """A new, empty partition."""
        with self._lock:
            if self._closed:
                raise Closed("the memory engine is closed")
            if key in self._open:
                raise Conflict(f"partition {key.stream_id}/{key.partition} is open already")
            log = _EngineLog(key, settings, self._clock, self)
            self._open[key] = log
            return log

    def delete(self, key: PartitionKey) -> None:
        """A closed partition has no data left; an open one must be closed first."""
        with self._lock:
            if key in self._open:
                raise Conflict(f"partition {key.stream_id}/{key.partition} is open: close it first")

    def set_aside(self, key: PartitionKey) -> None:
        """See `delete`: nothing is left of a closed partition."""
        self.delete(key)

    def partitions(self) -> list[PartitionKey]:
        """The open partitions: closing one loses its data."""
        with self._lock:
            return sorted(self._open)

    def check_room(self) -> None:
        """There is always room: the oldest batches make it."""

    def freeze(self, cuts: Mapping[PartitionKey, Offset], into: Path) -> dict[str, int]:
        """There are no files: what is here is gone with the process."""
        del cuts, into
        return {}

    def close(self) -> None:
        """Close every partition."""
        with self._lock:
            self._closed = True
            held = list(self._open.values())
        for log in held:
            log.close()

    def forget(self, key: PartitionKey) -> None:
        """Forget a partition that was closed."""
        with self._lock:
            self._open.pop(key, None)


class _EngineLog(MemoryLog):
    """A partition that notifies its engine when it is closed."""

    def __init__(
        self, key: PartitionKey, settings: LogSettings, clock: Clock, engine: MemoryEngine
    ) -> None:
        super().__init__(key, settings, clock)
        self._engine = engine

    def close(self) -> None:
        """Drop everything. Idempotent."""
        super().close()
        self._engine.forget(self._key)
