"""The Kafka protocol on one node: its listeners as the configuration says, and the hub behind them.

Rules: as for every protocol. Ports are bound before the broker recovers. No connection is accepted
before groups and transactions are recovered. At the end no new connection is accepted, then all are
closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from onelog.base.clock import Clock
from onelog.broker import Broker
from onelog.config import Config
from onelog.config.listeners import KafkaListener
from onelog.net import Listener, ProtocolListeners, connection_samples
from onelog.observe import Sample
from onelog.protocols.kafka.connection import Connection
from onelog.protocols.kafka.hub import Hub
from onelog.protocols.kafka.showing import KafkaDesk
from onelog.security.authenticator import Authenticator

NAMES = ("kafka", "kafka_tls")
"""The listeners of Kafka, as the configuration names them."""


class KafkaServer:
    """All listeners of Kafka. Call `bind`, then `start` when the broker is open, then `close`."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._listeners = ProtocolListeners(
            clock, config.kafka.limits, backend=config.net.backend, opening=self._opening
        )
        self._hub: Hub | None = None

    def _opening(self, first: bytes) -> bytes | None:
        """A request begins with its size; a peer whose size cannot be is closed at once."""
        size = int.from_bytes(first[:4], "big", signed=True)
        most = self._config.kafka.limits.request_bytes
        return None if len(first) < 4 or 0 < size <= most else b""

    @property
    def listeners(self) -> list[tuple[Listener, str]]:
        """The bound listeners, each with its address for people."""
        return self._listeners.addresses("kafka")

    def bind(self) -> None:
        """Bind every port. Raises Conflict or ConfigError, and then holds none."""
        listeners = self._config.listeners
        self._listeners.bind({name: getattr(listeners, name) for name in NAMES})

    async def start(self, broker: Broker, authenticator: Authenticator) -> None:
        """Recover the hub, then accept connections."""
        if not self._listeners.bound:
            return
        settings = self._config.kafka
        hub = Hub(broker, authenticator, self._config, self._clock)
        try:
            await hub.open()
            await self._listeners.serve(
                lambda bound, peer: Connection(hub, peer, cast("KafkaListener", bound.settings)),
                settings.limits.login_timeout_ms / 1000,
                hub.broker.troubles,
                (hub.authenticator.bans.admits, hub.broker.client_quotas.admits),
            )
        except BaseException:
            await hub.close()
            raise
        self._hub = hub

    def desk(self) -> KafkaDesk | None:
        """What operators see and change; None while it is not served."""
        return None if self._hub is None else KafkaDesk(self._hub)

    async def close(self) -> None:
        """Stop accepting, close every connection. Idempotent."""
        await self._listeners.stop_accepting()
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.close()
        self._listeners.close()

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield from self._listeners.gate.samples("kafka")
        hub = self._hub
        if hub is None:
            return
        counters = hub.counters
        yield from connection_samples(
            "kafka",
            now=len(hub.connections),
            ended=counters.disconnects,
            received_bytes=counters.received_bytes,
            sent_bytes=counters.sent_bytes,
        )
        totals = (
            ("connects_total", "Connections accepted.", counters.connects),
            ("logins_total", "Logins that succeeded.", counters.logins),
            ("requests_total", "Requests received.", counters.requests),
            (
                "protocol_errors_total",
                "Connections ended for what they sent.",
                counters.protocol_errors,
            ),
        )
        for name, about, value in totals:
            yield Sample(f"onelog_kafka_{name}", about, "counter", value)
        yield from hub.samples()
