"""The storage engines that the contract suite runs over: one row per implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from onelog.base.clock import Clock
from onelog.storage.engine import Engine
from onelog.storage.kv import KvEngine
from onelog.storage.memory import MemoryEngine
from onelog.storage.segment import SegmentEngine


class EngineCase(NamedTuple):
    """How to make an engine on a directory, and what its kind allows."""

    make: Callable[[Path, Clock], Engine]
    persistent: bool
    """Whether what was closed is there after the next open."""


ENGINES: dict[str, EngineCase] = {
    "kv": EngineCase(KvEngine, persistent=True),
    "memory": EngineCase(lambda _, clock: MemoryEngine(clock), persistent=False),
    "segment": EngineCase(SegmentEngine, persistent=True),
}
