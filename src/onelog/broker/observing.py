"""Reading partitions that lie on other nodes only: this node observes them while somebody reads.

An observer is one copy of a partition for the whole node. All that read here share it.

Rules:
- Who needs which filters is said by those that read (`wants`); it is looked at every `LOOK_S`, and
  when streams change: a filter may match partitions that came later. A look goes over all filters,
  in pieces, so changes that come within `CALM_S` after one have one look together.
- A copy that nobody has needed for `LINGER_S` is let go. So a client that comes back soon finds it.
- A filter may be read here once every partition of it has a copy that has all that the leader
  showed when the copy began (`check`): nothing that was written later is missed.
- The copies together are bounded. What goes beyond is refused to new readers. Those that read
  already get partitions that come later all the same: they would miss records, and not know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from onelog.base.errors import Unavailable
from onelog.broker.record_desk import RecordDesk
from onelog.cursors.sources import Source
from onelog.log.catalog import Catalog
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

WAIT_S: Final = 10.0
"""How long a reader waits until what it asked for is copied. The copies go on afterwards."""
LINGER_S: Final = 60.0
LOOK_S: Final = 15.0
CALM_S: Final = 1.0
FULL: Final = "observers-full"
"""Standing: copies of partitions of other nodes take more than `cluster.cache_bytes`."""
FILTERS_PER_PASS: Final = 256

Wants = Callable[[], Iterable[str]]


class Observers(Protocol):
    """The copies of partitions that this node is no replica of."""

    @property
    def bytes_max(self) -> int:
        """How much they may take together before new readers are refused."""
        ...

    @property
    def size_bytes(self) -> int:
        """What they take now."""
        ...

    @property
    def keys(self) -> Collection[PartitionKey]:
        """The partitions that are asked for."""
        ...

    def observe(self, key: PartitionKey) -> None:
        """Copy a partition until `let_go`. Idempotent."""
        ...

    def let_go(self, key: PartitionKey) -> None:
        """Nobody here needs a partition any more: its copy is dropped."""
        ...

    def has_copied(self, key: PartitionKey) -> bool:
        """Whether a copy has all that the leader showed when the copy began."""
        ...

    async def until_copied(self, keys: Sequence[PartitionKey], timeout_s: float) -> None:
        """Wait until these copies have, or the time is over."""
        ...


class Observing:
    """What readers of this node need of other nodes' partitions."""

    def __init__(
        self, streams: Catalog, records: RecordDesk, observers: Observers, troubles: Troubles
    ) -> None:
        self.wants: list[Wants] = []
        """Say which filters are read here now. What they say is taken in pieces, between which
        readers come and go."""
        self._streams = streams
        self._records = records
        self._observers = observers
        self._troubles = troubles
        self._loop = asyncio.get_running_loop()
        self._needed_at: dict[PartitionKey, float] = {}
        """When somebody needed a partition last."""
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._bringing: list[Collection[PartitionKey]] = []
        """What readers wait for at this moment: it is needed, too."""
        streams.on_change.append(self._streams_changed)

    # -- for readers

    def sources(self, text: str) -> list[Source]:
        """The partitions of a filter that this node reads through observers."""
        return list(self._records.elsewhere(text))

    def has_copied(self, source: Source) -> bool:
        """Whether a copy of a partition has all that the leader showed when the copy began."""
        return self._observers.has_copied(source.stream.key(source.partition.id))

    async def bring(self, filters: Iterable[str]) -> None:
        """Have copies of all partitions of these filters, and wait for them a while."""
        keys = {self._key(source) for text in filters for source in self.sources(text)}
        self._need(keys, is_new=True)
        waiting = [key for key in keys if key in self._observers.keys]
        self._bringing.append(waiting)
        try:
            await self._observers.until_copied(waiting, WAIT_S)
        finally:
            self._bringing.remove(waiting)
            self._need(waiting, is_new=False)

    def check(self, text: str) -> None:
        """Raise Unavailable where a copy of a partition of this filter is still missing."""
        for source in self.sources(text):
            if not self.has_copied(source):
                raise self.missing(source, text)

    def missing(self, source: Source, text: str) -> Unavailable:
        """The error for a reader who has to come again later."""
        place = f"{source.stream.name}/{source.partition.id}"
        if self._key(source) in self._observers.keys:
            why = "it is being copied: try again later"
        else:
            why = (
                "copies of other nodes' partitions take all of cluster.cache_bytes here"
                f" ({self._observers.bytes_max} bytes): raise it, or give this node a copy for good"
                f" with `onelog cluster reassign {place}`"
            )
        return Unavailable(
            f"this node has no whole copy of {place}, where records of {text[:60]} lie, and {why}"
        )

    # -- what is needed

    @staticmethod
    def _key(source: Source) -> PartitionKey:
        return source.stream.key(source.partition.id)

    def _need(self, keys: Collection[PartitionKey], *, is_new: bool) -> None:
        now = self._loop.time()
        fresh = [key for key in keys if key not in self._observers.keys]
        has_room = not fresh or not is_new or self._has_room()
        for key in keys:
            if has_room or key not in fresh:
                self._needed_at[key] = now
                self._observers.observe(key)
        if self._needed_at and self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._timed)

    def _has_room(self) -> bool:
        taken, most = self._observers.size_bytes, self._observers.bytes_max
        if taken < most:
            self._troubles.clear(FULL, "cluster")
            return True
        error = Unavailable(
            f"copies of other nodes' partitions take {taken} bytes here, and cluster.cache_bytes is"
            f" {most}: new subscriptions that need more of them are refused"
        )
        self._troubles.stand(FULL, "cluster", error, blocks=False)
        return False

    # -- looking

    def _streams_changed(self) -> None:
        found = map(self._streams.find, self._streams.changed)
        if any(
            self._streams.hosting.is_shared
            and not self._streams.hosting.is_replica(stream.record, partition.id)
            for stream in found
            if stream is not None
            for partition in stream.partitions
        ):
            self.look()

    def _timed(self) -> None:
        self._timer = None
        self.look()

    def look(self) -> None:
        """Find out what is needed now."""
        self._again = True
        if self._looking is None:
            self._looking = self._loop.create_task(self._look_all(), name="observing")

    async def _look_all(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._look()
                await asyncio.sleep(CALM_S)
        finally:
            self._looking = None

    async def _look(self) -> None:
        seen: set[str] = set()
        needed: set[PartitionKey] = set()
        given = (text for give in list(self.wants) for text in give())
        for number, text in enumerate(given, 1):
            if text not in seen:
                seen.add(text)
                needed.update(map(self._key, self.sources(text)))
            if not number % FILTERS_PER_PASS:
                await asyncio.sleep(0)
        needed.update(*self._bringing)
        self._need(needed, is_new=False)
        now = self._loop.time()
        for key in list(self._observers.keys):
            if now - self._needed_at.get(key, 0.0) >= LINGER_S:
                self._observers.let_go(key)
        self._needed_at = {
            key: when for key, when in self._needed_at.items() if key in self._observers.keys
        }
        self._has_room()

    async def close(self) -> None:
        """Look no more."""
        self._streams.on_change.remove(self._streams_changed)
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
