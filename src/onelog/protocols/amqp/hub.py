"""What all AMQP connections share: queues and their places, settings, counters, anonymous logins.

Rules: opened after the broker. The queues (`queues/hub.py`) are opened before the first connection
is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated
from onelog.base.ids import Offset
from onelog.broker import Broker, Published
from onelog.broker.hanging import hang
from onelog.broker.outlets import published_at
from onelog.config import Config
from onelog.kernel import AmqpCounters, AmqpEnvelopes, PublishPass, PublishRun
from onelog.net import ConnectionCounters, Connections, Peer
from onelog.protocols.amqp.confirms import ACK, NACK
from onelog.protocols.amqp.consumer import ChannelConsumer
from onelog.protocols.amqp.errors import AmqpError, Reply
from onelog.protocols.amqp.letters import AmqpLetter
from onelog.protocols.amqp.permissions import look_anew
from onelog.protocols.amqp.traced import TracedConsumer
from onelog.queues.hub import QueueHub
from onelog.security.authenticator import Authenticator
from onelog.security.identity import Identity

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection
    from onelog.protocols.amqp.publishing import Publishing

ENVELOPES_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of names and properties of deliveries that are remembered, with their topics and headers:
about 20,000 entries of usual size."""


class Counters(AmqpCounters, ConnectionCounters):
    """Plain numbers, read by the metrics."""

    def __init__(self) -> None:
        AmqpCounters.__init__(self)
        ConnectionCounters.__init__(self)
        self.logins = 0
        self.refused = 0
        self.protocol_errors = 0
        self.channel_errors = 0
        self.heartbeats_missed = 0
        self.blocked = 0
        self.returned = 0
        """Publishes that no queue took and that were returned."""
        self.dropped = 0
        """Publishes that no queue took and that were dropped silently."""
        self.channels_opened = 0
        self.channels_closed = 0


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
        self.connections: Connections[Connection] = Connections(
            authenticator.is_current, broker.troubles
        )
        self.queues = QueueHub(broker, config, clock, AmqpLetter)
        self.vhosts = self.queues.vhosts
        self.envelopes = AmqpEnvelopes(ENVELOPES_BYTES_MAX)
        """Recently sent names and properties of deliveries."""
        self.new_consumer: type[ChannelConsumer] = (
            ChannelConsumer if broker.traces is None else TracedConsumer
        )
        self.publishes = PublishPass(
            self.loop.call_soon,
            broker.publisher.tick_soon,
            self.queues.follower.refused,
            self._tell_taken,
        )
        self.publishes.is_metered = broker.publisher.is_metered
        self._undo = ExitStack()
        self.is_abandoned = False
        """Whether it could not be opened. Then every connection is refused when it opens a virtual
        host."""
        self.why_abandoned: Callable[[Connection], AmqpError] = _not_recovered
        """What such a connection gets."""

    # -- start and end

    async def open(self) -> None:
        """Recover declarations and the messages that wait in queues."""
        await self.queues.open()
        self._undo.callback(self.authenticator.on_change(self.connections.user_changed))
        hang(self._undo, self.broker.authorizer.on_change, self._rights_changed)

    async def abandon(self) -> None:
        """It could not be opened: release everything, so that another can be opened."""
        self.is_abandoned = True
        self._undo.close()
        await self.queues.abandon()

    def _rights_changed(self) -> None:
        look_anew(self)

    def dismiss(self) -> None:
        """Close every connection."""
        for connection in list(self.connections):
            connection.close(320, "CONNECTION_FORCED - the broker stops")

    async def close(self) -> None:
        """Close every connection, save queues, mark that the run ended in order."""
        self.dismiss()
        await asyncio.sleep(0)
        await self.queues.close()

    # -- anonymous peers

    def anonymous(self, peer: Peer) -> Identity:
        """The identity of a peer without a name. Raises NotAuthenticated where that is not
        allowed."""
        return self.authenticator.anonymous(
            listener_is_loopback=peer.listener_is_loopback, peer_host=peer.host
        )

    def allows_anonymous(self, peer: Peer) -> bool:
        """Whether a peer may connect without a name."""
        try:
            self.anonymous(peer)
        except NotAuthenticated:
            return False
        return True

    # -- publishes

    def _tell_taken(self, taken: list[PublishRun]) -> None:
        """Publishes are visible, and their queues have them or refused them: confirm them."""
        follower = self.queues.follower
        concerned: dict[Publishing, None] = {}
        for run in taken:
            refused = follower.refused and follower.take_refusal(place_of(run))
            run.publishing.written_out(run, NACK if refused else ACK)
            concerned[run.publishing] = None
        for publishing in concerned:
            publishing.confirm_now()


def _not_recovered(_connection: Connection) -> AmqpError:
    # RabbitMQ refuses a virtual host that is down with this code.
    return AmqpError(
        Reply.INTERNAL_ERROR, "AMQP could not recover and is not served now; try again"
    )


def place_of(run: PublishRun) -> Published:
    """Where the last message of a run was written."""
    if run.stage_runs is None:
        found: Published = run.results[0]
        return found
    calls = run.stage_runs
    if calls.stage is not None:
        return published_at(calls.stage, calls.base + run.index)
    known: Published = calls.results[0]
    offset = known.offset + run.index - calls.index
    return Published(known.stream, known.partition, Offset(offset))
