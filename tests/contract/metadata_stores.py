"""The metadata stores that the contract suite runs over: one row per implementation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from onelog.base.clock import SystemClock
from onelog.metadata.chained import ChainedDatabase
from onelog.metadata.local import HISTORY_REVISIONS, LocalStore
from onelog.metadata.store import MetadataStore
from onelog.objects.store import StoreSettings, open_store
from tests.support.metadata import FaultyStore

StoreFactory = Callable[[Path], Awaitable[MetadataStore]]


async def _local(directory: Path) -> MetadataStore:
    return await LocalStore.open(directory / "metadata.db", SystemClock())


async def _faulty(directory: Path) -> MetadataStore:
    """Without faults the store that tests inject faults with is a store like any other."""
    return FaultyStore(await _local(directory))


async def _chained(directory: Path) -> MetadataStore:
    """In an object store: each start is on an empty file."""
    (directory / "store").mkdir(exist_ok=True)
    objects = open_store(StoreSettings(url=f"file://{directory}/store"))
    path = directory / "copy.db"
    make = partial(ChainedDatabase, path, HISTORY_REVISIONS, objects, "0-meta", 0, SystemClock())
    return await LocalStore.open_made(path, SystemClock(), make)


STORES: dict[str, StoreFactory] = {"local": _local, "faulty": _faulty, "chained": _chained}
