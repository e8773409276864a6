"""The metadata stores that the contract suite runs over: one row per implementation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from onelog.base.clock import SystemClock
from onelog.metadata.local import LocalStore
from onelog.metadata.store import MetadataStore
from tests.support.metadata import FaultyStore

StoreFactory = Callable[[Path], Awaitable[MetadataStore]]


async def _local(directory: Path) -> MetadataStore:
    return await LocalStore.open(directory / "metadata.db", SystemClock())


async def _faulty(directory: Path) -> MetadataStore:
    """Without faults the store that tests inject faults with is a store like any other."""
    return FaultyStore(await _local(directory))


STORES: dict[str, StoreFactory] = {"local": _local, "faulty": _faulty}
