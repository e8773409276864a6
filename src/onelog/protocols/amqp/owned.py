"""AMQP on one node of several: one node has all queues, and any other refuses clients.

Rules:
- All queues lie in one shard, as their cursors do. The node that owns it opens them when it is
  elected, and lets them go when it is not: connections are closed with 320, nothing is written, and
  the next owner redelivers what was not settled durably.
- Any other node closes a connection with 320 when it opens a virtual host, and its text has the
  address of the owner. Clients that know several nodes try the next one.
- A connection stays with the hub that it came to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from onelog.base.errors import NotLeader, NotOwner, Timeout
from onelog.broker import NO_NODE, Broker, address_at, until_visible
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.queues.intents import STREAM as INTENTS

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection
    from onelog.protocols.amqp.hub import Hub

TOGETHER: Final = b""
"""The name that owns all queues, as it owns their cursors."""

Served = Callable[["Hub | None"], None]


class OwnedQueues:
    """All of AMQP, as a `ShardService`."""

    name = "amqp"

    def __init__(self, broker: Broker, make: Callable[[], Hub], served: Served) -> None:
        self._broker = broker
        self._make = make
        self._served = served
        """Hears which hub is open; None: none is."""
        self._refuser = make()
        self._refuser.is_abandoned = True
        self._refuser.why_abandoned = self.refusal
        self._shard = broker.shards.of(TOGETHER)
        self.hub = self._refuser
        """New connections come to it."""

    async def open(self) -> None:
        """Take the queues if this node owns them, and whenever it will."""
        await self._broker.make_kept(INTENTS)  # elections need it
        await self._broker.shards.register(self)

    async def take(self, shard: int) -> None:
        """See `ShardService`."""
        if shard != self._shard:
            return
        await until_visible(self._broker.streams.streams())
        hub = self._make()
        hub.why_abandoned = self.refusal
        try:
            await hub.open()
        except BaseException:
            await hub.abandon()
            raise
        self.hub = hub
        self._served(hub)

    async def drop(self, shard: int) -> None:
        """See `ShardService`."""
        hub = self.hub
        if shard == self._shard and hub is not self._refuser:
            self.hub = self._refuser
            self._served(None)
            hub.is_abandoned = True
            hub.queues.is_over = True
            for connection in list(hub.connections):
                connection.fail(self.refusal(connection))
            await hub.abandon()

    def refusal(self, connection: Connection) -> AmqpError:
        """Why a client is not served here, and where it is."""
        try:
            self._broker.shards.check_led(TOGETHER)
        except NotOwner as error:
            return AmqpError(Reply.CONNECTION_FORCED, _whose(connection, error.node))
        if not self._broker.shards.holds(TOGETHER):
            return AmqpError(
                Reply.CONNECTION_FORCED,
                "another node may have the queues by now: this one is cut off from it; try another",
            )
        return AmqpError(
            Reply.CONNECTION_FORCED, "this node reads the queues since it was elected; try again"
        )

    async def close(self) -> None:
        """No queue comes or goes any more; close the connections, and save queues that are open."""
        self._broker.shards.remove(self)
        self._refuser.dismiss()
        if self.hub is not self._refuser:
            hub, self.hub = self.hub, self._refuser
            await hub.close()


def _whose(connection: Connection, node: int) -> str:
    if node == NO_NODE:
        return "the node that has the queues is being elected; try again"
    cluster = connection.hub.broker.cluster
    address = address_at(cluster, node, connection.peer.listener)
    return f"node {node} has the queues" + ("" if address is None else f": connect to {address}")


def not_led(connection: Connection, topic: str, error: NotLeader | Timeout) -> AmqpError:
    """The error for a publish whose partition has no leader, or whose leader did not answer."""
    broker = connection.hub.broker
    stream = broker.streams.home(topic)
    partition = stream.partition_of(topic.encode())
    leader = broker.cluster.replicas(stream.record.id, partition).leader
    address = address_at(broker.cluster, leader, connection.peer.listener)
    where = "" if address is None else f"; its leader is node {leader} at {address}"
    return AmqpError(Reply.CONNECTION_FORCED, f"{error}{where}")
