"""AMQP as operators see it: connections, exchanges, queues, bindings."""

from __future__ import annotations

from collections.abc import Iterator

from onelog.base.errors import NotFound
from onelog.broker import Broker, PartitionHandle, Position, Redriven, Start
from onelog.broker.showing import (
    BindingRow,
    ConnectionRow,
    ExchangeRow,
    QueueRow,
    QueueUse,
    ReaderRow,
    Traffic,
    WriterRow,
    connection_id,
    written_by,
)
from onelog.protocols.amqp.connection import Connection
from onelog.protocols.amqp.errors import Reply
from onelog.protocols.amqp.hub import Hub
from onelog.protocols.amqp.shaping import Shaping, binding_row, exchange_row, queue_row
from onelog.protocols.amqp.states import State
from onelog.queues.addresses import address_of, queue_topic
from onelog.queues.exchanges import Destination
from onelog.queues.makers import binding_filter
from onelog.queues.queue import Queue
from onelog.queues.replaying import redrive_queue, seek_queue
from onelog.queues.vhosts import CURSOR_PREFIX, TRANSIENT_PREFIX, VirtualHost

_STATES = {
    State.HEADER: "new",
    State.HANDSHAKE: "authenticating",
    State.OPEN: "connected",
    State.CLOSING: "closing",
    State.CLOSED: "closed",
}


class AmqpDesk:
    """What there is of AMQP now."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.shaping = Shaping(hub)

    def traffic(self) -> Traffic:
        """Its counters now."""
        hub = self._hub
        queues = (queue for vhost in hub.vhosts.all() for queue in vhost.queues.values())
        gone = hub.queues.counters.of_deleted["delivered"]
        return Traffic(
            connections=len(hub.connections),
            received_messages=hub.counters.published,
            sent_messages=gone + sum(queue.delivered for queue in queues),
            received_bytes=hub.counters.received_bytes,
            sent_bytes=hub.counters.sent_bytes,
        )

    def connections(self) -> Iterator[ConnectionRow]:
        """Every connection."""
        return map(_row, list(self._hub.connections))

    def kick(self, connection: str, reason: str) -> int:
        """Close the connections of this id (320)."""
        found = [row for row in self._hub.connections if _id(row) == connection]
        for row in found:
            row.close(Reply.CONNECTION_FORCED, f"CONNECTION_FORCED - {reason}")
        return len(found)

    def readers(self, topic: str, partition: PartitionHandle) -> Iterator[ReaderRow]:
        """Queues that messages of a topic go to, where headers do not decide."""
        address = address_of(topic)
        vhost = self._hub.vhosts.find(address.vhost)
        if vhost is None:
            return
        for name in sorted(vhost.router.route(address.exchange, address.routing_key, {})):
            queue = vhost.queues.get(name)
            if queue is None:
                continue
            place = own_key(self._hub.broker, partition)
            found = [row.offset for row in queue.cursor.positions() if _key(row) == place]
            yield ReaderRow(
                name=queue.cursor.name,
                kind="routed",
                protocol="amqp",
                topic=f"{address.exchange or '(default)'} {address.routing_key}",
                offset=found[0] if found else int(partition.high_watermark),
                connected=len(queue.consumers),
            )

    def writers(self, topic: str) -> Iterator[WriterRow | None]:
        """Connections that published to the topic."""
        for row in list(self._hub.connections):
            yield written_by(_row(row)) if topic in row.written else None

    # -- exchanges, queues, bindings

    def exchanges(self) -> Iterator[ExchangeRow]:
        """Every exchange."""
        for vhost in self._hub.vhosts.all():
            for row in vhost.router.exchanges():
                yield exchange_row(vhost, row)

    def queues(self) -> Iterator[QueueRow]:
        """Every queue."""
        for vhost in self._hub.vhosts.all():
            for queue in list(vhost.queues.values()):
                yield queue_row(vhost, queue)

    def use_of(self, cursor: str) -> QueueUse | None:
        """How the queue of a cursor is used; None: the cursor is of no queue."""
        text = cursor.removeprefix(CURSOR_PREFIX).removeprefix(TRANSIENT_PREFIX)
        for vhost in self._hub.vhosts.all():
            queue = vhost.queues.get(text.removeprefix(f"{vhost.name}:"))
            if queue is not None and queue.cursor.name == cursor:
                bound = vhost.router.bindings_to(Destination("queue", queue.name))
                filters = {
                    binding_filter(vhost.name, vhost.router.find(row.source), row) for row in bound
                }
                return QueueUse(
                    filters=tuple(sorted(filters)) or (queue_topic(vhost.name, queue.name),),
                    consumers=len(queue.consumers),
                )
        return None

    def bindings(self) -> Iterator[BindingRow]:
        """Every binding that somebody made."""
        for vhost in self._hub.vhosts.all():
            for row in vhost.router.bindings():
                yield binding_row(vhost, row)

    def _queue(self, vhost: str, name: str) -> tuple[VirtualHost, Queue]:
        host = self._hub.vhosts.find(vhost)
        queue = None if host is None else host.queues.get(name)
        if host is None or queue is None:
            raise NotFound(
                f"there is no queue {name!r} in the virtual host {vhost!r};"
                " GET /api/v1/amqp/queues lists them"
            )
        return host, queue

    def purge(self, vhost: str, queue: str) -> int:
        """Settle all that waits in a queue; how many that were. Raises NotFound."""
        return self._queue(vhost, queue)[1].purge()

    async def seek_queue(self, vhost: str, queue: str, start: Start) -> None:
        """Let a queue begin again elsewhere in the log. Raises NotFound, Conflict."""
        await seek_queue(self._queue(vhost, queue)[1], start)

    async def redrive(self, vhost: str, queue: str) -> Redriven:
        """Send dead letters back to the queues where they died. Raises NotFound, Conflict."""
        return await redrive_queue(self._queue(vhost, queue)[1])

    async def delete_queue(self, vhost: str, queue: str) -> None:
        """Delete a queue with what waits in it. Raises NotFound."""
        host, found = self._queue(vhost, queue)
        await host.delete_queue(found)


def own_key(broker: Broker, partition: PartitionHandle) -> tuple[str, int]:
    """How positions name a partition."""
    return broker.streams.get(partition.stream).record.id, int(partition.id)


def _key(row: Position) -> tuple[str, int]:
    return row.stream_id, row.partition


def _id(connection: Connection) -> str:
    return connection_id(connection.peer.listener, connection.peer.address)


def _row(connection: Connection) -> ConnectionRow:
    peer, given = connection.peer, connection.properties.get("connection_name")
    channels = list(connection.channels.values())
    return ConnectionRow(
        id=_id(connection),
        protocol="amqp",
        listener=peer.listener,
        address=peer.address,
        via=peer.via,
        user=None if connection.identity is None else connection.identity.name,
        client_id=given if isinstance(given, str) else "",
        state="blocked" if connection.blocked_by else _STATES[connection.state],
        version="0-9-1",
        connected_ms=connection.connected_ms,
        received_bytes=connection.received_bytes,
        sent_bytes=connection.sent_bytes,
        subscriptions=sum(len(channel.consuming.consumers) for channel in channels),
    )
