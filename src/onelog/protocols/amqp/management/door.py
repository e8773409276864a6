"""The hub for tools that inspect and change it from outside AMQP.

Rules: rows are plain, with RabbitMQ's names. Lists come one row at a time, so that the caller can
give others their turn. Every change goes through the code of AMQP's own methods. Errors are those
of `base`: a NotFound says whether a virtual host or an object in it is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, Literal

from onelog.base.errors import (
    Conflict,
    InvalidRequest,
    NotAuthorized,
    NotFound,
    OnelogError,
    ProtocolViolation,
)
from onelog.broker import LOCAL, Action, AuditSink, Kind, Principal
from onelog.protocols.amqp.channel import Channel
from onelog.protocols.amqp.connection import Connection
from onelog.protocols.amqp.consumer import ChannelConsumer
from onelog.protocols.amqp.errors import Reply, amqp_error
from onelog.protocols.amqp.hub import Hub
from onelog.protocols.amqp.management import connection_rows as lines
from onelog.protocols.amqp.management import definitions_file, messages
from onelog.protocols.amqp.management import topology_rows as topology
from onelog.protocols.amqp.management.hosts import HostNote, Hosts
from onelog.protocols.amqp.management.rates import Rates
from onelog.protocols.amqp.management.values import checked_table
from onelog.queues.exchanges import Binding, Destination, ExchangeRecord, ExchangeType
from onelog.queues.hub import QUEUE_COUNTERS
from onelog.queues.queue import Queue
from onelog.queues.settings import QueueRecord
from onelog.queues.vhosts import VirtualHost
from onelog.security.access.listing import AccessList

Row = dict[str, Any]
End = tuple[Literal["queue", "exchange"], str]
"""The target of a binding."""

ALIVE: Final = "aliveness-test"
"""The queue of the aliveness test, as RabbitMQ names it."""

_KINDS: Final[dict[Reply, type[OnelogError]]] = {
    Reply.NOT_FOUND: NotFound,
    Reply.ACCESS_REFUSED: NotAuthorized,
    Reply.RESOURCE_LOCKED: Conflict,
}
"""The error class for an AMQP reply code; any other code is an InvalidRequest."""


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    try:
        yield
    except ProtocolViolation as error:
        raise _KINDS.get(amqp_error(error).code, InvalidRequest)(str(error)) from None


class Management:
    """Make one, then `open` it once the hub is open."""

    def __init__(self, hub: Hub, addresses: Mapping[str, tuple[str, int]]) -> None:
        self._hub = hub
        self._addresses = addresses
        self._rates = Rates(hub.clock)
        self._hosts = Hosts(hub)
        self.node = hub.cluster_name

    @property
    def access(self) -> AccessList:
        """The access list."""
        return self._hub.broker.access

    @property
    def audit(self) -> AuditSink:
        """What notes changes and failed logins."""
        return self._hub.broker.audit

    def check_administrator(self, asker: Principal, *, by_token: bool) -> None:
        """Raise NotAuthorized unless a user may see and change all of it.

        `by_token`: its token says that it is an administrator.
        """
        asked = (asker, Action.ADMIN, "management", Kind.SERVER)
        if self._hub.broker.authorizer.allows(*asked):
            return
        if not by_token or self.access.denies(*asked):
            user = asker.name
            raise NotAuthorized(
                f"{user} may not use the management API: it is no administrator, and no access"
                f" rule allows it (onelog acl add allow user:{user} admin server)"
            )

    # -- overview

    async def totals(self) -> Row:
        """The overview of queues, connections and messages."""
        hub, rates, counters = self._hub, self._rates, self._hub.counters
        made = hub.queues.counters
        hosts = hub.vhosts.all()
        queues = [queue for host in hosts for queue in host.queues.values()]
        total = await topology.Total(made.of_deleted).add(queues)
        stats = topology.stats_of(total.counted) | {
            "publish": counters.published,
            "confirm": counters.confirmed,
            "return_unroutable": counters.returned,
            "drop_unroutable": counters.dropped,
        }
        churn = {
            "connection_created": counters.connects,
            "connection_closed": counters.disconnects,
            "channel_created": counters.channels_opened,
            "channel_closed": counters.channels_closed,
            "queue_declared": made.declared,
            "queue_created": made.made,
            "queue_deleted": made.deleted,
        }
        return {
            "message_stats": rates.detailed(hub, "stats", stats),
            "churn_rates": rates.detailed(hub, "churn", churn),
            "queue_totals": total.messages(rates, hub),
            "object_totals": {
                "connections": len(hub.connections),
                "channels": sum(len(row.channels) for row in hub.connections),
                "consumers": total.consumers,
                "exchanges": sum(len(host.router.exchanges()) for host in hosts),
                "queues": total.queues,
            },
        }

    def _chosen(self, vhost: str | None) -> list[VirtualHost]:
        return self._hub.vhosts.all() if vhost is None else [self._hosts.find(vhost)]

    # -- virtual hosts

    def vhost_names(self) -> list[str]:
        """The names of all virtual hosts."""
        return [row.name for row in self._hub.vhosts.all()]

    def known_vhost(self, name: str) -> str:
        """Returns the name if the virtual host exists. Raises NotFound."""
        return self._hosts.find(name).name

    async def vhosts(self) -> AsyncIterator[Row]:
        """Every virtual host."""
        for row in self._hub.vhosts.all():
            yield await self._vhost_row(row)

    async def vhost(self, name: str) -> Row:
        """One virtual host. Raises NotFound."""
        return await self._vhost_row(self._hosts.find(name))

    async def _vhost_row(self, vhost: VirtualHost) -> Row:
        note, rates = self._hosts.note(vhost.name), self._rates
        total = await topology.Total(dict.fromkeys(QUEUE_COUNTERS, 0)).add([*vhost.queues.values()])
        tags = list(note.tags)
        row: Row = {
            "name": vhost.name,
            "description": note.description,
            "tags": tags,
            "metadata": {"description": note.description, "tags": tags},
            "default_queue_type": "undefined",
            "tracing": False,
            "cluster_state": {self.node: "running"},
            **total.messages(rates, vhost),
        }
        octets = {"recv_oct": 0, "send_oct": 0}
        for connection in self._hub.connections:
            if connection.vhost is vhost:
                octets["recv_oct"] += connection.received_bytes
                octets["send_oct"] += connection.sent_bytes
        if any(octets.values()):
            row |= rates.detailed(vhost, "octets", octets)
        stats = topology.stats_of(total.counted)
        if any(stats.values()):
            row["message_stats"] = rates.detailed(vhost, "stats", stats)
        return row

    async def make_vhost(self, name: str, description: str, tags: tuple[str, ...]) -> bool:
        """Make a virtual host or change its description. Returns whether it is new."""
        return await self._hosts.make(name, HostNote(description=description, tags=tags))

    async def delete_vhost(self, name: str) -> None:
        """Delete a virtual host and everything in it. Raises NotFound, InvalidRequest."""
        with _plainly():
            await self._hosts.delete(name)

    # -- exchanges

    def exchanges(self, vhost: str | None) -> Iterator[Row]:
        """Exchanges by name."""
        for host in self._chosen(vhost):
            for record in host.router.exchanges():
                yield topology.exchange_row(self._hub.broker, host, record, self._rates)

    def exchange(self, vhost: str, name: str) -> Row:
        """One exchange. Raises NotFound."""
        host = self._hosts.find(vhost)
        with _plainly():
            record = host.exchange(name)
        row = topology.exchange_row(self._hub.broker, host, record, self._rates)
        return row | {"incoming": [], "outgoing": []}

    async def declare_exchange(
        self, vhost: str, name: str, kind: ExchangeType, flags: Mapping[str, bool], arguments: Row
    ) -> bool:
        """Make an exchange. Returns whether it is new."""
        host = self._hosts.find(vhost)
        is_new = host.router.find(name) is None
        record = ExchangeRecord(
            name=name,
            type=kind,
            durable=flags["durable"],
            auto_delete=flags["auto_delete"],
            internal=flags["internal"],
            arguments=checked_table(arguments),
        )
        with _plainly():
            await host.declare_exchange(record, passive=False)
        return is_new

    async def delete_exchange(self, vhost: str, name: str, *, if_unused: bool) -> None:
        """Delete an exchange. Raises NotFound."""
        host = self._hosts.find(vhost)
        with _plainly():
            host.exchange(name)
            await host.delete_exchange(name, if_unused=if_unused)

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        properties: Row,
        body: bytes,
        who: tuple[str, Principal],
    ) -> bool:
        """Publish a message. Returns whether a queue took it."""
        host = self._hosts.find(vhost)
        found = messages.properties_of(properties)
        with _plainly():
            return await messages.publish(self._hub, host, exchange, routing_key, found, body, who)

    # -- queues

    def queues(self, vhost: str | None) -> Iterator[Row]:
        """Queues by name."""
        for host in self._chosen(vhost):
            for _name, queue in sorted(host.queues.items()):
                yield topology.queue_row(queue, self.node, self._rates)

    def queue(self, vhost: str, name: str) -> Row:
        """One queue, with its consumers. Raises NotFound."""
        with _plainly():
            queue = self._hosts.find(vhost).queue(name, None)
        consumers = list(self._consumers_of(queue))
        row = topology.queue_row(queue, self.node, self._rates)
        return row | {"consumer_details": consumers, "incoming": [], "deliveries": []}

    async def declare_queue(
        self, vhost: str, name: str, flags: Mapping[str, bool], arguments: Row
    ) -> bool:
        """Make a queue. Returns whether it is new."""
        host = self._hosts.find(vhost)
        is_new = name not in host.queues
        record = QueueRecord(
            name=name,
            durable=flags["durable"],
            auto_delete=flags["auto_delete"],
            arguments=checked_table(arguments),
        )
        with _plainly():
            await host.declare_queue(record, None, passive=False)
        return is_new

    async def delete_queue(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None:
        """Delete a queue. Raises NotFound."""
        host = self._hosts.find(vhost)
        with _plainly():
            queue = host.queue(name, None)
            await host.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)

    def purge(self, vhost: str, name: str) -> int:
        """Settle all waiting messages of a queue. Raises NotFound."""
        with _plainly():
            return self._hosts.find(vhost).queue(name, None).purge()

    async def get(
        self,
        vhost: str,
        name: str,
        count: int,
        mode: messages.AckMode,
        encoding: messages.Encoding,
        truncate: int | None,
    ) -> list[Row]:
        """Messages from the head of a queue. Raises NotFound."""
        with _plainly():
            queue = self._hosts.find(vhost).queue(name, None)
            return await messages.get(queue, count, mode, encoding, truncate)

    async def is_alive(self, vhost: str) -> bool:
        """Whether a message that is sent to a queue comes out again."""
        await self.declare_queue(vhost, ALIVE, {"durable": False, "auto_delete": False}, {})
        await self.publish(vhost, "", ALIVE, {}, b"test_message", ("", LOCAL))
        return bool(await self.get(vhost, ALIVE, 1, "ack_requeue_false", "auto", None))

    # -- bindings

    def bindings(self, vhost: str | None) -> Iterator[Row]:
        """Every binding, including the implicit ones of the default exchange."""
        for host in self._chosen(vhost):
            for binding in topology.default_bindings(host):
                yield topology.binding_row(host.name, binding)
            for binding in topology.sorted_bindings(host):
                yield topology.binding_row(host.name, binding)

    def bindings_of(self, vhost: str, *, source: str | None, to: End | None) -> list[Row]:
        """Bindings from an exchange, to an end, or between the two."""
        host = self._hosts.find(vhost)
        found = [*topology.default_bindings(host)] if not source else []
        found += topology.sorted_bindings(host)
        return [
            topology.binding_row(vhost, row)
            for row in found
            if source in (None, row.source) and to in (None, row.destination)
        ]

    async def bind(self, vhost: str, source: str, to: End, routing_key: str, arguments: Row) -> str:
        """Bind two ends. Returns the key that distinguishes the binding from others between
        them."""
        binding = Binding(
            source=source,
            destination=Destination(*to),
            routing_key=routing_key,
            arguments=checked_table(arguments),
        )
        with _plainly():
            await definitions_file.bind(self._hosts.find(vhost), binding)
        return topology.properties_key(binding)

    def binding(self, vhost: str, source: str, to: End, key: str) -> Row:
        """One binding. Raises NotFound."""
        return topology.binding_row(vhost, self._binding(vhost, source, to, key))

    async def unbind(self, vhost: str, source: str, to: End, key: str) -> None:
        """Remove a binding. Raises NotFound."""
        with _plainly():
            await self._hosts.find(vhost).unbind(self._binding(vhost, source, to, key))

    def _binding(self, vhost: str, source: str, to: End, key: str) -> Binding:
        host = self._hosts.find(vhost)
        found = [row for row in host.router.bindings_to(Destination(*to)) if row.source == source]
        if not source:
            found = [row for row in topology.default_bindings(host) if row.destination == to]
        for row in found:
            if topology.is_named(row, key):
                return row
        raise NotFound(f"there is no binding {key!r} from {source!r} to {to[1]!r}")

    # -- connections

    def connections(self, vhost: str | None) -> Iterator[Row]:
        """Connections that are open or are being opened."""
        for row in self._connections(vhost):
            yield lines.connection_row(row, self._addresses, self.node, self._rates)

    def _connections(self, vhost: str | None) -> list[Connection]:
        host = None if vhost is None else self._hosts.find(vhost)
        found = [row for row in self._hub.connections if host is None or row.vhost is host]
        return sorted(found, key=lambda row: row.peer.address)

    def _connection(self, name: str) -> Connection:
        for row in self._hub.connections:
            if lines.connection_name(row, self._addresses) == name:
                return row
        raise NotFound(f"there is no connection {name!r}")

    def connection(self, name: str) -> Row:
        """One connection. Raises NotFound."""
        return lines.connection_row(self._connection(name), self._addresses, self.node, self._rates)

    def close_connection(self, name: str, reason: str) -> None:
        """Close a connection. Raises NotFound."""
        self._connection(name).close(Reply.CONNECTION_FORCED, f"CONNECTION_FORCED - {reason}")

    def channels(self, vhost: str | None, connection: str | None) -> Iterator[Row]:
        """Channels, of one connection or of all."""
        chosen = self._connections(vhost) if connection is None else [self._connection(connection)]
        for row in chosen:
            for _number, channel in sorted(row.channels.items()):
                yield lines.channel_row(channel, self._addresses, self.node, self._rates)

    def channel(self, name: str) -> Row:
        """One channel, with its consumers. Raises NotFound."""
        channel = self._channel(name)
        row = lines.channel_row(channel, self._addresses, self.node, self._rates)
        consumers = [
            lines.consumer_row(consumer, self._addresses, self.node)
            for consumer in channel.consuming.consumers.values()
        ]
        return row | {"consumer_details": consumers, "publishes": [], "deliveries": []}

    def _channel(self, name: str) -> Channel:
        head, _, number = name.rpartition(" (")
        channels = self._connection(head).channels
        for found in channels.values():
            if f"{found.number})" == number:
                return found
        raise NotFound(f"there is no channel {name!r}")

    def consumers(self, vhost: str | None) -> Iterator[Row]:
        """Consumers of every queue."""
        for host in self._chosen(vhost):
            for _name, queue in sorted(host.queues.items()):
                yield from self._consumers_of(queue)

    def _consumers_of(self, queue: Queue) -> Iterator[Row]:
        for consumer in queue.consumers:
            if isinstance(consumer, ChannelConsumer):
                yield lines.consumer_row(consumer, self._addresses, self.node)

    # -- definitions

    async def definitions(self, vhost: str | None) -> Row:
        """The definitions that can be imported elsewhere. Raises NotFound."""
        return await definitions_file.export(self._hub, self._hosts, vhost)

    async def define(self, value: Row, vhost: str | None) -> None:
        """Import a file of definitions. Raises InvalidRequest with nothing done."""
        if vhost is not None:
            self._hosts.find(vhost)
        with _plainly():
            await definitions_file.apply(
                definitions_file.read(value, self._hub, self._hosts, vhost), self._hosts, vhost
            )
