"""What the management API asks of AMQP.

Rules: rows are plain, with RabbitMQ's field names; a list comes one row at a time. A virtual host
that is None means all of them. Raises errors of the house: NotFound, InvalidRequest, NotAuthorized,
Conflict, Unavailable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, Literal, Protocol

from onelog.broker import AuditSink, Principal
from onelog.security.access.listing import AccessList

API_VERSION: Final = "3.10.8"
"""The RabbitMQ whose management API this is; tools read it to know what they may ask."""

Row = dict[str, Any]
End = tuple[Literal["queue", "exchange"], str]
"""Where a binding leads."""
ExchangeType = Literal["direct", "fanout", "topic", "headers"]
AckMode = Literal[
    "ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"
]
Encoding = Literal["auto", "base64"]


class Amqp(Protocol):
    """The door of AMQP."""

    node: str

    @property
    def access(self) -> AccessList:
        """The access list."""
        ...

    @property
    def audit(self) -> AuditSink:
        """What notes changes and failed logins."""
        ...

    def check_administrator(self, asker: Principal, *, by_token: bool) -> None:
        """Raise NotAuthorized unless a user may see and change all of it.

        `by_token`: its token says that it is an administrator.
        """
        ...

    async def totals(self) -> Row:
        """What the overview has of queues, connections and messages."""
        ...

    def vhost_names(self) -> list[str]:
        """The names of all virtual hosts."""
        ...

    def known_vhost(self, name: str) -> str:
        """The same name, if there is such a virtual host."""
        ...

    def vhosts(self) -> AsyncIterator[Row]:
        """Every virtual host."""
        ...

    async def vhost(self, name: str) -> Row:
        """One virtual host."""
        ...

    async def make_vhost(self, name: str, description: str, tags: tuple[str, ...]) -> bool:
        """Make a virtual host or describe it anew; whether it is new."""
        ...

    async def delete_vhost(self, name: str) -> None:
        """Let a virtual host go with all that is in it."""
        ...

    def exchanges(self, vhost: str | None) -> Iterator[Row]:
        """Exchanges by name."""
        ...

    def exchange(self, vhost: str, name: str) -> Row:
        """One exchange."""
        ...

    async def declare_exchange(
        self, vhost: str, name: str, kind: ExchangeType, flags: Mapping[str, bool], arguments: Row
    ) -> bool:
        """Make an exchange; whether it is new."""
        ...

    async def delete_exchange(self, vhost: str, name: str, *, if_unused: bool) -> None:
        """Delete an exchange."""
        ...

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        properties: Row,
        body: bytes,
        who: tuple[str, Principal],
    ) -> bool:
        """Publish a message; whether a queue took it. `who`: the name given, and who it is."""
        ...

    def queues(self, vhost: str | None) -> Iterator[Row]:
        """Queues by name."""
        ...

    def queue(self, vhost: str, name: str) -> Row:
        """One queue."""
        ...

    async def declare_queue(
        self, vhost: str, name: str, flags: Mapping[str, bool], arguments: Row
    ) -> bool:
        """Make a queue; whether it is new."""
        ...

    async def delete_queue(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> None:
        """Delete a queue."""
        ...

    def purge(self, vhost: str, name: str) -> int:
        """Settle all that waits in a queue; how many that were."""
        ...

    async def get(
        self,
        vhost: str,
        name: str,
        count: int,
        mode: AckMode,
        encoding: Encoding,
        truncate: int | None,
    ) -> list[Row]:
        """Messages from the head of a queue."""
        ...

    async def is_alive(self, vhost: str) -> bool:
        """Whether a message that is sent comes out again."""
        ...

    def bindings(self, vhost: str | None) -> Iterator[Row]:
        """Every binding, with those that nobody made."""
        ...

    def bindings_of(self, vhost: str, *, source: str | None, to: End | None) -> list[Row]:
        """Bindings from an exchange, to something, or between the two."""
        ...

    async def bind(self, vhost: str, source: str, to: End, routing_key: str, arguments: Row) -> str:
        """Bind two ends; what tells the binding apart from others between them."""
        ...

    def binding(self, vhost: str, source: str, to: End, key: str) -> Row:
        """One binding."""
        ...

    async def unbind(self, vhost: str, source: str, to: End, key: str) -> None:
        """Remove a binding."""
        ...

    def connections(self, vhost: str | None) -> Iterator[Row]:
        """Connections."""
        ...

    def connection(self, name: str) -> Row:
        """One connection."""
        ...

    def close_connection(self, name: str, reason: str) -> None:
        """Tell a connection to go."""
        ...

    def channels(self, vhost: str | None, connection: str | None) -> Iterator[Row]:
        """Channels, of one connection or of all."""
        ...

    def channel(self, name: str) -> Row:
        """One channel."""
        ...

    def consumers(self, vhost: str | None) -> Iterator[Row]:
        """Consumers."""
        ...

    async def definitions(self, vhost: str | None) -> Row:
        """What can be made again elsewhere."""
        ...

    async def define(self, value: Row, vhost: str | None) -> None:
        """Make what a file of definitions holds; nothing of it when it cannot be read."""
        ...
