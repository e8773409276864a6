"""The metadata stores that the contract suite runs over: one row per implementation."""

from __future__ import annotations

import atexit
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path

import pytest

from onelog.base.clock import SystemClock
from onelog.metadata.chained import ChainedDatabase
from onelog.metadata.etcd import EtcdSettings, EtcdStore
from onelog.metadata.local import HISTORY_REVISIONS, LocalStore
from onelog.metadata.store import MetadataStore
from onelog.objects.store import StoreSettings, open_store
from onelog.observe.troubles import Troubles
from tests.support.etcd import EtcdCluster, find_etcd
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


@cache
def _one_etcd() -> EtcdCluster:
    """One member for all tests of a process; each test has a prefix of its own."""
    folder = tempfile.TemporaryDirectory(prefix="onelog-etcd-")
    cluster = EtcdCluster(Path(folder.name)).start()
    atexit.register(folder.cleanup)
    atexit.register(cluster.close)
    return cluster


class CleanedStore(EtcdStore):
    """Takes its keys along: those of its leases would change the revision in another test."""

    async def close(self) -> None:
        if not self._closing:
            await self.delete("", prefix=True)
        await super().close()


async def _etcd(_directory: Path) -> MetadataStore:
    if find_etcd() is None:
        pytest.skip("etcd is not here: `apt-get install etcd-server`")
    settings = EtcdSettings(endpoints=_one_etcd().urls, prefix=f"/onelog/{uuid.uuid4().hex}/")
    return await CleanedStore.open(settings, Troubles(SystemClock()))


STORES: dict[str, StoreFactory] = {
    "local": _local,
    "faulty": _faulty,
    "chained": _chained,
    "etcd": _etcd,
}
