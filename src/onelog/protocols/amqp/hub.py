"""What all AMQP connections share: virtual hosts, queues and their places, settings, counters.

Rules: opened once the broker is. Exchanges, queues and bindings are read back, queues get their
places again, commits that a crash interrupted are finished; only then somebody is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated
from onelog.broker import Broker, Published, Record, RoutedCursor
from onelog.config import Config
from onelog.net import Peer
from onelog.observe import get_logger
from onelog.protocols.amqp.addresses import DEFAULT_VHOST
from onelog.protocols.amqp.following import Follower, note_positions
from onelog.protocols.amqp.intents import Intents
from onelog.protocols.amqp.queues.queue import Queue
from onelog.protocols.amqp.queues.ready import pack, unpack
from onelog.protocols.amqp.queues.settings import QueueRecord
from onelog.protocols.amqp.router import Binding, ExchangeRecord
from onelog.protocols.amqp.transactions import Settlement
from onelog.protocols.amqp.vhosts import ROOT, TRANSIENT_PREFIX, VirtualHost
from onelog.security.authenticator import Authenticator
from onelog.security.identity import Identity

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection

_log = get_logger("amqp")

ORDER: Final = ("exchanges", "queues", "bindings")
"""In which order what was kept is read back."""


class Counters:
    """Plain numbers, read when the metrics are."""

    def __init__(self) -> None:
        self.connects = 0
        self.disconnects = 0
        self.logins = 0
        self.refused = 0
        self.protocol_errors = 0
        self.channel_errors = 0
        self.heartbeats_missed = 0
        self.published = 0
        self.dead_lettered = 0
        self.received_bytes = 0
        self.sent_bytes = 0


class VirtualHosts:
    """All virtual hosts by name."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._found: dict[str, VirtualHost] = {DEFAULT_VHOST: VirtualHost(hub, DEFAULT_VHOST)}

    def find(self, name: str) -> VirtualHost | None:
        """A virtual host."""
        return self._found.get(name)

    def add(self, name: str) -> VirtualHost:
        """A virtual host, made if it is not there."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = VirtualHost(self._hub, name)
        return found

    def all(self) -> list[VirtualHost]:
        """Every virtual host, by name."""
        return [self._found[name] for name in sorted(self._found)]


class Hub:
    """Make one, then `open` it before the first connection."""

    def __init__(
        self, broker: Broker, authenticator: Authenticator, config: Config, clock: Clock
    ) -> None:
        self.broker = broker
        self.authenticator = authenticator
        self.config = config
        self.limits = config.amqp.limits
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.cluster_name = config.node.name
        self.counters = Counters()
        self.connections: set[Connection] = set()
        self.vhosts = VirtualHosts(self)
        self.follower = Follower(self)
        self.intents: Intents
        self.saw_expiry = False
        """Whether any message with an expiration was ever seen: until then no head is watched."""
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- start and end

    async def open(self) -> None:
        """Recover what clients declared and what waits in their queues."""
        for name in self.config.amqp.vhosts.split(","):
            if name.strip():
                self.vhosts.add(name.strip())
        queues = await self._read_topology()
        created_ms = {queue.cursor.name: int(queue.cursor.settings or b"0") for queue in queues}
        self.saw_expiry = bool(queues)
        await self.follower.catch_up(queues, created_ms)
        for queue in queues:
            await self.broker.cursors.adopt(queue.cursor)
            queue.wake()
        self.intents = await Intents.open(self.broker, self._settle_again)
        self.authenticator.on_change(self._user_changed)

    async def _read_topology(self) -> list[Queue]:
        for name in self.broker.cursors.names():
            if name.startswith(TRANSIENT_PREFIX):
                await self.broker.cursors.delete(name)  # of an earlier run, and of no use now
        rows: dict[str, list[tuple[str, bytes]]] = {kind: [] for kind in ORDER}
        for entry in (await self.broker.store.range(ROOT)).entries:
            vhost, kind, _rest = entry.key.removeprefix(ROOT).split("/", 2)
            if kind in rows:
                rows[kind].append((unquote(vhost), entry.value))
        queues: list[Queue] = []
        for vhost, value in rows["exchanges"]:
            record = msgspec.json.decode(value, type=ExchangeRecord)
            self.vhosts.add(vhost).router.add_exchange(record)
        for vhost, value in rows["queues"]:
            queues.append(self._restore_queue(vhost, msgspec.json.decode(value, type=QueueRecord)))
        for vhost, value in rows["bindings"]:
            found = self.vhosts.add(vhost)
            binding = msgspec.json.decode(value, type=Binding)
            if found.router.find(binding.source) is not None:
                found.router.bind(binding)
        return queues

    def _restore_queue(self, vhost: str, record: QueueRecord) -> Queue:
        found = self.vhosts.add(vhost)
        name = found.cursor_name(record)
        state = self.broker.cursors.kept(name)
        if state is None:
            cursor = RoutedCursor(name, (f"{vhost}/{record.name}",), b"%d" % self.clock.now_ms())
        else:
            cursor = RoutedCursor.restore(state, self.broker.cursors.parts(name))
        return found.restore_queue(record, cursor)

    def _settle_again(self, vhost: str, row: Settlement) -> None:
        """An acknowledgement of a commit that a crash interrupted."""
        found = self.vhosts.find(vhost)
        queue = None if found is None else found.queues.get(row.queue)
        stream_id, partition, offset = row.place
        source = self.follower.live.find((stream_id, partition))
        if queue is None or source is None or row.kind == "requeue":
            return
        queue.settled_again(pack(source.number, offset))

    async def close(self) -> None:
        """Tell everybody to leave, save queues."""
        for connection in list(self.connections):
            connection.close(320, "CONNECTION_FORCED - the broker stops")
        await asyncio.sleep(0)
        for vhost in self.vhosts.all():
            for queue in vhost.queues.values():
                queue.close()
        for task in list(self._tasks):
            task.cancel()
        await self.intents.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something that belongs to no connection."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("AMQP work in the background failed", error=str(task.exception()))

    # -- who

    def anonymous(self, peer: Peer) -> Identity:
        """A peer without a name. Raises NotAuthenticated where that is not allowed."""
        return self.authenticator.anonymous(
            listener_is_loopback=peer.listener_is_loopback, peer_host=peer.host
        )

    def allows_anonymous(self, peer: Peer) -> bool:
        """Whether a peer may come without a name."""
        try:
            self.anonymous(peer)
        except NotAuthenticated:
            return False
        return True

    def _user_changed(self, name: str) -> None:
        for connection in list(self.connections):
            identity = connection.identity
            concerned = identity is not None and identity.name == name
            if identity is not None and concerned and not self.authenticator.is_current(identity):
                connection.close(320, f"CONNECTION_FORCED - user '{name}' was changed")

    # -- queues and places

    @property
    def has_queues(self) -> bool:
        """Whether anything could be routed anywhere."""
        return any(vhost.queues for vhost in self.vhosts.all())

    def topology_changed(self) -> None:
        """An exchange, a queue or a binding came or went."""
        self.follower.topology_changed()

    async def watch(self, queue: Queue) -> None:
        """A new queue: it takes what comes from now on, and its places are kept."""
        cursor = queue.cursor
        cursor.keep(b"%d" % self.clock.now_ms())
        note_positions(cursor, self.follower.amqp_sources())
        cursor.position_of = self.follower.position_of
        await self.broker.cursors.adopt(cursor)

    async def unwatch(self, queue: Queue) -> None:
        """A queue is gone."""
        if self.broker.cursors.find(queue.cursor.name) is not None:
            await self.broker.cursors.delete(queue.cursor.name)

    async def bound(self, vhost: VirtualHost, binding: Binding) -> None:
        """A binding counts from now on: what queues behind it kept says so before it is told."""
        queues = self._queues_behind(vhost, binding)
        for queue in queues:
            note_positions(queue.cursor, self.follower.sources_of(vhost.name, binding.source))
        await self.broker.cursors.save(*(queue.cursor for queue in queues))
        for queue in queues:
            if queue.settings.start is not None:
                await self.take_history(queue, binding)

    async def unbound(self, vhost: VirtualHost, binding: Binding) -> None:
        """A binding counts no more; what it brought stays, and is kept before that is told."""
        await self.broker.cursors.save(
            *(queue.cursor for queue in self._queues_behind(vhost, binding))
        )

    def _queues_behind(self, vhost: VirtualHost, binding: Binding) -> list[Queue]:
        if binding.destination.kind == "queue":
            queue = vhost.queues.get(binding.destination.name)
            return [] if queue is None else [queue]
        return [queue for queue in vhost.queues.values() if not queue.record.exclusive]

    async def take_history(self, queue: Queue, binding: Binding) -> None:
        """Give a queue what a binding would have brought before it was made (I2)."""
        await self.follower.take_history(queue, binding)

    def place(self, place: int) -> tuple[tuple[str, int], int]:
        """The partition and the offset of a place."""
        number, offset = unpack(place)
        return self.follower.live.source(number).key, offset

    def read(self, number: int, offsets: Sequence[int]) -> list[Record]:
        """The records at ascending offsets of a partition."""
        source = self.follower.live.source(number)
        return self.broker.cursors.records_at(source.as_source, offsets)

    def take_refusal(self, published: Published) -> bool:
        """Whether a queue refused a message."""
        return self.follower.take_refusal(published)
