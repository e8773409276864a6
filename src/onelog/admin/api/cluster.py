"""Operations on the cluster: its nodes and partitions, who leads and controls; moves and repairs.

Rule: a partition of a stream that the caller does not see is left out. What changes partitions
needs the role of an administrator, for whom nothing is hidden.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    ADMIN,
    NOTHING,
    OPERATOR,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.base.errors import InvalidRequest
from onelog.cluster.seen import ClusterDesk, SeenCluster, SeenPartition

TAG: Final = "cluster"


class DrainWanted(ApiInput, frozen=True, kw_only=True):
    """How a node is marked."""

    undo: bool = False
    """Take the mark away."""


_Node = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class PartitionQuery(SearchQuery, frozen=True, kw_only=True):
    """Which partitions."""

    troubled: Annotated[
        bool, Meta(description="Only those that are not healthy, or are being moved.")
    ] = False


class MoveWanted(ApiInput, frozen=True, kw_only=True):
    """Where a partition is to lie."""

    to: Annotated[tuple[_Node, ...], Meta(max_length=100)] = ()
    """The nodes; the first one is the preferred leader."""
    cancel: bool = False
    """Stop a move that is under way."""


class ElectionWanted(ApiInput, frozen=True, kw_only=True):
    """Where preferred leaders are elected."""

    partition: Annotated[str, Meta(max_length=1024)] = ""
    """`STREAM/NUMBER`; empty: all partitions."""


class RecoveryWanted(ApiInput, frozen=True, kw_only=True):
    """Which copy of an offline partition is to count."""

    node: _Node
    """It leads with what it has."""
    accept_loss: bool
    """Records that only other nodes have are lost: true says that this is known."""


class VersionWanted(ApiInput, frozen=True, kw_only=True):
    """What all nodes may use."""

    version: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """The inner version; null: the highest that all nodes speak."""


class Elected(msgspec.Struct, frozen=True, kw_only=True):
    """What an election changed."""

    changed: int
    """Partitions with another leader now."""


class Emptied(msgspec.Struct, frozen=True, kw_only=True):
    """What is on its way to other nodes."""

    moved: int


class Finalized(msgspec.Struct, frozen=True, kw_only=True):
    """What is finalised."""

    version: int


class ClusterOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """The paths, and the function for each."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/cluster", role=VIEWER, tag=TAG,
                summary="The cluster: whether it is healthy, its nodes, links and members of etcd.",
                answer=SeenCluster, handler=self.status,
            ),
            ApiOperation(
                method="GET", path="/cluster/partitions", role=VIEWER, tag=TAG,
                summary="Partitions with their leaders, replicas, and how far these are.",
                query=PartitionQuery, answer=Page[SeenPartition], handler=self.partitions,
            ),
            ApiOperation(
                method="POST", path="/cluster/partitions/{partition}/reassign", role=ADMIN,
                tag=TAG, summary="Move a partition to other nodes, or stop a move.",
                body=MoveWanted, answer=NOTHING, status=204, handler=self.reassign,
            ),
            ApiOperation(
                method="POST", path="/cluster/partitions/{partition}/recover", role=ADMIN,
                tag=TAG, summary="Let a node lead an offline partition with what it has.",
                body=RecoveryWanted, answer=NOTHING, status=204, handler=self.recover,
            ),
            ApiOperation(
                method="POST", path="/cluster/elect", role=ADMIN, tag=TAG,
                summary="Let the preferred replicas lead.",
                body=ElectionWanted, answer=Elected, handler=self.elect,
            ),
            ApiOperation(
                method="POST", path="/cluster/finalize", role=ADMIN, tag=TAG,
                summary="Let all nodes use an inner version; it does not go back.",
                body=VersionWanted, answer=Finalized, handler=self.finalize,
            ),
            ApiOperation(
                method="POST", path="/cluster/nodes/{node}/empty", role=ADMIN, tag=TAG,
                summary="Mark a node as draining, and move its copies to other nodes.",
                answer=Emptied, handler=self.empty,
            ),
            ApiOperation(
                method="POST", path="/cluster/nodes/{node}/drain", role=OPERATOR, tag=TAG,
                summary="Let others lead what a node leads; its copies stay. Or undo that.",
                body=DrainWanted, answer=NOTHING, status=204, handler=self.drain,
            ),
            ApiOperation(
                method="DELETE", path="/cluster/nodes/{node}", role=ADMIN, tag=TAG,
                summary="Take a node that does not run, and has no copies, out of the cluster.",
                answer=NOTHING, status=204, handler=self.remove,
            ),
        ]  # fmt: skip
        return rows

    async def status(self, _call: ApiCall[NoQuery, None]) -> SeenCluster:
        """The cluster now."""
        cluster = self._desk.opened.cluster
        if cluster is None:
            return SeenCluster(
                mode="single",
                node=self._desk.info().node_id,
                summary="this node is on its own (cluster.mode = 'single')",
            )
        return await cluster.look()

    async def partitions(self, call: ApiCall[PartitionQuery, None]) -> Page[SeenPartition]:
        """Partitions by name; a node on its own has no replicas to show."""
        cluster = self._desk.opened.cluster
        query, sight = call.query, self._desk.sight(call.caller)
        seen: dict[str, bool] = {}

        def wanted(row: SeenPartition) -> bool:
            if query.troubled and row.state == "healthy":
                return False
            if row.stream not in seen:
                stream = self._desk.broker.streams.find(row.stream)
                seen[row.stream] = stream is not None and self._desk.sees(sight, stream)
            return seen[row.stream] and contains(query.search, row.name, row.state)

        def key(row: SeenPartition) -> tuple[str, int]:
            return row.stream, row.partition

        found = await choose(
            self._desk.share,
            [] if cluster is None else await cluster.partitions(),
            query,
            key,
            kind=tuple[str, int],
            wanted=wanted,
        )
        return full_page(query, found, key)

    async def reassign(self, call: ApiCall[NoQuery, MoveWanted]) -> None:
        """Move a partition, or stop that."""
        if call.body.cancel == bool(call.body.to):
            raise InvalidRequest("say where the partition is to lie (to), or cancel, not both")
        to = None if call.body.cancel else call.body.to
        await self._cluster().reassign(call.names["partition"], to)

    async def recover(self, call: ApiCall[NoQuery, RecoveryWanted]) -> None:
        """Let a node lead with what it has."""
        if not call.body.accept_loss:
            raise InvalidRequest(
                "records that only other nodes have would be lost: say accept_loss = true, if they"
                " will not come back"
            )
        await self._cluster().recover(call.names["partition"], call.body.node)

    async def elect(self, call: ApiCall[NoQuery, ElectionWanted]) -> Elected:
        """Let preferred replicas lead."""
        return Elected(changed=await self._cluster().elect(call.body.partition))

    async def finalize(self, call: ApiCall[NoQuery, VersionWanted]) -> Finalized:
        """Let all nodes use a version."""
        return Finalized(version=await self._cluster().finalize(call.body.version))

    async def empty(self, call: ApiCall[NoQuery, None]) -> Emptied:
        """Move what lies on a node."""
        return Emptied(moved=await self._cluster().empty(_node(call.names["node"])))

    async def drain(self, call: ApiCall[NoQuery, DrainWanted]) -> None:
        """Mark a node."""
        await self._cluster().drain(_node(call.names["node"]), draining=not call.body.undo)

    async def remove(self, call: ApiCall[NoQuery, None]) -> None:
        """Take a node out of the cluster."""
        await self._cluster().remove(_node(call.names["node"]))

    def _cluster(self) -> ClusterDesk:
        cluster = self._desk.opened.cluster
        if cluster is None:
            raise InvalidRequest(
                "this node is on its own (cluster.mode = 'single'): there are no other nodes"
            )
        return cluster


def _node(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise InvalidRequest(f"{text!r} is no node: it has a number, as in node.id")
    return int(text)
