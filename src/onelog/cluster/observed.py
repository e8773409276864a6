"""The partitions that this node copies without being one of their replicas: observers.

Rules:
- A partition is observed while somebody here asks for it and its row does not list this node. A
  row that lists it makes it a replica, which copies anew: what an observer has never counts.
- An observed partition is noted in this node's own store before its first file is made, and
  forgotten after its last one is gone. So a start finds what a crash left, and drops it.
- A note never drops what a replica has, whose records count: the note may have outlived the change
  to a replica. So a node that was made a replica while it was down goes on with what its observer
  had, a prefix of what was committed, as a replica that was down goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.base.ids import PartitionId
from onelog.metadata.store import MetadataStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

if TYPE_CHECKING:
    from onelog.cluster.hosts import ReplicaHost

OBSERVED: Final = "observed/"
CACHE_BYTES: Final = 20 * 1000**3
LEFTOVERS: Final = "observer-leftovers"
"""Incidents: what observers of an earlier process left could not be dropped."""


class Observed:
    """Which partitions are asked for, and the notes of those that may have files here."""

    def __init__(
        self, host: ReplicaHost, store: MetadataStore, bytes_max: int, troubles: Troubles
    ) -> None:
        self.bytes_max = bytes_max
        """See `Observers`."""
        self._host = host
        self._store = store
        self._troubles = troubles
        self._asked: set[PartitionKey] = set()
        self._progress = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._asked

    # -- as the broker's Observers

    @property
    def keys(self) -> Collection[PartitionKey]:
        """See `Observers`."""
        return self._asked

    @property
    def size_bytes(self) -> int:
        """See `Observers`."""
        found = (self._host.drivers.get(key) for key in self._asked)
        return sum(driver.partition.size_bytes for driver in found if driver is not None)

    def observe(self, key: PartitionKey) -> None:
        """See `Observers`."""
        self._asked.add(key)
        self._host.look(key)

    def let_go(self, key: PartitionKey) -> None:
        """See `Observers`."""
        self._asked.discard(key)
        self._host.look(key)

    def has_copied(self, key: PartitionKey) -> bool:
        """See `Observers`."""
        driver = self._host.drivers.get(key)
        return driver is not None and driver.has_copied

    async def until_copied(self, keys: Sequence[PartitionKey], timeout_s: float) -> None:
        """See `Observers`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not all(map(self.has_copied, keys)):
                    await self._progress.wait()

    # -- for the host

    def gone(self, key: PartitionKey) -> None:
        """Its stream is gone."""
        self._asked.discard(key)

    def progressed(self) -> None:
        """A copy has come as far as its leader was when the copy began."""
        event, self._progress = self._progress, asyncio.Event()
        event.set()

    async def note(self, key: PartitionKey) -> None:
        """It is about to have files here."""
        await self._store.put(_note(key), b"")

    async def forget(self, key: PartitionKey) -> None:
        """It has none any more."""
        await self._store.delete(_note(key))

    def begin(self) -> None:
        """The host copies from now on: drop what observers of an earlier process left."""
        self._sweeping = asyncio.create_task(self._sweep())

    async def _sweep(self) -> None:
        with self._troubled("observers"):
            for entry in (await self._store.range(OBSERVED)).entries:
                place = entry.key.removeprefix(OBSERVED)
                stream_id, _slash, number = place.rpartition("/")
                key = PartitionKey(stream_id, PartitionId(int(number)))
                with self._troubled(place):
                    await self._host.drop_leftover(key)
                    if key not in self._asked:
                        await self.forget(key)

    @contextlib.contextmanager
    def _troubled(self, place: str) -> Iterator[None]:
        """The next start tries again what fails here."""
        try:
            yield
        except OnelogError as error:
            self._troubles.note(LEFTOVERS, place, error)

    async def close(self) -> None:
        """Look after nothing more."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])


def _note(key: PartitionKey) -> str:
    return f"{OBSERVED}{key.stream_id}/{int(key.partition)}"
