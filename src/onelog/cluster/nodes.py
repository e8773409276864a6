"""This node among others: registered, linked, leading and copying; what a broker needs of it.

Rules:
- What lies here is recovered before the node registers: from then on it may be elected.
- A new cluster makes no stream before as many nodes are there as a record needs.
- A stop hands over first: while clients are still served, other nodes take over what this one leads
  (`leave`). Then everything is closed, and the registration ends last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import OnelogError, Timeout, Unavailable
from onelog.cluster.appending import METHOD, InnerAppends
from onelog.cluster.controller import ClusterView
from onelog.cluster.controlling import Controlling
from onelog.cluster.elections import ShardElections
from onelog.cluster.exact_needs import CLAIMS, NEEDS, ExactNeeds, key_of
from onelog.cluster.exchange import FeedExchange
from onelog.cluster.forwards import Forwarder
from onelog.cluster.hosts import HostSettings, ReplicaHost
from onelog.cluster.kept_words import KEPT, THINNED, KeptWords
from onelog.cluster.known import KnownCluster
from onelog.cluster.link.address import parse_address
from onelog.cluster.link.calls import Handler
from onelog.cluster.link.links import LinkIdentity, Links
from onelog.cluster.link.listening import BoundInner
from onelog.cluster.link.security import LinkSecurity
from onelog.cluster.needs_of_nodes import NodePins, OwnBroker
from onelog.cluster.observed import Observed
from onelog.cluster.registration import Registration
from onelog.cluster.reports import METHOD as REPORT
from onelog.cluster.reports import NodeReports
from onelog.cluster.row_store import MetadataRows
from onelog.cluster.suspicion import Suspicion, Suspicions
from onelog.cluster.tenure import Tenure
from onelog.cluster.traffic import NodeTraffic
from onelog.cluster.watching import ReplicaWatch
from onelog.log.needs import NeededOffsets
from onelog.log.stream import Stream
from onelog.log.thinning import Needs
from onelog.log.thinnings import Said
from onelog.metadata.store import MetadataStore
from onelog.observe.logging import get_logger
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

CALM_S: Final = 60.0
"""After so long without a change, leaders go back to the nodes that partitions prefer."""
TOO_FEW: Final = "nodes-wanted"
"""Standing: a new cluster waits for more nodes."""
TAKE_OUT: Final = "node-taken-out"
"""Incidents: a node that seems dead could not be taken out."""
SAY_S: Final = 1.0
LOOK_S: Final = 1.0
MORE_S: Final = 5.0
"""How long a new cluster waits for all nodes that are to have copies."""
MAIN: Final = "main"
"""The first stream of a cluster."""

_log = get_logger("cluster")
T = TypeVar("T")


@dataclass(frozen=True)
class NodePlan:
    """What the configuration says of this node among others."""

    cluster_id: str
    settings: HostSettings
    inner: BoundInner
    advertised: str
    """Where other nodes reach it; empty: where `inner` is bound."""
    security: LinkSecurity
    local: MetadataStore
    listeners: Mapping[str, str]
    """Where clients reach it."""
    drain_s: float
    clock: Clock


class NodeCluster:
    """This node's place among others (`broker/nodes.py`)."""

    def __init__(
        self, store: MetadataStore, registration: Registration, plan: NodePlan, troubles: Troubles
    ) -> None:
        self._store = store
        self.registration = registration
        self._plan = plan
        self._settings = settings = plan.settings
        self._troubles = troubles
        self.node_store: MetadataStore = plan.local
        self._loop = asyncio.get_running_loop()
        self.known = KnownCluster(store, registration, troubles, settings.factor)
        self.exchange = FeedExchange(self._loop.time)
        rows = MetadataRows(store)
        self.host = ReplicaHost(
            registration.node,
            settings,
            self.known,
            self.exchange,
            rows,
            store,
            plan.local,
            troubles,
        )
        self.controlling = Controlling(self._view, rows, troubles)
        self._suspicions = Suspicions(registration.node)
        self.traffic = NodeTraffic(self.known, self.host, self.exchange, self._loop, troubles)
        self.links: Links | None = None
        self.elections: ShardElections | None = None
        self.node_pins: NodePins | None = None
        self.exact: ExactNeeds | None = None
        self.words: KeptWords | None = None
        self.appends: InnerAppends
        self.watch = ReplicaWatch(self.host, self.known, troubles)
        self.reports = NodeReports(
            self.host,
            self.known,
            self.call,
            lambda: iter(()) if self.links is None else self.links.rows(),
            lambda: self.watch.elections,
        )
        self._epochs: dict[int, int] = {}
        self._epoch = 0
        self._calm_at = self._loop.time() + CALM_S
        self._calm_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- as the broker's ClusterNodes

    async def hosting(self, broker: OwnBroker) -> ReplicaHost:
        """See `ClusterNodes`."""
        self.host.catalog = self.known.catalog = broker.streams
        await self.known.open()
        return self.host

    async def join(self, broker: OwnBroker) -> KnownCluster:
        """See `ClusterNodes`."""
        registration = self.registration
        address = self._plan.advertised or str(self._plan.inner.address)
        await registration.open(self._plan.listeners, address)
        self._epoch = registration.epoch
        self.node_pins = NodePins(broker, self.known, self.call, self._loop.time)
        rows = MetadataRows(self._store)
        self.exact = ExactNeeds(broker, self.known, rows, self.call)
        self.words = KeptWords(broker, self.known, self.host.leads, rows, self.call)
        self.appends = InnerAppends(broker.streams, self.known, self.call)
        self.links = Links(
            self._identity(),
            self.traffic,
            self._plan.security,
            self._troubles,
            self._plan.clock,
            {
                "suspect": self._suspected,
                "pins": self.node_pins.answer,
                NEEDS: self.exact.answer_needs,
                CLAIMS: self.exact.answer_claims,
                THINNED: self.words.answer_thinned,
                KEPT: self.words.answer_kept,
                METHOD: self.appends.answer,
                REPORT: self.reports.answer,
            },
        )
        self.exchange.send_frame = self.links.send
        self.traffic.links = self.links
        self.exchange.on_suspicion = self._suspects
        self.exchange.on_link = self._linked
        await self._plan.inner.serve(self.links, self._troubles)
        self.elections = ShardElections(broker.shards, self.host.led_shards, self._troubles)
        self.host.on_role = self.known.streams_changed
        tenure = Tenure(
            registration.ttl_s,
            self._loop.time,
            lambda: registration.kept_at,
            self.links.answered_at,
        )
        self.host.holds = tenure.holds
        broker.shards.is_fresh = lambda shard: tenure.is_kept or self.host.holds_shard(shard)
        self.watch.open()
        self.known.on_rows = self._rows_changed
        self.known.on_change += [
            self.elections.look,
            self.controlling.wake,
            self.traffic.forwarder.look,
        ]
        registration.on_change = self._nodes_changed
        self._nodes_changed()
        self.host.begin(broker.streams, self._epoch)
        self.controlling.open()
        self.node_pins.open()
        await self._until_enough(broker)
        return self.known

    async def _until_enough(self, broker: OwnBroker) -> None:
        """A new cluster: wait for as many nodes as a record needs, and a little for as many as have
        copies."""

        def is_enough(count: int) -> bool:
            known = self.known.up()
            # The watch may be behind: who does not know itself knows nobody who takes a partition.
            is_here = self.registration.node in known
            return is_here and (broker.streams.find(MAIN) is not None or len(known) >= count)

        needed, wanted = self._settings.min_insync, self._settings.factor
        while not is_enough(needed):
            few = Unavailable(
                f"a record of this cluster lies on {needed} nodes before it is answered"
                f" (cluster.min_insync), and {len(self.known.up())} are there: start more nodes"
            )
            self._troubles.stand(TOO_FEW, "cluster", few, blocks=True)
            with contextlib.suppress(Timeout):
                await self.known.until(lambda: is_enough(needed), "nodes are missing", LOOK_S)
        self._troubles.clear(TOO_FEW, "cluster")
        with contextlib.suppress(Timeout):
            await self.known.until(lambda: is_enough(wanted), "nodes are missing", MORE_S)

    def pins(self) -> Mapping[tuple[str, int], int]:
        """See `ClusterNodes`."""
        if self.node_pins is None:
            raise Unavailable("this node has not joined its cluster yet")
        return self.node_pins.lowest()

    def spoken_for(self, stream_id: str, partition: int) -> int | None:
        """See `ClusterNodes`."""
        if self.node_pins is None:
            raise Unavailable("this node has not joined its cluster yet")
        return self.node_pins.spoken_for((stream_id, partition))

    async def exact_needs(self, stream_id: str, partition: int) -> NeededOffsets:
        """See `ClusterNodes`."""
        key = key_of(stream_id, partition)
        here = self.host.led(key)
        if self.exact is None or here is None:
            raise Unavailable(f"this node does not lead {key}")
        starts = [start for _epoch, start in here.epochs.rows()]
        try:
            return await self.exact.of(key, here.high_watermark, starts)
        except OnelogError as error:
            raise Unavailable(f"not every node says what its cursors need: {error}") from error

    async def said(self) -> list[Said]:
        """See `Leaders`."""
        return [] if self.words is None else await self.words.said()

    async def kept(self, said: Said) -> Needs:
        """See `Leaders`."""
        if self.words is None:
            raise Unavailable("this node has not joined its cluster yet")
        return await self.words.kept(said)

    async def append(self, stream: Stream, number: int, data: bytes) -> None:
        """See `ClusterNodes`."""
        await self.appends.append(stream, number, data)

    @property
    def forwards(self) -> Forwarder:
        """See `ClusterNodes`."""
        return self.traffic.forwarder

    @property
    def observers(self) -> Observed:
        """See `ClusterNodes`."""
        return self.host.observed

    async def leave(self) -> None:
        """Let other nodes lead what this one leads, while clients are still served."""
        others = [row for row in self.known.nodes() if row.id != self.registration.node]
        if not self.registration.epoch or not others or not self._plan.drain_s:
            return
        node = self.registration.node

        def is_empty() -> bool:
            rows = self.known.all_rows().values()
            return not any(
                row.leader == node and row.isr.keys() - {node} for row, _revision in rows
            )

        try:
            await self.registration.leaving()
            await self.known.until(
                is_empty, "not all partitions got another leader", self._plan.drain_s
            )
        except OnelogError as error:
            _log.warning("this node stops while it leads", error=str(error))

    async def stop(self) -> None:
        """See `ClusterNodes`."""
        if self._calm_timer is not None:
            self._calm_timer.cancel()
        self.registration.on_change = lambda: None
        self.registration.end()
        self.traffic.forwarder.close()
        await self.watch.close()
        await self.controlling.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.node_pins is not None:
            await self.node_pins.close()
        if self.elections is not None:
            await self.elections.close()
        await self._plan.inner.close()
        await self.host.close()
        if self.links is not None:
            await self.links.close()
        await self.known.close()

    # -- nodes and rows

    def _identity(self) -> LinkIdentity:
        registration = self.registration
        return LinkIdentity(
            cluster_id=self._plan.cluster_id,
            node=registration.node,
            epoch=registration.epoch,
            data_uuid=registration.identity.data_uuid,
        )

    def _nodes_changed(self) -> None:
        registration = self.registration
        assert self.links is not None
        if registration.epoch and registration.epoch != self._epoch:
            self._epoch = registration.epoch
            self.links.register(self._identity())
            self.host.registered(self._epoch)
        found = {}
        for node, text, epoch in self.known.addresses():
            if node != registration.node:
                found[node] = epoch
                if self._epochs.get(node) != epoch:
                    self._suspicions.forget(node)
                    self.links.know(node, parse_address(text), epoch)
        for node in self._epochs.keys() - found.keys():
            self._suspicions.forget(node)
        for node in set(self.links.pairs) - self._members():
            self._start(self.links.forget(node))
        self._epochs = found
        self.host.nodes_changed(self.known.facts())
        self.known.nodes_changed()
        self._stirred()
        self._judge()  # this node may control since, or fewer others have to agree

    def _members(self) -> set[int]:
        return {facts.node for facts in self.known.facts().values()}

    def _rows_changed(self, keys: Sequence[PartitionKey]) -> None:
        self.watch.rows_changed(keys)
        self.host.rows_changed(keys)
        self._stirred()

    # -- controlling

    def _stirred(self) -> None:
        """Something changed: the cluster is not calm for a while."""
        self._calm_at = self._loop.time() + CALM_S
        if self._calm_timer is not None:
            self._calm_timer.cancel()
        self._calm_timer = self._loop.call_at(self._calm_at, self.controlling.wake)
        self.controlling.wake()

    def _view(self) -> ClusterView | None:
        seat = self.registration.seat.revision
        if not seat:
            return None
        return ClusterView(
            controller=seat,
            nodes=self.known.facts(),
            rows=self.known.all_rows(),
            wishes=self.host.wishes(),
            shards=self.known.shards(),
            is_calm=self._loop.time() >= self._calm_at,
        )

    # -- suspicion

    def _suspects(self, node: int, why: str | None) -> None:
        """A link of this node reports another one."""
        said = Suspicion(node, self._epochs.get(node, 0), why or "")
        self._suspicions.report(self.registration.node, said)
        for other in self._epochs.keys() - {node}:
            self._start(self._say(other, said))
        self._judge()

    def _linked(self, node: int) -> None:
        """A node may not have heard what this one reports."""
        for suspect in self._suspicions.own():
            said = Suspicion(suspect, self._epochs.get(suspect, 0), "it is still suspected")
            self._start(self._say(node, said))

    async def _say(self, node: int, said: Suspicion) -> None:
        with contextlib.suppress(OnelogError):  # a report; a lease ends by itself
            await self.call(node, "suspect", said, bool, SAY_S)

    async def _suspected(self, node: int, argument: msgspec.Raw) -> bool:
        """Another node reports one."""
        self._suspicions.report(node, msgspec.msgpack.decode(argument, type=Suspicion))
        self._judge()
        return True

    def _judge(self) -> None:
        registration = self.registration
        epochs = {**self._epochs, registration.node: registration.epoch}
        if not registration.epoch:
            return
        for suspect in self._suspicions.condemned(epochs, self.known.controller):
            self._suspicions.forget(suspect)
            self._start(self._take_out(suspect))

    async def _take_out(self, node: int) -> None:
        try:
            await self.registration.take_out(node)
        except OnelogError as error:
            self._troubles.note(TAKE_OUT, str(node), error)

    # -- calls

    async def call(
        self, node: int, method: str, argument: Any, answer: type[T], timeout_s: float
    ) -> T:
        """See `ClusterNodes`."""
        if self.links is None:
            raise Unavailable("this node has not joined its cluster yet")
        return await self.links.call(node, method, argument, answer, timeout_s)

    def serve(self, method: str, handler: Handler | None) -> None:
        """See `ClusterNodes`."""
        assert self.links is not None, "protocols open after the node has joined"
        if handler is None:
            self.links.handlers.pop(method, None)
        else:
            self.links.handlers[method] = handler

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
