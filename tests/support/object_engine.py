"""Object engines for tests: on a store in memory or in a folder, settled when a test wants it."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

from onelog.base.clock import Clock
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.cold import RunCache
from onelog.storage.engine import LogSettings, PartitionKey, in_place
from onelog.storage.object import ObjectEngine, ObjectSettings

_NUMBERS = itertools.count()
CACHE_BYTES = 64 << 20


def a_store(url: str) -> ObjectStore:
    return open_store(StoreSettings(url=url))


def a_cache(directory: Path) -> RunCache:
    return RunCache(directory / f"cold-{next(_NUMBERS)}", cache_bytes=CACHE_BYTES, couriers=2)


def object_engine(
    store: ObjectStore, directory: Path, clock: Clock | None = None, **settings: Any
) -> ObjectEngine:
    """An engine that lingers for nothing."""
    settings = {"linger_ms": 0, "grace_ms": 0, "close_ms": 10_000, **settings}
    return ObjectEngine(store, a_cache(directory), ObjectSettings(**settings), clock)


class InPlaceLog:
    """A partition whose reads wait for what is cold."""

    def __init__(self, engine: ObjectEngine, log: Any, *, settles: bool) -> None:
        self._engine = engine
        self._log = log
        self._settles = settles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def _in_place(self, read: Any) -> Any:
        if self._settles and not self._log.is_closed:
            self._engine.upkeep.settle()
        return in_place(self._log, read)

    def read(self, *what: Any) -> Any:
        return self._in_place(partial(self._log.read, *what))

    def offset_for_time(self, *what: Any) -> Any:
        return self._in_place(partial(self._log.offset_for_time, *what))

    def offsets_of_topic(self, *what: Any) -> Any:
        return self._in_place(partial(self._log.offsets_of_topic, *what))


class InPlaceEngine:
    """An object engine for suites that know no cold reads; `settles`: before each read all batches
    become rows."""

    volatile = False

    def __init__(self, url: str, directory: Path, clock: Clock, *, settles: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        small = {"join_rows": 3} if settles else {}
        self.engine = object_engine(a_store(url), directory, clock, **small)
        self._settles = settles

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def open(self, key: PartitionKey, settings: LogSettings) -> Any:
        log = self.engine.open(key, settings)
        return InPlaceLog(self.engine, log, settles=self._settles)
