"""The storage engines that the contract suite runs over: one row per implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from onelog.base.clock import Clock
from onelog.objects.store import StoreSettings, open_store
from onelog.storage.engine import Engine
from onelog.storage.kv import KvEngine
from onelog.storage.memory import MemoryEngine
from onelog.storage.segment import SegmentEngine
from onelog.storage.tiered import TieredEngine
from tests.support.object_engine import InPlaceEngine
from tests.support.tiers import MovedEngine, tiered


class EngineCase(NamedTuple):
    """How to make an engine on a directory, and what its kind allows."""

    make: Callable[[Path, Clock], Engine]
    persistent: bool
    """Whether what was closed is there after the next open."""
    freezes: bool = True
    """Whether it can be frozen at any cut: nothing that left the machine lies beyond it."""


def _tiered(kind: type[TieredEngine]) -> Callable[[Path, Clock], Engine]:
    """The store is in memory, one for all engines of a test."""

    def make(path: Path, clock: Clock) -> Engine:
        url = f"memory://{path.parent}"
        return tiered(path, open_store(StoreSettings(url=url)), clock, kind)

    return make


def _object(directory: Path, clock: Clock) -> Engine:
    return InPlaceEngine(f"memory://{directory}", directory, clock, settles=False)


def _object_tiered(directory: Path, clock: Clock) -> Engine:
    return InPlaceEngine(f"memory://{directory}", directory, clock, settles=True, tiered=True)


def _object_settled(directory: Path, clock: Clock) -> Engine:
    (directory / "store").mkdir(parents=True, exist_ok=True)
    return InPlaceEngine(f"file://{directory}/store", directory, clock, settles=True)


ENGINES: dict[str, EngineCase] = {
    "kv": EngineCase(KvEngine, persistent=True),
    "object": EngineCase(_object, persistent=True, freezes=False),
    "object-settled": EngineCase(_object_settled, persistent=True, freezes=False),
    "object-tiered": EngineCase(_object_tiered, persistent=True, freezes=False),
    "memory": EngineCase(lambda _, clock: MemoryEngine(clock), persistent=False),
    "segment": EngineCase(SegmentEngine, persistent=True),
    "tiered": EngineCase(_tiered(TieredEngine), persistent=True),
    "tiered-moved": EngineCase(_tiered(MovedEngine), persistent=True, freezes=False),
}
