"""The registration of this node: one row on a lease, whose revision is the node's epoch.

Rules:
- A registration is one transaction on the node's two rows as they were read. A restart with the
  same data takes over its own old row at once.
- A lease that is lost is normal: the node registers anew, with a new epoch. Nothing else changes
  here: a lease decides when somebody tries, never whether it counts.
- The node watches its own row. If the row is gone, the node was fenced, and registers anew. If
  another process with the same data took it, this process ends.
- If nobody controls, this node tries to take the seat.
- While etcd is away, the node goes on; a trouble stands.
- A node that has heard nothing of etcd for longer than its lease lasts does not keep it: what it
  asks may arrive, and others would wait for a node that reads nothing and may answer no reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import (
    ConfigError,
    Conflict,
    Fenced,
    NotFound,
    OnelogError,
    OutcomeUnknown,
    Unavailable,
)
from onelog.cluster.identity import NodeIdentity, boot_id, save_identity
from onelog.cluster.link.hello import VERSIONS
from onelog.cluster.node_rows import (
    MEMBERS,
    STOPPING,
    ClusterMember,
    ControllerRow,
    RegisteredNode,
    decode_row,
    member_key,
    next_member,
    node_key,
)
from onelog.cluster.rows import CONTROLLER, NODES
from onelog.cluster.seat import Seat
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Compare, Delete, Entry, MetadataStore, Put
from onelog.observe import Troubles, get_logger

UNREGISTERED: Final = "node-registration"
"""Standing: this node is not registered now."""
RETRY_S: Final = 1.0
TRIES: Final = 20
"""Attempts of one registration, while others change its rows."""
KEEPS_PER_TTL: Final = 3

_log = get_logger("cluster")


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What this node registers."""

    node: int
    name: str
    roles: tuple[str, ...]
    rack: str
    version: str
    ttl_s: float
    data_dir: Path
    has_store: bool = False


class Registration:
    """This node in the cluster, and what it sees of the other nodes."""

    def __init__(
        self,
        store: MetadataStore,
        settings: NodeSettings,
        identity: NodeIdentity,
        troubles: Troubles,
        on_taken: Callable[[], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._identity = identity
        self._troubles = troubles
        self._on_taken = on_taken
        """Called when another process has become this node."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when nodes, members or the controller changed, or this node registered anew."""
        self._process = uuid.uuid4().hex
        self._listeners: dict[str, str] = {}
        self._inner = ""
        self._lease = 0
        self._epoch = 0
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._seating: asyncio.Task[None] | None = None
        self._closing = False
        self.kept_at = float("-inf")
        """When the store was last asked to keep the registration, and did; in the loop's time."""
        self.registered = 0
        """How often this process registered."""
        self.seat = Seat(store, settings.node)
        self.nodes: Projection[RegisteredNode] = Projection(
            store, NODES, lambda row: decode_row(row, RegisteredNode), troubles, self._nodes_changed
        )
        self.members: Projection[ClusterMember] = Projection(
            store,
            MEMBERS,
            lambda row: decode_row(row, ClusterMember),
            troubles,
            lambda _changes: self.on_change(),
        )
        self.stopping: Projection[bool] = Projection(
            store, STOPPING, lambda _row: True, troubles, lambda _changes: self.on_change()
        )
        self.controller: Projection[ControllerRow] = Projection(
            store,
            CONTROLLER,
            lambda row: decode_row(row, ControllerRow),
            troubles,
            self._controller_changed,
        )

    @property
    def epoch(self) -> int:
        """The node epoch; 0: it is not registered now."""
        return self._epoch

    @property
    def node(self) -> int:
        """The number of this node."""
        return self._settings.node

    @property
    def ttl_s(self) -> float:
        """How long it lasts when it is not kept."""
        return self._settings.ttl_s

    @property
    def identity(self) -> NodeIdentity:
        """What the data directory knows of this node."""
        return self._identity

    async def open(self, listeners: Mapping[str, str], inner: str = "") -> None:
        """Register, and stay registered; `inner` is where other nodes reach this one. Raises
        ConfigError when another node has this number."""
        self._listeners, self._inner = dict(listeners), inner
        await self.members.open()
        await self.nodes.open()
        await self.stopping.open()
        await self.controller.open()
        await self._register()
        self._task = asyncio.create_task(self._live(), name="node-registration")
        self._try_seat()

    def end(self) -> None:
        """The links of this node end: others may take it out, and it does not come back."""
        self._closing = True

    async def close(self, *, is_clean: bool) -> None:
        """Leave. `is_clean`: everything of this process is closed and on disk."""
        self.end()
        for task in (self._task, self._seating):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._task = self._seating = None
        if is_clean and self.registered:
            self._identity = msgspec.structs.replace(self._identity, is_clean=True)
            await asyncio.to_thread(save_identity, self._settings.data_dir, self._identity)
        if self._epoch:
            with contextlib.suppress(OnelogError):  # it ends by itself
                await self._store.revoke(self._lease)
        self._epoch = 0
        for rows in (self.nodes, self.members, self.stopping, self.controller):
            await rows.close()

    async def leaving(self) -> None:
        """This node is about to stop: others are to lead what it leads. The word ends with the
        registration."""
        await self._store.put(f"{STOPPING}{self.node}", b"", lease=self._lease)

    def is_stopping(self, node: int) -> bool:
        """Whether a node is about to stop."""
        return self.stopping.get(f"{STOPPING}{node}") is not None

    # -- commands

    async def drain(self, node: int, *, draining: bool) -> None:
        """Let others lead what a node leads; or take that mark away. Raises NotFound, Conflict."""
        key = member_key(node)
        found = self.members.get(key)
        if found is None:
            raise NotFound(f"the cluster has no node {node}")
        if found.value.draining != draining:
            row = msgspec.structs.replace(found.value, draining=draining)
            await self.members.put(key, msgspec.json.encode(row))

    async def remove(self, node: int) -> None:
        """Take a node that does not run, and has no replica, out of the cluster. Raises NotFound,
        Conflict."""
        key = member_key(node)
        if self.members.get(key) is None:
            raise NotFound(f"the cluster has no node {node}")
        if self.nodes.get(node_key(node)) is not None:
            raise Conflict(f"node {node} runs: stop it first")
        await self.members.write([Delete(key)])

    # -- registering

    async def _register(self) -> None:
        settings = self._settings
        for _ in range(TRIES):
            member, node = (
                await self._store.get(member_key(settings.node)),
                await self._store.get(node_key(settings.node)),
            )
            if node is not None:
                await self._check_old(node)
            if await self._write_rows(member, node):
                return
        raise Unavailable(f"the rows of node {settings.node} change all the time; try again")

    async def _check_old(self, entry: Entry) -> None:
        """The row that is there now: may it be taken over?"""
        row = decode_row(entry, RegisteredNode)
        if row.data_uuid != self._identity.data_uuid:
            raise ConfigError(
                f"node.id = {self.node} is taken: a node with other data is registered with it."
                " Give each node a number of its own. If that node is gone for good, wait until its"
                f" registration ends ({self._settings.ttl_s:g} s), then start again"
            )
        if row.process != self._process and self.registered:
            raise Fenced(f"another process with the same data registered as node {self.node}")

    async def _write_rows(self, member: Entry | None, node: Entry | None) -> bool:
        """Write both rows if they are as they were read. Whether the node is registered."""
        settings, identity = self._settings, self._identity
        before = None if member is None else decode_row(member, ClusterMember)
        at = 0 if member is None else member.mod_revision
        now = ClusterMember(
            data_uuid=identity.data_uuid,
            name=settings.name,
            roles=settings.roles,
            rack=settings.rack,
            version=settings.version,
            is_clean=self._was_clean(before),
            boot_id=await asyncio.to_thread(boot_id),
            has_store=settings.has_store,
        )
        row = next_member(before, at, now, is_same_process=self.registered > 0)
        granted_at = asyncio.get_running_loop().time()
        lease = await self._store.grant(settings.ttl_s)
        mine = msgspec.json.encode(
            RegisteredNode(
                data_uuid=identity.data_uuid,
                process=self._process,
                listeners=self._listeners,
                inner=self._inner,
                version=settings.version,
                inner_versions=VERSIONS,
            )
        )
        own, member_row = node_key(settings.node), member_key(settings.node)
        compares = (
            Compare(member_row, "mod_revision", "==", at),
            Compare(own, "mod_revision", "==", 0 if node is None else node.mod_revision),
        )
        ops = (
            Put(own, mine, lease),
            Put(member_row, msgspec.json.encode(row)),
            Delete(f"{STOPPING}{settings.node}"),
        )
        try:
            result = await self._store.txn(compares, ops)
        except OutcomeUnknown:
            found = await self._store.get(own)
            if found is None or found.lease != lease:
                return False
            epoch = found.mod_revision
        else:
            if not result.succeeded:
                return False
            epoch = result.revision
        self._identity = msgspec.structs.replace(
            identity, registrations=row.registrations, epoch=epoch, is_clean=False
        )
        await asyncio.to_thread(save_identity, settings.data_dir, self._identity)
        self._lease, self._epoch, self.kept_at = lease, epoch, granted_at
        self.registered += 1
        self._lost.clear()
        self._troubles.clear(UNREGISTERED, str(self.node))
        _log.info("registered", node=self.node, epoch=epoch, is_clean=row.is_clean)
        return True

    def _was_clean(self, before: ClusterMember | None) -> bool:
        """Whether nothing of this node was lost since its last registration."""
        if self.registered:
            return True  # this process lives
        if before is None:
            return True
        known = self._identity
        return known.is_clean and known.registrations == before.registrations

    # -- staying registered

    async def _live(self) -> None:
        while True:
            try:
                if self._epoch:
                    await self._keep()
                if self._closing:
                    return
                self._epoch = 0
                self.seat.leave()
                await self._register()
                self.on_change()
                self._try_seat()
            except Fenced as error:
                _log.error("this process is no longer the node and ends", error=str(error))
                self._troubles.stand(UNREGISTERED, str(self.node), error, blocks=True)
                self._on_taken()
                return
            except OnelogError as error:
                self._troubles.stand(UNREGISTERED, str(self.node), error, blocks=False)
                await asyncio.sleep(RETRY_S)

    async def _keep(self) -> None:
        """Keep the lease alive until it is lost, or the row is."""
        wait_s = interval_s = self._settings.ttl_s / KEEPS_PER_TTL
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._lost.wait()
                    return
            asked_at = asyncio.get_running_loop().time()
            try:
                if asked_at - self.kept_at > self._settings.ttl_s:
                    await self._store.get(node_key(self.node))  # etcd is heard again, or it raises
                await self._store.keep_alive(self._lease)
            except NotFound:
                _log.warning("the lease of this node was lost", node=self.node, epoch=self._epoch)
                return
            except OnelogError as error:
                self._troubles.stand(UNREGISTERED, str(self.node), error, blocks=False)
                wait_s = min(RETRY_S, interval_s)
            else:
                self.kept_at = asked_at
                self._troubles.clear(UNREGISTERED, str(self.node))
                self._try_seat()
                wait_s = interval_s

    def _nodes_changed(self, changes: Sequence[Change[RegisteredNode]]) -> None:
        own = node_key(self.node)
        if self._epoch and any(change.key == own for change in changes):
            found = self.nodes.get(own)
            if (found is None or found.revision > self._epoch) and not self._closing:
                _log.warning("this node was fenced", node=self.node, epoch=self._epoch)
                self._lost.set()
        self.on_change()

    # -- the seat of the controller

    def _controller_changed(self, _changes: Sequence[Change[ControllerRow]]) -> None:
        self._try_seat()
        self.on_change()

    def _try_seat(self) -> None:
        """See who controls; if nobody does, try."""
        found = self.controller.get(CONTROLLER)
        if found is not None:
            is_mine = found.value == ControllerRow(node=self.node, node_epoch=self._epoch)
            if is_mine and not self.seat.revision:
                self.seat.adopt(found.revision)
            elif not is_mine:
                self.seat.leave()
            return
        if self._epoch and not self._closing and (self._seating is None or self._seating.done()):
            self._seating = asyncio.create_task(self._take_seat(), name="controller-seat")

    async def _take_seat(self) -> None:
        with contextlib.suppress(OnelogError):  # the next change, or registration, tries again
            if await self.seat.take(self._epoch, self._lease):
                _log.info("this node controls", node=self.node, revision=self.seat.revision)
                self.on_change()

    async def take_out(self, node: int) -> None:
        """End the registration of a node that seems dead. If it lives, it registers anew.

        A controller that seems dead is replaced first. Raises Fenced, Unavailable.
        """
        found = self.controller.get(CONTROLLER)
        if found is not None and found.value.node == node:
            await self.seat.take(self._epoch, self._lease, over=found.revision)
        row = self.nodes.get(node_key(node))
        if row is None or not self.seat.revision:
            return
        key = node_key(node)
        _log.warning("a node is taken out", node=node, epoch=row.revision)
        await self.seat.write((Compare(key, "mod_revision", "==", row.revision),), (Delete(key),))
