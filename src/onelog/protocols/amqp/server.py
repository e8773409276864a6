"""AMQP 0-9-1 on one node: its listeners as the configuration says, and the hub behind them.

Rules: as for every protocol. Ports are bound before the broker recovers. No connection is accepted
before queues have their messages again. When that fails, every connection is refused with 541 until
it succeeds. Where nodes are elected, connections are accepted at once, and refused while another
node has the queues (`owned.py`). At the end, no new connection is accepted, then all are closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from onelog.base.clock import Clock
from onelog.broker import Broker
from onelog.config import Config
from onelog.net import Listener, ProtocolListeners, Refusing, connection_samples
from onelog.observe import Sample
from onelog.protocols.amqp.connection import Connection
from onelog.protocols.amqp.frames import PROTOCOL_HEADER
from onelog.protocols.amqp.hub import Hub
from onelog.protocols.amqp.management.door import Management
from onelog.protocols.amqp.owned import OwnedQueues
from onelog.protocols.amqp.showing import AmqpDesk
from onelog.security.authenticator import Authenticator

NAMES = ("amqp", "amqp_tls")
"""The listeners of AMQP, as the configuration names them."""


class AmqpServer:
    """All listeners of AMQP. Call `bind`, then `start` when the broker is open, then `close`."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._listeners = ProtocolListeners(
            clock, config.amqp.limits, backend=config.net.backend, opening=_opening
        )
        self._hub: Hub | None = None
        self._refusing = Refusing(self._serve)
        self._owned: OwnedQueues | None = None
        self.when_served: Callable[[Management | None], None] = lambda _management: None
        """Hears what management tools see and change once AMQP is served, and None when it is not
        any more."""

    @property
    def listeners(self) -> list[tuple[Listener, str]]:
        """The bound listeners, each with its address for people."""
        return self._listeners.addresses("amqp")

    def bind(self) -> None:
        """Bind every port. Raises Conflict or ConfigError, and then holds none."""
        listeners = self._config.listeners
        self._listeners.bind({name: getattr(listeners, name) for name in NAMES})

    async def start(self, broker: Broker, authenticator: Authenticator) -> None:
        """Recover the hub, then accept connections."""
        if not self._listeners.bound:
            return
        make = partial(Hub, broker, authenticator, self._config, self._clock)
        if broker.shards.is_elected:
            owned = self._owned = OwnedQueues(broker, make, self._served)
            await self._serve(owned.hub)
            await owned.open()
            return
        hub = make()
        await self._refusing.open(hub, hub.open())
        self._served(hub)

    def _served(self, hub: Hub | None) -> None:
        self._hub = hub
        self.when_served(None if hub is None else self._management(hub))

    def _management(self, hub: Hub) -> Management:
        bound = [row.listener for row in self._listeners.bound]
        return Management(hub, {row.name: (row.host, row.port) for row in bound})

    async def _serve(self, hub: Hub) -> None:
        owned = self._owned
        await self._listeners.serve(
            lambda _bound, peer: Connection(hub if owned is None else owned.hub, peer),
            self._config.amqp.limits.login_timeout_ms / 1000,
            hub.broker.troubles,
            (hub.authenticator.bans.admits, hub.broker.client_quotas.admits),
        )

    def desk(self) -> AmqpDesk | None:
        """What operators see and change; None while it is not served."""
        return None if self._hub is None else AmqpDesk(self._hub)

    async def close(self) -> None:
        """Stop accepting, close every connection. Idempotent."""
        await self._listeners.stop_accepting()
        hub, self._hub = self._hub, None
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.close()
        elif hub is not None:
            await hub.close()
        self._refusing.end()
        self._listeners.close()

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield from self._listeners.gate.samples("amqp")
        hub = self._hub
        if hub is None:
            return
        counters = hub.counters
        yield from connection_samples(
            "amqp",
            now=len(hub.connections),
            ended=counters.disconnects,
            received_bytes=counters.received_bytes,
            sent_bytes=counters.sent_bytes,
        )
        totals = (
            ("connects_total", "Connections accepted.", counters.connects),
            ("logins_total", "Logins that succeeded.", counters.logins),
            ("logins_refused_total", "Logins that were refused.", counters.refused),
            (
                "protocol_errors_total",
                "Connections closed with an error.",
                counters.protocol_errors,
            ),
            ("channel_errors_total", "Channels closed with an error.", counters.channel_errors),
            (
                "heartbeats_missed_total",
                "Connections that fell silent.",
                counters.heartbeats_missed,
            ),
            ("blocked_total", "Times a publisher had to wait for room.", counters.blocked),
            ("published_total", "Messages published.", counters.published),
            (
                "dead_lettered_total",
                "Messages given up and sent on.",
                hub.queues.counters.dead_lettered,
            ),
        )
        for name, about, value in totals:
            yield Sample(f"onelog_amqp_{name}", about, "counter", value)
        queues = [queue for vhost in hub.vhosts.all() for queue in vhost.queues.values()]
        gauges = (
            ("queues", "Queues.", len(queues)),
            ("messages_ready", "Messages that wait.", sum(row.ready.size for row in queues)),
            ("messages_unacked", "Messages with consumers.", sum(row.unacked for row in queues)),
            ("consumers", "Consumers.", sum(len(row.consumers) for row in queues)),
        )
        for name, about, value in gauges:
            yield Sample(f"onelog_amqp_{name}", about, "gauge", value)


def _opening(first: bytes) -> bytes | None:
    """A connection begins with a header; the answer to another one names ours (4.2.2)."""
    return None if PROTOCOL_HEADER.startswith(first[: len(PROTOCOL_HEADER)]) else PROTOCOL_HEADER
