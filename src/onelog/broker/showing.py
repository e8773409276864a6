"""What protocols show to operators: rows of their connections, groups, transactions and wills.

Rules: a row is a value, made when somebody asks. A protocol has one `ProtocolDesk` while it is
served; lists come one row at a time from a copy, so that a caller that shows many can give others
their turn. Nothing here knows a protocol's own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import msgspec

from onelog.base.limits import WRITTEN_TOPICS_MAX
from onelog.broker.seeking import Redriven
from onelog.cursors.sources import Source
from onelog.cursors.start import Start
from onelog.log.handle import PartitionHandle
from onelog.net.peer import Peer
from onelog.record.record import Record
from onelog.security.identity import Identity
from onelog.security.principals import Principal


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One connection."""

    id: str
    """Unique while it lasts: its listener and the address of its peer."""
    protocol: str
    listener: str
    address: str
    via: str
    """tcp, tls, ws or wss."""
    user: str | None
    """None before the login."""
    client_id: str
    state: str
    version: str
    connected_ms: int | None
    received_bytes: int | None
    sent_bytes: int | None
    subscriptions: int
    """Filters that it subscribed to, or queues that it consumes."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What a protocol did since the start of the process; rates are differences of these."""

    connections: int
    received_messages: int
    sent_messages: int | None
    """None: the protocol sends stored bytes and does not count messages."""
    received_bytes: int
    sent_bytes: int


class ProtocolDesk(Protocol):
    """A protocol that is served."""

    def traffic(self) -> Traffic:
        """Its counters now."""
        ...

    def connections(self) -> Iterator[ConnectionRow]:
        """Every connection."""
        ...

    def kick(self, connection: str, reason: str) -> int:
        """End the connections of this id, as the protocol says goodbye; how many there were."""
        ...

    def readers(self, topic: str, partition: PartitionHandle) -> Iterator[ReaderRow]:
        """Who reads a topic in its partition by cursors that the door does not know."""
        ...

    def writers(self, topic: str) -> Iterator[WriterRow | None]:
        """Connections that wrote to a topic; None for each that did not, so that others get a
        turn."""
        ...


def written_by(row: ConnectionRow) -> WriterRow:
    """A connection as a writer."""
    return WriterRow(
        protocol=row.protocol,
        connection=row.id,
        client_id=row.client_id,
        user=row.user or "",
        address=row.address,
        connections=1,
    )


def note_written(written: dict[str, None], topic: str) -> None:
    """Note a topic that a connection writes to; the one that was noted first makes room."""
    if topic in written:
        return
    if len(written) >= WRITTEN_TOPICS_MAX:
        del written[next(iter(written))]
    written[topic] = None


def plain_row(
    protocol: str, peer: Peer, identity: Identity | None, client_id: str, state: str
) -> ConnectionRow:
    """The row of a connection whose bytes, version and subscriptions nobody counts."""
    return ConnectionRow(
        id=connection_id(peer.listener, peer.address),
        protocol=protocol,
        listener=peer.listener,
        address=peer.address,
        via=peer.via,
        user=None if identity is None else identity.name,
        client_id=client_id,
        state=state,
        version="",
        connected_ms=None,
        received_bytes=None,
        sent_bytes=None,
        subscriptions=0,
    )


def connection_id(listener: str, address: str) -> str:
    """How a connection is named to operators."""
    return f"{listener}-{address}"


class ReaderRow(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who reads a topic by a cursor that the protocol keeps itself."""

    name: str
    kind: str
    protocol: str
    topic: str
    """What the protocol calls the topic, or the filter that holds it."""
    offset: int
    connected: int


class WriterRow(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is connected and wrote to a topic."""

    protocol: str
    connection: str
    """As /connections names it; empty: perhaps some of several connections of the user."""
    client_id: str
    user: str
    address: str
    connections: int
    """How many connections may be meant."""


class WillRow(msgspec.Struct, frozen=True, kw_only=True):
    """A will that is kept."""

    client_id: str
    user: str
    topic: str
    qos: int
    retain: bool
    payload_bytes: int
    due_ms: int | None
    """When it is published; null while its client is connected."""


class RetainingDesk(ProtocolDesk, Protocol):
    """What a protocol with retained messages and wills has."""

    def retained(self, text: str) -> list[int]:
        """The numbers of retained messages of a filter, ascending."""
        ...

    async def retained_record(self, number: int) -> Record | None:
        """One of them; None when it is no more."""
        ...

    def wills(self) -> Iterator[WillRow]:
        """Every will that is kept."""
        ...

    async def seek_session(
        self, client_id: str, start: Start, chosen: Callable[[Source], bool]
    ) -> None:
        """Let a session go on elsewhere in the log. Raises NotFound, Conflict."""
        ...

    async def delete_share(self, cursor: str) -> None:
        """Forget a share group without members. Raises NotFound, Conflict."""
        ...


class GroupPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group stands in a partition of a Kafka topic."""

    topic: str
    partition: int
    offset: int
    end: int | None
    """null: there is no such partition any more."""
    committed_ms: int


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group."""

    id: str
    client_id: str
    host: str


class ConsumerGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    name: str
    state: str
    protocol: str
    generation: int
    members: list[MemberRow]
    """The first thousand."""
    member_count: int
    positions: list[GroupPosition]
    """The first thousand."""
    lag: int


class TransactionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id."""

    id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: int | None
    updated_ms: int
    partitions: list[str]
    """`topic-partition`, the first thousand."""
    groups: list[str]


class GroupDesk(ProtocolDesk, Protocol):
    """What a protocol with consumer groups and transactions has."""

    def group_names(self) -> list[str]:
        """Every group, in no order."""
        ...

    def group(self, name: str) -> ConsumerGroupRow:
        """One group. Raises NotFound."""
        ...

    async def seek_group(
        self, name: str, topic: str, partition: int | None, to: str, value: int
    ) -> None:
        """Commit other offsets for a group without members. Raises NotFound, Conflict."""
        ...

    async def delete_group(self, name: str) -> None:
        """Forget a group without members. Raises NotFound, Conflict."""
        ...

    def transactions(self) -> Iterator[TransactionRow]:
        """Every transactional id."""
        ...

    def transaction(self, name: str) -> TransactionRow:
        """One transactional id. Raises NotFound."""
        ...

    async def abort_transaction(self, name: str) -> None:
        """Abort what is open and fence its producer. Raises NotFound, Conflict."""
        ...

    def address(self, name: str) -> str | None:
        """The topic or filter that a Kafka topic shows; None: there is no such topic."""
        ...


class ExchangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange."""

    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    filter: str
    """The topics of its messages."""


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue."""

    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    ready: int
    unacked: int
    consumers: int
    published: int
    delivered: int
    cursor: str
    """Its cursor, as /cursors names it."""
    topic: str
    """The topic of messages that are sent to it directly."""
    access: str
    """What access rules call it."""


class BindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A binding."""

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    filter: str
    """The topics that come through it, or more where no filter says just these."""
    target: str
    """The topic of the queue, or the topics of the exchange, that it leads to."""
    key: str = ""
    """What tells it apart from others between the same two: of routing key and arguments."""


class QueueUse(msgspec.Struct, frozen=True, kw_only=True):
    """What feeds a queue, and how many take from it."""

    filters: tuple[str, ...]
    """The topics that its bindings bring; without bindings, its own topic."""
    consumers: int


class ExchangeWish(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that is to be."""

    name: str
    type: Literal["direct", "fanout", "topic", "headers"]
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]


class QueueWish(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that is to be."""

    name: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]


class BindingWish(msgspec.Struct, frozen=True, kw_only=True):
    """A binding that is to be, or not to be any more."""

    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: dict[str, Any] = {}


class QueueShaping(Protocol):
    """How operators make and remove exchanges, queues and bindings.

    Each raises NotAuthorized where the principal has not the rights that a client would need, and
    NotFound where the virtual host or an end is not there.
    """

    async def declare_exchange(
        self, vhost: str, wish: ExchangeWish, principal: Principal
    ) -> ExchangeRow:
        """Make an exchange; one that is the same is no error. Raises Conflict, InvalidRequest."""
        ...

    async def delete_exchange(
        self, vhost: str, name: str, principal: Principal, *, if_unused: bool
    ) -> None:
        """Delete an exchange and its bindings. Raises Conflict while it is used, if it matters."""
        ...

    async def declare_queue(self, vhost: str, wish: QueueWish, principal: Principal) -> QueueRow:
        """Make a queue; one that is the same is no error. Raises Conflict, InvalidRequest."""
        ...

    async def bind(self, vhost: str, wish: BindingWish, principal: Principal) -> BindingRow:
        """Make a binding; one that is there is no error. Raises InvalidRequest."""
        ...

    async def unbind(self, vhost: str, wish: BindingWish, key: str, principal: Principal) -> None:
        """Remove a binding; `key` where several have the routing key. Raises Conflict without."""
        ...


class QueueDesk(ProtocolDesk, Protocol):
    """What a protocol with exchanges and queues has."""

    @property
    def shaping(self) -> QueueShaping:
        """What changes exchanges, queues and bindings."""
        ...

    def use_of(self, cursor: str) -> QueueUse | None:
        """How the queue of a cursor is used; None: the cursor is of no queue."""
        ...

    def exchanges(self) -> Iterator[ExchangeRow]:
        """Every exchange."""
        ...

    def queues(self) -> Iterator[QueueRow]:
        """Every queue."""
        ...

    def bindings(self) -> Iterator[BindingRow]:
        """Every binding that somebody made."""
        ...

    def purge(self, vhost: str, queue: str) -> int:
        """Settle all that waits in a queue; how many that were. Raises NotFound."""
        ...

    async def seek_queue(self, vhost: str, queue: str, start: Start) -> None:
        """Let a queue begin again elsewhere in the log. Raises NotFound, Conflict."""
        ...

    async def redrive(self, vhost: str, queue: str) -> Redriven:
        """Send dead letters back to the queues where they died. Raises NotFound, Conflict."""
        ...

    async def delete_queue(self, vhost: str, queue: str) -> None:
        """Delete a queue with what waits in it. Raises NotFound."""
        ...
