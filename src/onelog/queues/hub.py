"""All queues of a node: virtual hosts, the follower of the log, start and end.

Rules: opened after the broker. First exchanges, queues and bindings are read back, queues get their
places again, and commits that a crash interrupted are finished; only then may a protocol use them.
It knows no protocol: consumers are `Consumer`s, and `open_letter` opens a dead message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from onelog.base.clock import Clock
from onelog.base.errors import NotLeader, OnelogError, PartitionStopped
from onelog.broker import Broker, Cold, Delete, PartitionHandle, Put, Record, RoutedCursor
from onelog.broker.hanging import hang
from onelog.config import Config
from onelog.net import OwnedTasks
from onelog.queues.addresses import DEFAULT_VHOST
from onelog.queues.dead_letters import OpenLetter
from onelog.queues.definitions import MADE
from onelog.queues.exchanges import Binding, ExchangeRecord
from onelog.queues.following import Follower, note_positions
from onelog.queues.intents import Intents, Settlement
from onelog.queues.leading import Leading
from onelog.queues.queue import Queue
from onelog.queues.ready import pack, unpack
from onelog.queues.recovery import Recovery
from onelog.queues.settings import QueueRecord
from onelog.queues.streams import drop_unused
from onelog.queues.topology import RowChange, Topology
from onelog.queues.vhosts import CURSOR_PREFIX, TRANSIENT_PREFIX, VirtualHost

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 5.0
"""How long closing waits for commands, if the metadata store does not answer."""

BACKGROUND: Final = "amqp-background"
"""Incidents: work that belongs to no connection failed."""

CLEAN_KEY: Final = "amqp/clean"
"""The row exists when the last run ended in order."""

QUEUE_COUNTERS: Final = (
    "published",
    "delivered",
    "delivered_no_ack",
    "got",
    "got_no_ack",
    "got_nothing",
    "redelivered",
    "acked",
)
"""The counters of a queue."""


class QueueCounters:
    """Plain numbers, read by the metrics."""

    def __init__(self) -> None:
        self.dead_lettered = 0
        self.declared = 0
        self.made = 0
        self.deleted = 0
        self.of_deleted: dict[str, int] = dict.fromkeys(QUEUE_COUNTERS, 0)
        """The counts of queues that were deleted."""

    def queue_gone(self, queue: Queue) -> None:
        """A queue was deleted: its counts stay in the total."""
        self.deleted += 1
        for name in QUEUE_COUNTERS:
            self.of_deleted[name] += getattr(queue, name)


class VirtualHosts:
    """All virtual hosts by name."""

    def __init__(self, hub: QueueHub) -> None:
        self._hub = hub
        self._found: dict[str, VirtualHost] = {DEFAULT_VHOST: VirtualHost(hub, DEFAULT_VHOST)}

    def find(self, name: str) -> VirtualHost | None:
        """A virtual host by name; None: there is none."""
        return self._found.get(name)

    def add(self, name: str) -> VirtualHost:
        """A virtual host by name, made if it does not exist."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = VirtualHost(self._hub, name)
        return found

    def remove(self, name: str) -> None:
        """A virtual host is gone."""
        self._found.pop(name).is_gone = True

    @property
    def have_queues(self) -> bool:
        """Whether any of them has a queue."""
        return any(vhost.queues for vhost in self._found.values())

    def all(self) -> list[VirtualHost]:
        """Every virtual host, by name."""
        return [self._found[name] for name in sorted(self._found)]


class QueueHub:
    """Make one, then `open` it before the first consumer."""

    def __init__(
        self, broker: Broker, config: Config, clock: Clock, open_letter: OpenLetter
    ) -> None:
        self.broker = broker
        self.config = config
        self.limits = config.amqp.limits
        self.clock = clock
        self.open_letter = open_letter
        self.loop = asyncio.get_running_loop()
        self.counters = QueueCounters()
        self.follower = Follower(self)
        self.topology = Topology(broker.store, broker.troubles, self._apply)
        self.vhosts = VirtualHosts(self)
        self.generation = 0
        """Counts changes that may change the route of a publish."""
        self.intents: Intents
        self.saw_expiry = False
        """Whether any message with an expiration was ever seen: until then no head is watched."""
        self.is_over = False
        """Whether all of it is the next owner's: nothing is deleted any more."""
        self.leading = Leading(broker) if broker.shards.is_elected else None
        self._undo = ExitStack()
        self._tasks = OwnedTasks(self.loop)
        self._changes: set[asyncio.Task[Any]] = set()
        """Commands under way."""

    # -- start and end

    async def open(self) -> None:
        """Recover declarations and the messages that wait in queues."""
        for name in self.config.amqp.vhosts.split(","):
            if name.strip():
                self.vhosts.add(name.strip())
        is_clean = await self._take_clean_mark()
        queues = await self._read_topology()
        created_ms = {queue.cursor.name: _created_ms(queue.cursor) for queue in queues}
        self.saw_expiry = bool(queues)
        await Recovery(self).catch_up(queues, created_ms, is_clean=is_clean)
        self.topology.follow()
        for vhost in self.vhosts.all():
            await vhost.rows.drop_transient()
        self.topology_changed()
        self.follower.live.go()
        for queue in queues:
            await self.broker.cursors.adopt(queue.cursor)
        self.intents = await Intents.open(self.broker, self.settle_again, self._save_settled)
        for queue in queues:
            queue.expiry.watch()
        if self.leading is not None:
            await self.leading.open()
        hang(self._undo, self.broker.streams.on_change, self._streams_changed)
        hang(self._undo, self.broker.authorizer.on_change, self._rights_changed)
        hang(self._undo, self.broker.maintenance.after_trim, self._trimmed)

    async def abandon(self) -> None:
        """It could not be opened: release everything, so that another can be opened."""
        self.is_over = True
        self._undo.close()
        if self.leading is not None:
            await self.leading.close()
        await self.topology.close()
        self.follower.live.stop()
        intents: Intents | None = getattr(self, "intents", None)
        if intents is not None:
            await intents.close()
        for vhost in self.vhosts.all():
            for queue in vhost.queues.values():
                queue.close()
                self.broker.cursors.abandon(queue.cursor)
        self._tasks.cancel()

    async def _take_clean_mark(self) -> bool:
        """Whether the last run ended in order. The mark is removed, so it counts once."""
        found = await self.broker.store.get(CLEAN_KEY)
        if found is not None:
            await self.broker.store.txn([], [Delete(CLEAN_KEY)])
        return found is not None

    async def _read_topology(self) -> list[Queue]:
        queues = []
        for key, row in await self.topology.open():
            vhost = self.vhosts.add(row.vhost)
            if isinstance(row.record, ExchangeRecord):
                vhost.router.add_exchange(row.record)
            elif isinstance(row.record, QueueRecord):
                queues.append(self._restore_queue(vhost, row.record))
            elif isinstance(row.record, Binding):
                vhost.rows.restore_binding(key, row.record)
        await self._drop_cursors({queue.cursor.name for queue in queues})
        return queues

    async def _drop_cursors(self, needed: set[str]) -> None:
        """Forget queues of an earlier run that were not kept, or that a crash left half deleted."""
        for name in self.broker.cursors.names():
            if name.startswith((CURSOR_PREFIX, TRANSIENT_PREFIX)) and name not in needed:
                await self.broker.cursors.delete(name)

    def _restore_queue(self, vhost: VirtualHost, record: QueueRecord) -> Queue:
        name = vhost.cursor_name(record)
        state = self.broker.cursors.kept(name)
        if state is None:
            filters = (f"{vhost.name}/{record.name}",)
            cursor = RoutedCursor(name, filters, b"%d" % self.clock.now_ms())
        else:
            cursor = RoutedCursor.restore(state, self.broker.cursors.parts(name))
        return vhost.restore_queue(record, cursor)

    def settle_again(self, vhost: str, rows: Sequence[Settlement]) -> None:
        """Settle again what a commit settled that a crash interrupted."""
        by_queue: dict[Queue, dict[int, str]] = {}
        for row in rows:
            queue = self._queue_of(vhost, row)
            stream_id, partition, offset = row.place
            source = self.follower.live.find((stream_id, partition))
            if queue is not None and source is not None:
                by_queue.setdefault(queue, {})[pack(source.number, offset)] = row.kind
        for queue, places in by_queue.items():
            queue.settled_again(places)

    async def _save_settled(self, vhost: str, rows: Sequence[Settlement]) -> None:
        queues = {queue for row in rows if (queue := self._queue_of(vhost, row)) is not None}
        await self.broker.cursors.save(*(queue.cursor for queue in queues))

    def _queue_of(self, vhost: str, row: Settlement) -> Queue | None:
        found = self.vhosts.find(vhost)
        return None if found is None else found.queues.get(row.queue)

    async def close(self) -> None:
        """Save queues, say that all is in order; nobody uses them any more."""
        if self._changes:
            await asyncio.wait(self._changes, timeout=CLOSE_TIMEOUT_S)
        if self.leading is not None:
            await self.leading.close()
        await self.intents.close()
        self.follower.settle_up()  # a closed queue notes nothing more
        queues = [queue for vhost in self.vhosts.all() for queue in vhost.queues.values()]
        for queue in queues:
            queue.close()
        self._tasks.cancel()
        await self.topology.close()
        kept = [row.cursor for row in queues if row.record.is_kept]
        if self.leading is not None:  # nobody knows who owned them last
            await self._save_at_last(kept)
            return
        await self.broker.cursors.save(*kept)
        await self.broker.store.txn([], [Put(CLEAN_KEY, b"")])

    async def _save_at_last(self, cursors: Sequence[RoutedCursor]) -> None:
        """Save as far as other nodes can take it: they may have stopped already."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.broker.cursors.save(*cursors)
        except NotLeader:
            pass  # another node has the queues
        except (OnelogError, TimeoutError) as error:
            self.broker.troubles.note(BACKGROUND, "amqp", error)

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something that belongs to no connection."""
        return self._tasks.run(work, partial(self.broker.troubles.note, BACKGROUND, "amqp"))

    async def carry_through(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change whole, also when whoever asked for it leaves."""
        task = self.loop.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has it, or has left

    # -- rows

    def _apply(self, changes: Sequence[RowChange]) -> None:
        """Rows came or went, in one revision of the store."""
        for change in changes:
            name = change.row.vhost
            vhost = self.vhosts.add(name) if change.is_there else self.vhosts.find(name)
            if vhost is not None:
                vhost.rows.apply(change)
                if change.row.kind == MADE and not change.is_there:
                    self.vhosts.remove(name)
        self.topology_changed()

    # -- queues and places

    def topology_changed(self) -> None:
        """An exchange, a queue or a binding came or went."""
        self.generation += 1
        self.follower.topology_changed()

    def _rights_changed(self) -> None:
        """What makers may is judged anew, from the next message on."""
        for vhost in self.vhosts.all():
            vhost.router.forget()
        self.follower.rights += 1
        self.topology_changed()

    async def _trimmed(self, partition: PartitionHandle) -> None:
        await drop_unused(self, partition)

    def _streams_changed(self) -> None:
        if self.broker.streams.touched.filters:  # no topic lives in a stream of the broker's own
            self.generation += 1

    async def watch(self, queue: Queue) -> None:
        """A new queue: from now on records are routed to it, and its places are kept."""
        waiting = queue.vhost.streams.make_ready("")
        if waiting is not None:
            await waiting  # other protocols may write to the queue before AMQP does
        cursor = queue.cursor
        cursor.keep(b"%d" % self.clock.now_ms())
        self.follower.keep_informed(queue)
        note_positions(cursor, self.follower.queue_sources(queue))
        await self.broker.cursors.adopt(cursor)

    async def unwatch(self, queue: Queue) -> None:
        """A queue is gone."""
        queue.cursor.position_of = self.follower.position_of  # nothing holds the queue any more
        if self.broker.cursors.find(queue.cursor.name) is not None:
            await self.broker.cursors.delete(queue.cursor.name)

    async def keep_positions(self, vhost: VirtualHost, binding: Binding) -> None:
        """Keep with the queues behind a binding from where on it counts for them."""
        queues = self.queues_behind(vhost, binding)
        sources = self.follower.sources_behind(vhost, binding.source)
        for queue in queues:
            note_positions(queue.cursor, sources)
        await self.broker.cursors.save(*(queue.cursor for queue in queues))

    async def save_behind(self, vhost: VirtualHost, bindings: Iterable[Binding]) -> None:
        """Save what bindings brought, while somebody knows that they did."""
        queues = self.queues_behind(vhost, *bindings)
        await self.broker.cursors.save(*(queue.cursor for queue in queues))

    def queues_behind(self, vhost: VirtualHost, *bindings: Binding) -> list[Queue]:
        """The queues that bindings may lead to; from exchange to exchange, all that are kept."""
        names = [row.destination.name for row in bindings if row.destination.kind == "queue"]
        found = [vhost.queues[name] for name in names if name in vhost.queues]
        if len(names) < len(bindings):
            found += [queue for queue in vhost.queues.values() if queue.record.is_kept]
        return list(dict.fromkeys(found))

    def place(self, place: int) -> tuple[tuple[str, int], int]:
        """The partition and the offset of a place."""
        number, offset = unpack(place)
        return self.follower.live.keys[number], offset

    def read(self, number: int, offsets: Sequence[int]) -> list[Record]:
        """The records at ascending offsets of a partition, none when it is gone; or Cold."""
        source = self.follower.live.source(number)
        if self.follower.live.find(source.key) is None:
            return []
        return self.broker.cursors.records_now(source.as_source, offsets)

    async def find_records(self, number: int, offsets: Sequence[int]) -> list[Record]:
        """As `read`, waiting for cold bytes while others run; none of a stopped partition."""
        source = self.follower.live.source(number)
        try:
            while True:
                try:
                    return self.read(number, offsets)
                except Cold as error:
                    cold = error
                await source.until_here(cold)
        except PartitionStopped:
            return []


def _created_ms(cursor: RoutedCursor) -> int:
    """When a queue was made: the first value that is kept with its cursor."""
    kept = cursor.settings.split()
    return int(kept[0]) if kept else 0
