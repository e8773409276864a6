"""Object engines for tests: on a store in memory or in a folder, settled when a test wants it."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

from onelog.base.clock import Clock
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.cold import PlanHold, RunCache
from onelog.storage.engine import LogSettings, PartitionKey, in_place
from onelog.storage.object import ObjectEngine, ObjectSettings
from onelog.storage.segment import SegmentEngine
from onelog.storage.tiered import TieredEngine

_NUMBERS = itertools.count()
CACHE_BYTES = 64 << 20


def a_store(url: str) -> ObjectStore:
    return open_store(StoreSettings(url=url))


def a_cache(directory: Path) -> RunCache:
    return RunCache(directory / f"cold-{next(_NUMBERS)}", cache_bytes=CACHE_BYTES, couriers=2)


def object_engine(
    store: ObjectStore,
    directory: Path,
    clock: Clock | None = None,
    chain_store: ObjectStore | None = None,
    plans: PlanHold | None = None,
    **settings: Any,
) -> ObjectEngine:
    """An engine that lingers for nothing."""
    settings = {"linger_ms": 0, "grace_ms": 0, "close_ms": 10_000, **settings}
    chosen = ObjectSettings(**settings)
    cache = a_cache(directory)
    return ObjectEngine(store, cache, chosen, clock, chain_store=chain_store, plans=plans)


def with_tiers(
    engine: ObjectEngine, store: ObjectStore, directory: Path, clock: Clock, **lake: Any
) -> TieredEngine:
    """An object engine whose streams may be tables; no partition lies on the disk."""
    disk = SegmentEngine(directory / "segment", clock)
    tiers = TieredEngine(disk, store, a_cache(directory), directory / "tiers", clock, **lake)
    return tiers.beside(engine)


class InPlaceLog:
    """A partition whose reads wait for what is cold."""

    def __init__(self, engine: ObjectEngine, log: Any, *, settles: bool) -> None:
        self._engine = engine
        self._log = log
        self._settles = settles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def _in_place(self, read: Any) -> Any:
        if self._settles and not getattr(self._log, "is_closed", False):
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

    def __init__(
        self, url: str, directory: Path, clock: Clock, *, settles: bool, tiered: bool = False
    ) -> None:
        """`tiered`: its partitions may have a tier."""
        directory.mkdir(parents=True, exist_ok=True)
        small = {"join_rows": 3} if settles else {}
        self.engine = object_engine(a_store(url), directory, clock, **small)
        self._outer: Any = self.engine
        if tiered:
            self._outer = with_tiers(self.engine, a_store(url), directory, clock)
        self._settles = settles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)

    def open(self, key: PartitionKey, settings: LogSettings) -> Any:
        log = self._outer.open(key, settings)
        return InPlaceLog(self.engine, log, settles=self._settles)
