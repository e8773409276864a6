"""What a node knows of its cluster: nodes, rows of partitions, and who owns which shard.

Rules:
- Everything is read from watched rows, so it may be a moment old. Whoever must not act on an old
  row compares its revision when it writes.
- The registration of a node and its member's row are written together and come by two watches.
  Whoever decides what a node has waits for both (`facts`).
- A shard has an owner while one node leads all of its partitions. In between it has none: an
  election is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from onelog.base.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, Timeout
from onelog.base.ids import PartitionId
from onelog.cluster.controller import reassign, recover
from onelog.cluster.membership import RowOutcome
from onelog.cluster.node_rows import ClusterMember, RegisteredNode, member_key, node_key, number_of
from onelog.cluster.registration import Registration
from onelog.cluster.row_store import MetadataRows
from onelog.cluster.rows import (
    CONTROLLER,
    NOBODY,
    PARTITIONS,
    NodeFacts,
    PartitionChange,
    ReplicaSet,
    decode_row,
    is_in_sync,
    partition_of,
    row_key,
    seen_together,
    with_leader,
)
from onelog.log.catalog import Catalog
from onelog.log.cluster_map import NodePlace, ReplicaPlaces
from onelog.log.handle import PartitionHandle
from onelog.log.stream import Stream
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Entry, MetadataStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

LISTENER: Final = "cluster-listener"
"""Incidents: a listener for changes of the cluster raised."""
LED_S: Final = 10.0
"""How long a new stream may take until its partitions have leaders."""
TRIES: Final = 5
"""Attempts to change a row that others change at the same time."""


class KnownCluster:
    """The cluster as this node sees it."""

    def __init__(
        self,
        store: MetadataStore,
        registration: Registration,
        troubles: Troubles,
        factor: int,
    ) -> None:
        self._store = store
        self._registration = registration
        self._troubles = troubles
        self._writes = MetadataRows(store)
        self.factor = factor
        self.on_change: list[Callable[[], None]] = []
        """See `ClusterMap`."""
        self.on_rows: Callable[[Sequence[PartitionKey]], None] = lambda _keys: None
        """Called first, with the partitions whose rows changed."""
        self.rows: Projection[ReplicaSet] = Projection(
            store, PARTITIONS, _decode, troubles, self._rows_changed
        )
        self._changed = asyncio.Event()
        self._places: list[NodePlace] | None = None
        """The registered nodes; None: to be made anew."""
        self._owners: dict[int, int] | None = None
        """Shard → its owner; None: to be made anew."""
        self.catalog: Catalog | None = None
        """The streams, once they are open."""

    async def open(self) -> None:
        """Read all rows, and watch them."""
        await self.rows.open()

    async def close(self) -> None:
        """Watch no more."""
        await self.rows.close()

    # -- nodes

    @property
    def node(self) -> int:
        """This node."""
        return self._registration.node

    @property
    def controller(self) -> int:
        """The node that elects leaders; `NOBODY`: none does now."""
        found = self._registration.controller.get(CONTROLLER)
        return NOBODY if found is None else found.value.node

    def up(self) -> set[int]:
        """The nodes that may take a partition, as soon as both of their rows have come."""
        return {node for node, facts in self.facts().items() if facts.is_up}

    def nodes(self) -> Sequence[NodePlace]:
        """The registered nodes, by number. Publishing asks it once a pass."""
        if self._places is None:
            self._places = [
                NodePlace(number, epoch, member.rack, member.draining, row.listeners)
                for number, epoch, row, member in self._registered()
            ]
        return self._places

    def _registered(self) -> list[tuple[int, int, RegisteredNode, ClusterMember]]:
        found = []
        for key, row in self._registration.nodes.rows():
            number = number_of(key)
            node = self._registration.nodes.get(key)
            member = self._registration.members.get(member_key(number))
            if node is not None and member is not None:
                found.append((number, node.revision, row, member.value))
        return sorted(found, key=lambda one: one[0])

    def addresses(self) -> Iterator[tuple[int, str, int]]:
        """Each registered node with its inner address and its node epoch."""
        for number, epoch, row, _member in self._registered():
            if row.inner:
                yield number, row.inner, epoch

    def facts(self) -> dict[int, NodeFacts]:
        """What the metadata store says of every member, by its number."""
        found = {}
        for key, _value in self._registration.members.rows():
            number = number_of(key)
            row = self._registration.nodes.get(node_key(number))
            known = self._registration.members.get(key)
            if known is None:
                continue
            member = known.value
            facts = NodeFacts(
                node=number,
                disk_since=member.disk_since,
                cache_since=member.cache_since,
                process_since=member.process_since,
                rack=member.rack,
                draining=member.draining or self._registration.is_stopping(number),
            )
            found[number] = seen_together(facts, known.revision, 0 if row is None else row.revision)
        return found

    # -- partitions

    def row(self, key: PartitionKey) -> tuple[ReplicaSet, int] | None:
        """The row of a partition and its revision; None: it has none yet."""
        found = self.rows.get(row_key(key))
        return None if found is None else (found.value, found.revision)

    def all_rows(self) -> dict[PartitionKey, tuple[ReplicaSet, int]]:
        """Every row with its revision."""
        found = {}
        for key, value in self.rows.rows():
            row = self.rows.get(key)
            if row is not None:
                found[partition_of(key)] = (value, row.revision)
        return found

    def replicas(self, stream_id: str, partition: PartitionHandle) -> ReplicaPlaces:
        """See `ClusterMap`."""
        found = self.row(PartitionKey(stream_id, partition.id))
        if found is None:
            return ReplicaPlaces(NOBODY, 0, (), ())
        row = found[0]
        return ReplicaPlaces(
            row.leader, row.epoch, row.replicas, tuple(row.isr), tuple(row.elr), row.adding,
            row.removing,
        )  # fmt: skip

    # -- shards

    def shards(self) -> list[list[PartitionKey]]:
        """The partitions of each shard, as far as their streams are known here."""
        if self.catalog is None:
            return []
        count = self.catalog.placement.partitions
        streams = [row for row in self.catalog.streams() if is_sharded(row, count)]
        return [[row.key(PartitionId(shard)) for row in streams] for shard in range(count)]

    def owner(self, name: bytes) -> int:
        """See `ClusterMap`."""
        if self.catalog is None:
            return NOBODY
        return self.owner_of(self.catalog.placement.shard(name))

    def owner_of(self, shard: int) -> int:
        """The node that owns a shard; `NOBODY`: an election is under way."""
        if self._owners is None:
            self._owners = dict(enumerate(map(self._owner, self.shards())))
        return self._owners.get(shard, NOBODY)

    def _owner(self, keys: Sequence[PartitionKey]) -> int:
        found = {NOBODY if row is None else row[0].leader for row in map(self.row, keys)}
        return found.pop() if len(found) == 1 else NOBODY

    # -- waiting

    def nodes_changed(self) -> None:
        """The rows of nodes changed."""
        self._tell()

    def streams_changed(self) -> None:
        """Streams came or went, or this node began to lead one."""
        self._tell()

    def _rows_changed(self, changes: Sequence[Change[ReplicaSet]]) -> None:
        self.on_rows([partition_of(change.key) for change in changes])
        self._tell()

    def _tell(self) -> None:
        self._owners = self._places = None
        event, self._changed = self._changed, asyncio.Event()
        event.set()
        self._troubles.tell(LISTENER, self.on_change)

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until something is true of what is known here. Raises Timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            raise Timeout(f"{what} within {timeout_s:g} s") from None

    async def refresh(self) -> None:
        """See `ClusterMap`."""
        registration = self._registration
        for prefix, rows in (
            (PARTITIONS, self.rows),
            (registration.nodes.prefix, registration.nodes),
            (registration.members.prefix, registration.members),
        ):
            entries = (await self._store.range(prefix)).entries
            if entries:
                await rows.reached(max(entry.mod_revision for entry in entries))

    async def until_led(self, stream_id: str, partitions: int) -> None:
        """See `ClusterMap`."""
        keys = [PartitionKey(stream_id, PartitionId(number)) for number in range(partitions)]

        def holds() -> bool:
            rows = [self.row(key) for key in keys]
            return all(row is not None and row[0].leader != NOBODY for row in rows)

        await self.until(holds, "a partition of a new stream has no leader", LED_S)

    # -- what operators ask for

    async def elect(self, stream_id: str, partition: PartitionId, *, unclean: bool = False) -> bool:
        """See `ClusterMap`."""

        def change(row: ReplicaSet) -> ReplicaSet | None:
            facts = self.facts()
            up = [facts[node] for node in row.replicas if node in facts and facts[node].is_up]
            if unclean:
                if row.leader != NOBODY:
                    return None
                if not up:
                    raise Conflict(f"no node that has a copy of {stream_id}/{partition} runs")
                return recover(row, up[0])
            first = next((one for one in up if is_in_sync(row, one)), None)
            if first is None or first.node != row.replicas[0]:
                raise Conflict(
                    f"node {row.replicas[0]}, which {stream_id}/{partition} prefers, is not in sync"
                )
            return (
                None if row.leader == first.node else with_leader(row, first.node, first.node_epoch)
            )

        return await self._change(PartitionKey(stream_id, partition), change)

    async def recover(self, key: PartitionKey, node: int) -> bool:
        """Let a node lead with what it has: records that only others had are lost."""
        facts = self.facts().get(node)
        if facts is None or not facts.is_up:
            raise Conflict(f"node {node} is not registered")

        def change(row: ReplicaSet) -> ReplicaSet | None:
            if node not in row.replicas:
                raise InvalidRequest(
                    f"node {node} has no copy of the partition: nodes"
                    f" {', '.join(map(str, row.replicas))} have one"
                )
            if row.leader != NOBODY:
                raise Conflict(
                    f"node {row.leader} leads the partition: nothing has to be lost. A partition is"
                    " recovered only while it has no leader"
                )
            return recover(row, facts)

        return await self._change(key, change)

    async def reassign(
        self, stream_id: str, partition: PartitionId, replicas: Sequence[int] | None
    ) -> None:
        """See `ClusterMap`."""
        facts = self.facts()
        unknown = [node for node in replicas or () if node not in facts]
        if unknown:
            raise InvalidRequest(f"the cluster has no node {unknown[0]}")
        if replicas is not None and (not replicas or len(set(replicas)) < len(replicas)):
            raise InvalidRequest("a partition lies on one node at least, and on none twice")

        def change(row: ReplicaSet) -> ReplicaSet | None:
            if replicas is not None:
                return reassign(row, tuple(replicas))
            if not row.adding and not row.removing:
                raise Conflict(f"{stream_id}/{partition} is not being moved")
            return reassign(row, tuple(node for node in row.replicas if node not in row.adding))

        await self._change(PartitionKey(stream_id, partition), change)

    async def _change(
        self, key: PartitionKey, change: Callable[[ReplicaSet], ReplicaSet | None]
    ) -> bool:
        for _ in range(TRIES):
            try:
                row, revision = await self._writes.read(key)
            except NotFound:
                raise Conflict(f"{key} has no replicas yet: try again") from None
            wanted = change(row)
            if wanted is None or wanted == row:
                return False
            facts: Mapping[int, NodeFacts] = self.facts()
            is_elected = wanted.epoch != row.epoch and wanted.leader in facts
            nodes = ((wanted.leader, wanted.leader_node_epoch),) if is_elected else ()
            outcome, _revision = await self._writes.write(
                PartitionChange(partition=key, expected=revision, row=wanted, nodes=nodes)
            )
            if outcome is RowOutcome.DONE:
                return True
            if outcome is RowOutcome.UNKNOWN:
                raise OutcomeUnknown(
                    f"whether {key} was changed is not known: look, then try again"
                )
        raise Conflict(f"{key} changes all the time: try again")


def is_sharded(stream: Stream, shards: int) -> bool:
    """Whether partition k of an internal stream is a part of shard k."""
    return stream.is_internal and len(stream.partitions) == shards


def _decode(entry: Entry) -> ReplicaSet:
    return decode_row(entry.value)
