"""The replicas that lie on this node: opened, led or copied, and given up, as the rows say.

Rules:
- The row of a partition says where it lies. Before it has one, its stream's row does, where the
  nodes were written down when the partition was made.
- A replica that is assigned to this node is opened empty and copies its leader. One that is taken
  away is closed, and its data is dropped, only when the row is without this node: then enough
  others have everything.
- A partition that somebody here reads and that lies elsewhere is observed: copied without counting
  (`observed.py`). What changes between observer and replica begins with an empty log.
- A stream that was made before there were several nodes lies on the node that made the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from onelog.base.errors import (
    InvalidRequest,
    NotFound,
    NotLeader,
    OnelogError,
    PartitionStopped,
    StreamNotFound,
    Unavailable,
)
from onelog.base.ids import PartitionId
from onelog.cluster.controller import Wish
from onelog.cluster.driving import ReplicaDriver
from onelog.cluster.exchange import FeedExchange
from onelog.cluster.follower import FeedNumbers
from onelog.cluster.known import KnownCluster, is_sharded
from onelog.cluster.leader import ReplicaLeader
from onelog.cluster.node_rows import MEMBERS, number_of
from onelog.cluster.observed import CACHE_BYTES, Observed
from onelog.cluster.placement import Loads
from onelog.cluster.port import PartitionPort
from onelog.cluster.replica import ClusterReplica
from onelog.cluster.row_store import RowStore
from onelog.cluster.rows import NodeFacts, row_key, settled_count
from onelog.log.catalog import Catalog
from onelog.log.config import StreamConfig
from onelog.log.partition import Partition
from onelog.log.progress import Role
from onelog.log.promises import Durability
from onelog.log.stream import Assigned, Stream, StreamRecord
from onelog.metadata.store import MetadataStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

REPLICA: Final = "replica"
"""Incidents: a replica could not be opened or given up here; it is tried again."""
DAMAGED: Final = "replica-damaged"
"""Incidents: a replica was damaged, and is copied anew; its files are set aside."""
RETRY_S: Final = 1.0
LEAD_S: Final = 5.0
_LEVELS: Final = (Durability.MEMORY, Durability.OS, Durability.FSYNC)


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says of replicas."""

    factor: int
    min_insync: int
    lag_s: float
    owner: int
    """The node that made the cluster."""
    cache_bytes: int = CACHE_BYTES
    """See `Observers`."""


class ReplicaHost:
    """Every replica of this node."""

    is_shared: Final = True

    def __init__(
        self,
        node: int,
        settings: HostSettings,
        known: KnownCluster,
        exchange: FeedExchange,
        rows: RowStore,
        store: MetadataStore,
        local: MetadataStore,
        troubles: Troubles,
    ) -> None:
        """`local` keeps what is true of this node alone."""
        self.node = node
        self._settings = settings
        self._known = known
        self._exchange = exchange
        self._rows = rows
        self._store = store
        self._troubles = troubles
        self._numbers = FeedNumbers()
        self._epoch = 0
        """0: this node is not registered yet, and copies nothing."""
        self._facts: Mapping[int, NodeFacts] = {}
        self.catalog: Catalog | None = None
        self._streams: dict[str, Stream] = {}
        """By id."""
        self.drivers: dict[PartitionKey, ReplicaDriver] = {}
        self.observed = Observed(self, local, settings.cache_bytes, troubles)
        self._shards: set[int] = set()
        """Those that this node leads."""
        self._settling: dict[PartitionKey, asyncio.Task[None]] = {}
        self.holds: Callable[[ReplicaLeader], bool] = lambda _leader: True
        """Whether what is led here may be shown (`Tenure`)."""
        self.on_role: Callable[[], None] = lambda: None
        """Called when this node begins or ceases to lead a partition."""
        self.damages = 0
        """Damaged replicas that were dropped, to be copied anew."""
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    # -- as the catalog's Hosting

    def place(self, config: StreamConfig, first: int) -> Assigned:
        """See `Hosting`."""
        if first >= config.partitions:
            return ()
        facts = self._known.facts()
        up = [row for row in facts.values() if row.is_up and not row.draining]
        if not up:
            raise Unavailable("no node is registered that could take a partition: try again")
        asked = config.replication.factor
        factor = asked or min(self._settings.factor, len(up))
        loads = Loads(row.replicas for row, _revision in self._known.all_rows().values())
        like = self._shard_homes() if config.internal else {}
        return [
            like.get(number) or loads.place(factor, facts)
            for number in range(first, config.partitions)
        ]

    def _shard_homes(self) -> dict[int, tuple[int, ...]]:
        """Where the partitions of shards lie already: those of other streams go there, too."""
        assert self.catalog is not None
        count = self.catalog.placement.partitions
        for stream in self.catalog.streams():
            if is_sharded(stream, count):
                found = {}
                for number in range(count):
                    row = self._known.row(stream.key(PartitionId(number)))
                    found[number] = (
                        _assigned(stream.record, number) if row is None else (row[0].replicas)
                    )
                return found
        return {}

    def check_change(self, old: StreamConfig, new: StreamConfig) -> None:
        """See `Hosting`."""
        if _LEVELS.index(new.durability) > _LEVELS.index(old.durability):
            raise InvalidRequest(
                f"stream {new.name}: on a cluster the durability of a stream cannot be raised"
                f" (from {old.durability} to {new.durability}): replicas may hold records that were"
                " answered at the lower one. Make a new stream, and move its topics there"
            )
        factor = new.replication.factor
        if factor == old.replication.factor:
            return
        if new.internal:
            raise InvalidRequest(
                f"stream {new.name}: the partitions of a shard lie together. Move them with `onelog"
                " cluster reassign`"
            )
        up = [row for row in self._known.facts().values() if row.is_up and not row.draining]
        if factor > len(up):
            raise InvalidRequest(
                f"stream {new.name}: {factor} replicas need as many nodes, and {len(up)} can take"
                " one now; start more nodes, or ask for fewer replicas"
            )

    def has(self, record: StreamRecord, number: PartitionId) -> bool:
        """See `Hosting`. It may be called in a thread."""
        is_observed = PartitionKey(record.id, number) in self.observed
        return is_observed or self.is_replica(record, number)

    def is_replica(self, record: StreamRecord, number: PartitionId) -> bool:
        """See `Hosting`. It may be called in a thread."""
        found = self._known.row(PartitionKey(record.id, number))
        return self.node in (self.homes(record, number) if found is None else found[0].replicas)

    def homes(self, record: StreamRecord, number: int) -> tuple[int, ...]:
        """Where a partition that has no row yet lies."""
        return _assigned(record, number) or (self._settings.owner,)

    def seen(self, stream: Stream) -> None:
        """See `Hosting`."""
        self._streams[stream.record.id] = stream
        for partition in stream.local:
            self.look(stream.key(partition.id))
        self._known.streams_changed()

    async def gone(self, stream: Stream) -> None:
        """See `Hosting`."""
        self._streams.pop(stream.record.id, None)
        for key in [stream.key(partition.id) for partition in stream.partitions]:
            self.observed.gone(key)
            task = self._settling.get(key)
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await self._drop(key)
        self._known.streams_changed()

    async def until_led(self, record: StreamRecord) -> None:
        """See `Hosting`."""
        await self._known.until_led(record.id, record.config.partitions)
        keys = [PartitionKey(record.id, PartitionId(n)) for n in range(record.config.partitions)]

        def holds() -> bool:
            return all(self.leads(key) for key in keys if self._is_mine(key))

        await self._known.until(holds, "this node does not lead a new stream", LEAD_S)

    def _is_mine(self, key: PartitionKey) -> bool:
        found = self._known.row(key)
        return found is not None and found[0].leader == self.node

    async def nodes(self) -> Collection[int]:
        """See `Hosting`: the members, as the store has them now."""
        entries = (await self._store.range(MEMBERS)).entries
        return {number_of(entry.key) for entry in entries}

    async def deleted(self, keys: Sequence[PartitionKey]) -> None:
        """See `Hosting`."""
        for key in keys:
            await self._store.delete(row_key(key))

    def wishes(self) -> dict[PartitionKey, Wish]:
        """What the streams that are known here ask for, for each partition."""
        assert self.catalog is not None
        return {
            stream.key(partition.id): self._wish(stream.record, int(partition.id))
            for stream in self.catalog.streams()
            for partition in stream.partitions
        }

    def _wish(self, record: StreamRecord, number: int) -> Wish:
        config = record.config
        homes = self.homes(record, number)
        found = self._known.row(PartitionKey(record.id, PartitionId(number)))
        count = len(homes) if found is None else settled_count(found[0])
        # Two of two would stop with either of them.
        insync = config.replication.min_insync or min(self._settings.min_insync, max(1, count - 1))
        return Wish(
            replicas=homes,
            min_insync=min(insync, count),
            level=config.durability,
            factor=config.replication.factor or self._settings.factor,
            asked=config.replication.factor,
        )

    # -- what is known changes

    def begin(self, catalog: Catalog, epoch: int) -> None:
        """This node is registered: copy, or lead, all that lies here."""
        self.catalog, self._epoch = catalog, epoch
        catalog.shared.room.on_change = self._room_changed
        for stream in catalog.streams():
            self.seen(stream)
        self.observed.begin()

    async def drop_leftover(self, key: PartitionKey) -> None:
        """Drop what an earlier process may have left of a partition, unless it lies here now."""
        found = self._find(key)
        if found is not None and not self.has(found[0].record, key.partition):
            await self._remake(found[0], key)

    def _room_changed(self) -> None:
        for driver in self.drivers.values():
            driver.wake()

    def registered(self, epoch: int) -> None:
        """This node is registered anew."""
        self._epoch, now = epoch, self._loop.time()
        for driver in self.drivers.values():
            driver.replica.registered(epoch, now)
            driver.wake()

    def nodes_changed(self, facts: Mapping[int, NodeFacts]) -> None:
        """The store has these nodes."""
        self._facts, now = facts, self._loop.time()
        for driver in self.drivers.values():
            driver.replica.nodes_seen(facts, now)
            driver.wake()

    def rows_changed(self, keys: Sequence[PartitionKey]) -> None:
        """The rows of these partitions changed."""
        now = self._loop.time()
        for key in keys:
            driver, found = self.drivers.get(key), self._known.row(key)
            if driver is not None and found is not None:
                driver.replica.row_seen(*found, now)
                driver.wake()
            self.look(key)

    # -- opening and giving up

    def look(self, key: PartitionKey) -> None:
        """See whether a partition lies here, and do what follows."""
        if (
            self._epoch
            and not self._is_closed
            and key not in self._settling
            and not self._is_right(key)
        ):
            task = self._loop.create_task(self._settle(key))
            self._settling[key] = task

    def _find(self, key: PartitionKey) -> tuple[Stream, Partition] | None:
        stream = self._streams.get(key.stream_id)
        if stream is None or key.partition >= len(stream.local):
            return None
        return stream, stream.local[key.partition]

    def _is_right(self, key: PartitionKey) -> bool:
        found, driver = self._find(key), self.drivers.get(key)
        if found is None:
            return driver is None
        record = found[0].record
        if driver is None:
            return not self.has(record, key.partition)
        if driver.replica.follower.observer:
            return key in self.observed and not self.is_replica(record, key.partition)
        return self.is_replica(record, key.partition)

    async def _settle(self, key: PartitionKey) -> None:
        try:
            while not self._is_right(key) and not self._is_closed:
                found = self._find(key)
                if found is None:
                    await self._drop(key)
                    return
                stream, partition = found
                try:
                    if key in self.drivers:
                        await self._give_up(stream, partition, key)
                    else:
                        if not self.is_replica(stream.record, key.partition):
                            await self.observed.note(key)
                        if isinstance(partition.stopped, NotLeader):
                            partition = await self._remake(stream, key)
                        self._drive(stream, partition, key)
                except StreamNotFound:
                    return
                except OnelogError as error:
                    self._troubles.note(REPLICA, partition.place, error)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._settling.pop(key, None)

    async def _give_up(self, stream: Stream, partition: Partition, key: PartitionKey) -> None:
        """Copy it no more, and drop what is here if the row still says so.

        What is known here may be old: since then this replica may have been added again, and be
        counted on.
        """
        is_observer = self.drivers[key].replica.follower.observer
        await self._drop(key)
        if is_observer:
            await self._remake(stream, key)
            await self.observed.forget(key)
            return
        if partition.stopped is None:
            partition.replica.become(Role.FOLLOWER, partition.leader_epoch)
        while not await self._is_removed(partition, key):
            if self.is_replica(stream.record, key.partition):
                return
            await asyncio.sleep(RETRY_S)  # until the row that lists it is known here
        await self._remake(stream, key)

    async def _is_removed(self, partition: Partition, key: PartitionKey) -> bool:
        try:
            row, _revision = await self._rows.read(key)
        except NotFound:
            return True
        except OnelogError as error:
            self._troubles.note(REPLICA, partition.place, error)
            return False
        return self.node not in row.replicas

    async def _remake(self, stream: Stream, key: PartitionKey) -> Partition:
        assert self.catalog is not None
        old = stream.local[key.partition]
        fresh = await self.catalog.remake(stream, key.partition)
        if isinstance(old.stopped, PartitionStopped):
            self.damages += 1
            self._troubles.note(DAMAGED, old.place, old.stopped)
        return fresh

    def _drive(self, stream: Stream, partition: Partition, key: PartitionKey) -> None:
        port = PartitionPort(partition, lambda: stream.config.cleanup.compacts)
        replica = ClusterReplica(
            key,
            self.node,
            port,
            self._numbers,
            node_epoch=self._epoch,
            lag_s=self._settings.lag_s,
            observer=not self.is_replica(stream.record, key.partition),
            is_damaged=partition.stopped is not None,
        )

        async def remake() -> Partition:
            return await self._remake(stream, key)

        driver = ReplicaDriver(port, replica, self._exchange, self._rows, remake)
        driver.on_role, driver.holds = self.on_role, self.holds
        driver.on_copied = self.observed.progressed
        self.drivers[key] = driver
        now = self._loop.time()
        replica.nodes_seen(self._facts, now)
        found = self._known.row(key)
        if found is not None:
            replica.row_seen(*found, now)
        self._exchange.add(driver)

    async def _drop(self, key: PartitionKey) -> None:
        driver = self.drivers.pop(key, None)
        if driver is not None:
            self._exchange.remove(key)
            await driver.close()

    async def close(self) -> None:
        """Lead and copy nothing more; the partitions stay open."""
        self._is_closed = True
        for task in list(self._settling.values()):
            task.cancel()
        await asyncio.gather(*self._settling.values(), return_exceptions=True)
        await self.observed.close()
        for key in list(self.drivers):
            await self._drop(key)

    # -- what is led here

    def leads(self, key: PartitionKey) -> bool:
        """Whether this node leads a partition, and takes its records."""
        driver = self.drivers.get(key)
        return driver is not None and driver.is_leading

    def led(self, key: PartitionKey) -> Partition | None:
        """A partition that this node leads; None: it does not."""
        driver = self.drivers.get(key)
        return driver.partition if driver is not None and driver.is_leading else None

    def holds_shard(self, shard: int) -> bool:
        """Whether a shard may be shown: a replica may be deposed a moment before it is lost."""
        keys = [key for key in self._known.shards()[shard] if self._known.row(key) is not None]
        drivers = [self.drivers.get(key) for key in keys]
        return all(driver is not None and driver.is_fresh for driver in drivers)

    def led_shards(self) -> set[int]:
        """The shards of which this node leads every partition that was ever led.

        A shard begins when all of them take records here. It ends when the row of one names
        somebody else: a partition of a stream that is new takes none of the others away.
        """
        self._shards = {
            number for number, keys in enumerate(self._known.shards()) if self._has(number, keys)
        }
        return self._shards

    def _has(self, number: int, keys: Sequence[PartitionKey]) -> bool:
        rows = {key: found[0] for key in keys if (found := self._known.row(key)) is not None}
        mine = (self.node, self._epoch)
        if not all((row.leader, row.leader_node_epoch) == mine for row in rows.values()):
            return False
        return bool(rows) and (number in self._shards or all(map(self.leads, rows)))


def _assigned(record: StreamRecord, number: int) -> tuple[int, ...]:
    return record.assigned[number] if number < len(record.assigned) else ()
