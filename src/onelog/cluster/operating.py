"""What operators do with a cluster: move, elect, recover, empty a node, finalise a version.

Rules:
- A partition is named as `STREAM/NUMBER`. The row of it is changed here; the controller and the
  replicas do the rest, so that a command returns before a move is done.
- Nothing here loses a record, but `recover`, which is counted and logged by the node that leads.
- A node leaves the cluster only when no row names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from onelog.base.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StreamNotFound,
)
from onelog.base.ids import PartitionId
from onelog.cluster.known import KnownCluster, is_sharded
from onelog.cluster.link.hello import VERSIONS
from onelog.cluster.node_rows import (
    CLUSTER,
    ClusterRow,
    decode_row,
    member_key,
    node_key,
    number_of,
)
from onelog.cluster.placement import Loads
from onelog.cluster.registration import Registration
from onelog.cluster.rows import NOBODY, ReplicaSet
from onelog.log.stream import Stream
from onelog.metadata.store import Compare, MetadataStore, Put
from onelog.observe.logging import get_logger
from onelog.storage.engine import PartitionKey

TRIES: Final = 5

_log = get_logger("cluster")


class ClusterOperator:
    """The commands, on one node."""

    def __init__(
        self, known: KnownCluster, registration: Registration, store: MetadataStore
    ) -> None:
        self._known = known
        self._registration = registration
        self._store = store

    # -- names

    def streams(self) -> dict[str, Stream]:
        """The streams by their ids."""
        catalog = self._known.catalog
        return {} if catalog is None else {row.record.id: row for row in catalog.streams()}

    def named(self) -> Iterator[tuple[str, PartitionKey, ReplicaSet]]:
        """Every partition that has a row: its name, its key, its row."""
        streams = self.streams()
        for key, (row, _revision) in self._known.all_rows().items():
            stream = streams.get(key.stream_id)
            if stream is not None:
                yield f"{stream.name}/{key.partition}", key, row

    def find(self, name: str) -> PartitionKey:
        """The partition of a name. Raises StreamNotFound, InvalidRequest."""
        stream_name, _, number = name.rpartition("/")
        if not stream_name or not number.isascii() or not number.isdecimal():
            raise InvalidRequest(f"{name!r} is no partition: write STREAM/NUMBER, as main/0")
        catalog = self._known.catalog
        stream = None if catalog is None else catalog.find(stream_name)
        if stream is None or int(number) >= len(stream.partitions):
            raise StreamNotFound(f"there is no partition {name}")
        return stream.key(PartitionId(int(number)))

    # -- partitions

    async def reassign(self, name: str, replicas: tuple[int, ...] | None) -> None:
        """See `ClusterDesk`."""
        key = self.find(name)
        await self._known.reassign(key.stream_id, key.partition, replicas)
        _log.info("a partition is moved", partition=name, to=replicas)

    async def elect(self, name: str) -> int:
        """See `ClusterDesk`."""
        if name:
            key = self.find(name)
            return int(await self._known.elect(key.stream_id, key.partition))
        changed = 0
        for _name, key, row in list(self.named()):
            first = row.replicas[0]
            if row.leader not in (NOBODY, first) and first in row.isr:
                try:
                    changed += await self._known.elect(key.stream_id, key.partition)
                except Conflict:  # it changed meanwhile: others are elected
                    continue
        return changed

    async def recover(self, name: str, node: int) -> bool:
        """See `ClusterDesk`."""
        key = self.find(name)
        found = self._known.row(key)
        if found is not None and found[0].leader != NOBODY:
            raise Conflict(
                f"node {found[0].leader} leads {name}: nothing has to be recovered. To let another"
                " node lead it, use `onelog cluster elect` or `reassign`"
            )
        _log.warning("an operator accepts a loss", partition=name, node=node)
        return await self._known.recover(key, node)

    # -- nodes

    async def empty(self, node: int) -> int:
        """See `ClusterDesk`."""
        facts = self._known.facts()
        if node not in facts:
            raise NotFound(f"the cluster has no node {node}")
        on_node = [one for one in self.named() if node in one[2].replicas]
        up = {one.node for one in facts.values() if one.is_up and not one.draining} - {node}
        for name, _key, row in on_node:
            if not up & set(row.replicas) and not up:
                raise Conflict(f"no other node runs that could take {name}: start one")
        await self._registration.drain(node, draining=True)
        homes = {number: one for number, one in facts.items() if number != node}
        loads = Loads(row.replicas for _name, _key, row in self.named())
        streams, shards = self.streams(), self._shards()
        like: dict[int, tuple[int, ...]] = {}
        moved = 0
        for _name, key, row in on_node:
            kept = tuple(one for one in row.replicas if one != node and one not in row.removing)
            shard = int(key.partition) if is_sharded(streams[key.stream_id], shards) else -1
            added = like.get(shard)
            if added is None:
                added = loads.more(kept, 1, homes)
            if shard >= 0:
                like[shard] = added
            target = kept + tuple(one for one in added if one not in kept)
            if node in row.removing:
                continue
            await self._known.reassign(key.stream_id, key.partition, target)
            moved += 1
        _log.info("a node is emptied", node=node, partitions=moved)
        return moved

    def _shards(self) -> int:
        catalog = self._known.catalog
        return 0 if catalog is None else catalog.placement.partitions

    async def remove(self, node: int) -> None:
        """See `ClusterDesk`."""
        if self._registration.members.get(member_key(node)) is None:
            raise NotFound(f"the cluster has no node {node}")
        await self._known.refresh()
        names = [name for name, _key, row in self.named() if node in row.replicas]
        if names:
            raise Conflict(
                f"{len(names)} partitions have a copy on node {node}, such as {min(names)}: move"
                f" them first, with `onelog cluster empty {node}`, or one by one with `onelog"
                f" cluster reassign {min(names)} --to …`; then remove it"
            )
        await self._registration.remove(node)

    # -- versions

    async def version(self) -> int:
        """The inner version that is finalised."""
        return (await self._row())[0].version

    async def _row(self) -> tuple[ClusterRow, int]:
        entry = await self._store.get(CLUSTER)
        if entry is None:
            raise NotFound("etcd holds no cluster of this name")
        return decode_row(entry, ClusterRow), entry.mod_revision

    def supported(self) -> tuple[int, int]:
        """The inner versions that every member speaks. Raises Conflict when that is not known."""
        low, high = VERSIONS
        for key, _member in self._registration.members.rows():
            number = number_of(key)
            found = self._registration.nodes.get(node_key(number))
            if found is None:
                raise Conflict(
                    f"node {number} does not run, so that it is not known what it supports: start"
                    f" it, or take it out with `onelog cluster remove {number}`"
                )
            low = max(low, found.value.inner_versions[0])
            high = min(high, found.value.inner_versions[1])
        return low, high

    async def finalize(self, version: int | None) -> int:
        """See `ClusterDesk`."""
        await self._known.refresh()
        low, high = self.supported()
        wanted = high if version is None else version
        for _ in range(TRIES):
            row, revision = await self._row()
            if wanted < row.version:
                raise InvalidRequest(
                    f"version {row.version} is finalised: it does not go back to {wanted}"
                )
            if not low <= wanted <= high:
                raise Conflict(
                    f"version {wanted} is not spoken by every node: all of them speak {low} to"
                    f" {high}. Upgrade the others first"
                )
            if wanted == row.version:
                return wanted
            value = msgspec.json.encode(msgspec.structs.replace(row, version=wanted))
            result = await self._store.txn(
                [Compare(CLUSTER, "mod_revision", "==", revision)], [Put(CLUSTER, value)]
            )
            if result.succeeded:
                _log.info("a version is finalised", version=wanted)
                return wanted
        raise OutcomeUnknown("the row of the cluster changes all the time: look, then try again")
