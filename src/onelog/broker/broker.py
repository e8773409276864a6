"""The door: the one object through which protocols and programs reach the log.

Rules: it owns everything below it and closes it in order. A floor above it has topics, publishing,
cursors, streams and sessions through the broker, and reaches nothing below it in another way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotLeader, Unavailable
from onelog.base.ids import Offset
from onelog.broker.answers import Published, Several, Single
from onelog.broker.audit import AuditSink, NoAudit
from onelog.broker.backups import Backups
from onelog.broker.cursors import CursorDesk
from onelog.broker.hooks import Authorizer, Principal, Quotas, Unlimited
from onelog.broker.kept import KeptTable
from onelog.broker.live import Live
from onelog.broker.node_calls import NodeCalls, NoOtherNodes
from onelog.broker.nodes import ClusterNodes
from onelog.broker.objects import NO_PRICES, CacheSettings, Objects
from onelog.broker.observing import Observing
from onelog.broker.publish import Publisher
from onelog.broker.sessions import SessionRecord, Sessions
from onelog.broker.shards import Shards
from onelog.broker.spans import Spans
from onelog.broker.views import NamedViews
from onelog.broker.write_times import NotedPublisher
from onelog.cursors.checkpoint import STREAM as CURSORS
from onelog.cursors.checkpoint import CheckpointStore
from onelog.cursors.sources import SourceRegistry
from onelog.log.catalog import Catalog
from onelog.log.cluster_map import ClusterMap, LoneNode
from onelog.log.config import Retention, StreamConfig
from onelog.log.couriers import REMOTE
from onelog.log.freezing import freeze
from onelog.log.handle import PartitionHandle
from onelog.log.internal import fix_placement, made_once
from onelog.log.maintenance import Maintenance
from onelog.log.needs import NeededOffsets
from onelog.log.stream import Stream
from onelog.log.syncer import Syncer
from onelog.log.thinnings import Thinnings
from onelog.log.tier_config import ColdFormat, StoreSupport
from onelog.log.tier_tasks import Tiers
from onelog.log.tiering import TierLimits
from onelog.metadata.store import MetadataStore
from onelog.objects.counts import Prices
from onelog.objects.store import StoreSettings
from onelog.observe.logging import get_logger
from onelog.observe.troubles import Troubles
from onelog.record.record import Message
from onelog.security.access.listing import AccessList
from onelog.security.quotas.table import BURST_S, PATIENCE_S, ClientQuotas
from onelog.storage.engine import Engine

MAIN = "main"
"""The built-in stream: the home of every topic that no other stream captures."""
CHECKPOINT = "cursor-checkpoint"
"""Incidents: positions of cursors could not be written; they are tried again."""
SESSION = "session-end"
"""Incidents: a session could not be ended; it is tried again."""

_log = get_logger("broker")

T = TypeVar("T")

MAIN_CONFIG = StreamConfig(
    name=MAIN, captures=("#",), partitions=8, retention=Retention(bytes=10 * 1000**3)
)


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a broker; all of them have defaults."""

    node: int = 0
    """The number of this node."""
    main: StreamConfig = MAIN_CONFIG
    checkpoint_interval_s: float = 1.0
    maintenance_interval_s: float = 30.0
    flush_interval_s: float = 1.0
    sync_threads: int = 4
    chore_threads: int = 4
    helper_bytes_min: int = 0
    """Compactions of at least so many bytes are judged in a process of their own; 0: never."""
    internal_partitions: int = 1
    """Of each internal stream that keeps rows by name; fixed when the data directory is made."""
    elected: bool = False
    """Whether elections decide which shards this node owns, by `Shards.lead` and `lose`. False:
    it owns all of them."""
    reserved: tuple[str, ...] = ()
    """How names of streams begin that nobody but the broker makes."""
    quota_burst_s: float = BURST_S
    """A client that was quiet may do at once what its quota gives it in so many seconds."""
    quota_patience_s: float = PATIENCE_S
    """How long a client is held back where its protocol has an error for more."""
    page_cache_bytes: int = 0
    """Newest bytes of the log that stay in the system's page cache; 0: the system decides."""
    store: StoreSettings | None = None
    """The object store; None: there is none."""
    store_couriers: int = REMOTE
    """Threads that read from it."""
    store_cache: CacheSettings = CacheSettings()
    """What of it is kept here."""
    store_prices: Prices = NO_PRICES
    tier_formats: tuple[ColdFormat, ...] = (ColdFormat.LOG,)
    """How this broker can write the history of streams into the store."""
    tier_catalog: str = ""
    """Where tables are registered; empty: in a file of the data directory."""
    tier_limits: TierLimits = TierLimits()
    traced: bool = False
    """Whether writes are noted, for the spans of traced messages."""


class Broker:
    """A running broker. Make one with `Broker.open`."""

    def __init__(
        self,
        store: MetadataStore,
        engines: Mapping[str, Engine],
        clock: Clock,
        settings: BrokerSettings,
        troubles: Troubles | None = None,
        scratch: Path | None = None,
        nodes: ClusterNodes | None = None,
    ) -> None:
        self.store = store
        self.nodes = nodes
        """The other nodes; None: this one is on its own."""
        self._has_cursors = False
        self.troubles = troubles or Troubles(clock)
        """The register of isolated failures."""
        self._engines = engines
        self._clock = clock
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._syncer = Syncer(settings.sync_threads, self.troubles, chores=settings.chore_threads)
        local = None if nodes is None else nodes.node_store
        self.streams = Catalog(store, engines, self._syncer, clock, self.troubles, local)
        self.streams.checks.reserved = settings.reserved
        if settings.main.engine == "object":  # nothing of this broker needs a disk
            self.streams.own_engine = "object"
        couriers = self.streams.shared.couriers.remote
        if settings.store is not None:
            couriers.configure(settings.store_couriers, settings.store.deadline_ms / 1000)
            self.streams.checks.store_support = StoreSupport(
                url=settings.store.url,
                formats=settings.tier_formats,
                catalog=settings.tier_catalog,
            )
        self.cluster: ClusterMap = LoneNode(settings.node)
        """The nodes, and who leads and owns what."""
        self.calls: NodeCalls = nodes or NoOtherNodes()
        """Asks the other nodes. Set before a protocol opens."""
        self.shards = Shards(self.troubles, self._owner_of)
        """The names that this node owns, and the services that keep their rows."""
        self.objects = Objects(settings.store_prices, couriers, clock, self.troubles)
        """The object store, if the assembly hands one over."""
        self.access = AccessList(store, clock, self.troubles)
        """The access list of the store."""
        self.client_quotas = ClientQuotas(
            store,
            clock,
            self.troubles,
            burst_s=settings.quota_burst_s,
            patience_s=settings.quota_patience_s,
        )
        """The quotas of the store, which hold connections back."""
        self.authorizer: Authorizer
        """Who decides: the access list, unless the program that runs the broker does."""
        self.audit: AuditSink = NoAudit()
        """What notes administrative changes and failed logins; an `AuditTrail` in a server."""
        self.publisher: Publisher
        self.traces: Spans | None = None
        """Makes spans of deliveries; None: tracing is off. Set before a protocol opens."""
        self.cursors: CursorDesk
        self.observing: Observing | None = None
        """Copies of partitions of other nodes, for readers of this one; None: it has everything."""
        self.sessions: Sessions
        self.views: NamedViews
        self.maintenance: Maintenance
        self.tiers: Tiers
        self.backups = Backups(
            partial(freeze, self.streams, engines, store), scratch, clock, self.troubles
        )

    @classmethod
    async def open(  # noqa: PLR0913 - each is named by the caller
        cls,
        store: MetadataStore,
        engines: Mapping[str, Engine],
        clock: Clock,
        settings: BrokerSettings | None = None,
        *,
        authorizer: Authorizer | None = None,
        quotas: Quotas | None = None,
        troubles: Troubles | None = None,
        scratch: Path | None = None,
        nodes: ClusterNodes | None = None,
    ) -> Broker:
        """Recover every stream and cursor. The broker is ready to serve when this returns.

        Backups put links to files into the folder `scratch`; without one there are none. `nodes`
        are the other nodes; None: this one is on its own.
        """
        settings = settings or BrokerSettings()
        broker = cls(store, engines, clock, settings, troubles, scratch, nodes)
        try:
            await broker._start(authorizer or broker.access, quotas or Unlimited())
        except BaseException:
            if nodes is not None:
                await nodes.stop()
            await broker._close_storage()
            raise
        return broker

    async def _start(self, authorizer: Authorizer, quotas: Quotas) -> None:
        streams, clock = self.streams, self._clock
        self.authorizer = authorizer
        await self.access.open()
        await self.client_quotas.open()
        if self.nodes is not None:
            streams.hosting = await self.nodes.hosting(self)
        await streams.open()
        for key in streams.orphans:
            _log.warning(
                "data of an unknown stream is left alone", partition="/".join(map(str, key))
            )
        streams.placement = await fix_placement(
            self.store, self._settings.internal_partitions, is_new=streams.find(MAIN) is None
        )
        self.shards.open(streams.placement, led=not self._settings.elected)
        if self.nodes is not None:
            self.cluster = await self.nodes.join(self)
        await self.own_stream(self._settings.main)
        # The publisher hears of a change first: staged records go to the old home before the
        # cursors note where that home ends.
        make = NotedPublisher if self._settings.traced else Publisher
        forwards = None if self.nodes is None else self.nodes.forwards
        self.publisher = make(streams, clock, authorizer, quotas, self.troubles, forwards)
        registry = SourceRegistry(streams)
        checkpoints = await CheckpointStore.make(
            streams, clock, self._settings.checkpoint_interval_s
        )
        checkpoints.on_error = partial(self.troubles.note, CHECKPOINT, CURSORS)
        checkpoints.node_of = self._owner_of
        self.cursors = CursorDesk(
            registry, checkpoints, self.publisher, clock, authorizer, self.troubles
        )
        self._has_cursors = True
        if self.nodes is not None:
            self.observing = Observing(streams, self.cursors, self.nodes.observers, self.troubles)
        await self.shards.register(self.cursors)
        self.sessions = Sessions(streams, clock, self._end_session, self.shards)
        self.sessions.on_error = partial(self.troubles.note, SESSION, "sessions")
        await self.sessions.open(self.store, made_now=self._settings.elected)
        await self.shards.register(self.sessions)
        self.views = NamedViews(self.store, clock, self.troubles)
        await self.views.open()
        self.maintenance = Maintenance(
            streams,
            self._syncer,
            clock,
            self._pin,
            needs=self._needs,
            interval_s=self._settings.maintenance_interval_s,
            flush_interval_s=self._settings.flush_interval_s,
            helper_bytes_min=self._settings.helper_bytes_min,
        )
        self.maintenance.visits.spoken_for = self._spoken_for
        if self.nodes is not None:
            self.maintenance.thinnings.leaders, self.maintenance.thinnings.tells = self.nodes, True
        tiering = self.maintenance.tiering
        tiering.limits = self._settings.tier_limits
        self.tiers = Tiers(streams, tiering, clock, self.troubles)
        await self.backups.open()
        self.maintenance.start()

    def _owner_of(self, name: bytes) -> int:
        return self.cluster.owner(name)

    def _pin(self, stream: str, number: int) -> Offset | None:
        key = (self.streams.get(stream).record.id, number)
        found = [self.cursors.pins.lowest().get(key)]
        if self.nodes is not None:
            found.append(self.nodes.pins().get(key))
        pins = [pin for pin in found if pin is not None]
        return Offset(min(pins)) if pins else None

    def _spoken_for(self, stream: str, number: int) -> Offset | None:
        if self.nodes is None:
            return None
        found = self.nodes.spoken_for(self.streams.get(stream).record.id, number)
        return None if found is None else Offset(found)

    def lowest_needs(self) -> Mapping[tuple[str, int], int]:
        """The lowest offsets that durable cursors of the shards here need, by stream id and
        partition. Raises Unavailable."""
        if not self._has_cursors:
            raise Unavailable("this node has not opened its cursors yet")
        return self.cursors.pins.lowest()

    def exact_needs(self, stream_id: str, number: int) -> NeededOffsets:
        """The records of a partition that durable cursors of the shards here need. Raises
        Unavailable."""
        if not self._has_cursors:
            raise Unavailable("this node has not opened its cursors yet")
        return self.cursors.pins.needs(stream_id, number)

    @property
    def claims(self) -> int:
        """How often a cursor of the shards here came to need what none needed before."""
        return self.cursors.pins.claims if self._has_cursors else 0

    @property
    def thinnings(self) -> Thinnings | None:
        """What thins the partitions here; None before it is open."""
        maintenance: Maintenance | None = getattr(self, "maintenance", None)
        return None if maintenance is None else maintenance.thinnings

    async def _needs(self, stream: str, number: int) -> NeededOffsets | None:
        stream_id = self.streams.get(stream).record.id
        if self.nodes is not None:
            return await self.nodes.exact_needs(stream_id, number)
        return self.cursors.pins.needs(stream_id, number)

    async def _end_session(self, record: SessionRecord) -> None:
        for name in record.cursors:
            if self.cursors.kept(name) is not None or self.cursors.find(name) is not None:
                await self.cursors.delete(name)

    # -- shortcuts for the two most frequent calls

    async def publish(
        self, message: Message, *, principal: Principal, partition: int | None = None
    ) -> Published:
        """Publish one message; returns when it is durable (I4)."""
        call = Single(self._loop.create_future())
        self.publisher.publish((message,), call, principal=principal, partition=partition)
        return await call.future

    async def publish_many(
        self,
        messages: Sequence[Message],
        *,
        principal: Principal,
        partition: int | None = None,
    ) -> list[Published]:
        """Publish messages in order; returns when all of them are durable (I4)."""
        if not messages:
            return []
        call = Several(len(messages), self._loop.create_future())
        self.publisher.publish(messages, call, principal=principal, partition=partition)
        return await call.future

    async def own_stream(self, config: StreamConfig) -> Stream:
        """A stream of the broker's own, which is made if no node has made it."""
        return self.streams.find(config.name) or await made_once(self.streams, config)

    async def delete_records(self, stream: str, partition: int, before: int) -> None:
        """Delete the records of a partition below an offset, durably."""
        await self.streams.get(stream).partition(partition).trim(Offset(before))

    async def open_kept(self, name: str) -> KeptTable:
        """A protocol's own rows by key, kept in the internal stream of this name."""
        return await KeptTable.open(self.streams, self._clock, name)

    async def make_kept(self, name: str, name_of: Callable[[bytes], bytes] = bytes) -> KeptTable:
        """As `open_kept`, for a service that reads the rows of each shard when it takes it."""
        return await KeptTable.make(self.streams, self._clock, name, name_of)

    def new_live(self, owner: str) -> Live:
        """A live feed with positions of its own, for a protocol that follows the end."""
        return Live(self.streams, self.troubles, owner, self._clock, self._loop.call_soon)

    def in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run work that would hold the loop in one of the broker's threads for chores."""
        return self._syncer.chores.run(work)

    def syncs(self) -> int:
        """Group commits since the start."""
        return sum(row.syncs for stream in self.streams.streams() for row in stream.partitions)

    def stopped_partitions(self) -> list[PartitionHandle]:
        """Partitions that refuse work although they lie here, for the health check."""
        return [
            partition
            for stream in self.streams.streams()
            for partition in stream.partitions
            if partition.stopped is not None and not isinstance(partition.stopped, NotLeader)
        ]

    # -- the end

    async def close(self) -> None:
        """Write staged records, save cursors, close every partition cleanly."""
        self.publisher.close()
        try:
            await self.backups.close()
            await self.objects.close()
            await self.tiers.close()
            await self.maintenance.stop()
            await self.sessions.close()
            await self.cursors.close()
            await self.views.close()
            if self.observing is not None:
                await self.observing.close()
            if self.nodes is not None:
                await self.nodes.stop()
        finally:  # whatever failed, the partitions are closed
            await self._close_storage()

    async def _close_storage(self) -> None:
        # In reverse order of opening. One that fails to close does not keep the others open.
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._syncer.close)
            closing.push_async_callback(self.store.close)
            closing.push_async_callback(self.access.close)
            closing.push_async_callback(self.client_quotas.close)
            for engine in self._engines.values():
                closing.push_async_callback(self._syncer.chores.run, engine.close)
            closing.push_async_callback(self.streams.close)
