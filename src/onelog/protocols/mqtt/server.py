"""MQTT on one node: its listeners as the configuration says, and the hub behind them.

Rules: ports are bound, and certificates read, before the broker recovers; no client is accepted
before the hub is open. While it cannot be opened, every client is refused with 0x88. At the end no
new client is accepted, then all are disconnected (0x8B), then sessions are saved; the broker closes
after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onelog.base.clock import Clock
from onelog.base.errors import ConfigError
from onelog.base.networks import is_loopback
from onelog.broker import Broker
from onelog.config import Config
from onelog.config.listeners import StreamListener
from onelog.config.mqtt import Mqtt
from onelog.net import (
    BoundListener,
    Listener,
    ProtocolListeners,
    Refusing,
    WebSocketSettings,
    connection_samples,
    words,
)
from onelog.observe import Sample
from onelog.protocols.mqtt.connection import Connection
from onelog.protocols.mqtt.delayed import DelayedSettings
from onelog.protocols.mqtt.features import MqttFeatures, Redirect
from onelog.protocols.mqtt.hub import Hub
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.shares import ShareSettings
from onelog.protocols.mqtt.showing import MqttDesk
from onelog.protocols.mqtt.system import SystemSettings
from onelog.queues.consumers import Strategy
from onelog.security.authenticator import Authenticator

NAMES = ("mqtt", "mqtt_tls", "mqtt_ws", "mqtt_wss")
"""The listeners of MQTT, as the configuration names them."""
_CONNECT = PacketType.CONNECT << 4


class MqttServer:
    """All listeners of MQTT. Call `bind`, then `start` when the broker is open, then `close`."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._listeners = ProtocolListeners(
            clock,
            config.mqtt.limits,
            ("mqtt", "http/1.1"),
            config.net.backend,
            partial(_opening, connect_bytes_max=config.mqtt.limits.connect_packet_bytes),
        )
        self._hub: Hub | None = None
        self._failed: Hub | None = None
        """A hub that could not be opened, and that guards the retained messages."""
        self._refusing = Refusing(self._serve)

    @property
    def listeners(self) -> list[tuple[Listener, str]]:
        """The bound listeners, each with its address for clients."""
        return [(bound.listener, _url(bound)) for bound in self._listeners.bound]

    def bind(self) -> None:
        """Bind every port. Raises Conflict or ConfigError, and then holds none."""
        listeners = self._config.listeners
        self._listeners.bind(
            {name: getattr(listeners, name) for name in NAMES},
            lambda settings: _websocket(settings, self._config),
        )

    async def start(self, broker: Broker, authenticator: Authenticator) -> None:
        """Open the hub, then accept connections."""
        if not self._listeners.bound:
            return
        chosen = self._config.mqtt
        hub = Hub(broker, authenticator, chosen.limits, self._clock, _features(chosen))
        if self._failed is not None:
            self._failed.unguard()
            self._failed = None
        try:
            await self._refusing.open(hub, hub.open())
        except BaseException:
            self._failed = hub
            raise
        self._hub = hub

    async def _serve(self, hub: Hub) -> None:
        await self._listeners.serve(
            lambda _bound, peer: Connection(hub, peer),
            hub.limits.connect_timeout_ms / 1000,
            hub.broker.troubles,
            (hub.authenticator.bans.admits, hub.broker.client_quotas.admits),
        )

    def desk(self) -> MqttDesk | None:
        """What operators see and change; None while it is not served."""
        return None if self._hub is None else MqttDesk(self._hub)

    async def close(self) -> None:
        """Stop accepting, disconnect everybody, save sessions. Idempotent."""
        await self._listeners.stop_accepting()
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.close()
        self._refusing.end()
        self._listeners.close()

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield from self._listeners.gate.samples("mqtt")
        hub = self._hub
        if hub is None:
            return
        counters = hub.counters
        yield from connection_samples(
            "mqtt",
            now=len(hub.connections),
            ended=counters.disconnects,
            received_bytes=hub.turn.received_bytes,
            sent_bytes=hub.sent_bytes,
        )
        totals = (
            ("connects_total", "Clients accepted.", counters.connects),
            ("connects_refused_total", "Clients refused.", counters.refused),
            ("fallen_behind_total", "Times a session fell behind.", counters.fallen_behind),
            ("received_messages_total", "Messages received.", hub.received_messages),
            ("delivered_messages_total", "Messages sent.", hub.delivered_messages),
            (
                "retained_refused_total",
                "Messages not retained because there were too many.",
                hub.retained.refused,
            ),
        )
        for name, about, value in totals:
            yield Sample(f"onelog_mqtt_{name}", about, "counter", value)
        sessions = hub.sessions.values()
        gauges = (
            ("sessions", "Sessions with a connection.", len(sessions)),
            (
                "subscriptions",
                "Subscriptions of connected sessions.",
                sum(len(session.subscriptions) for session in sessions),
            ),
            ("retained_messages", "Retained messages.", len(hub.retained)),
            (
                "in_flight_messages",
                "Messages sent and not acknowledged.",
                sum(session.output.pending for session in sessions),
            ),
            (
                "sessions_behind",
                "Connected sessions that read the log.",
                sum(not session.output.live for session in sessions),
            ),
        )
        for name, about, value in gauges:
            yield Sample(f"onelog_mqtt_{name}", about, "gauge", value)


def _features(chosen: Mqtt) -> MqttFeatures:
    shares = chosen.shares
    try:
        pairs = (word.split("=") for word in words(shares.groups))
        by_group = {group.strip(): Strategy(name.strip()) for group, name in pairs}
    except ValueError:
        known = ", ".join(Strategy)
        raise ConfigError(
            f"mqtt.shares.groups = {shares.groups!r}: expected group=strategy, joined by commas, "
            f"with a strategy of {known}"
        ) from None
    return MqttFeatures(
        shares=ShareSettings(
            strategy=Strategy(shares.strategy),
            by_group=by_group,
            idle_expiry_ms=shares.idle_expiry_ms,
        ),
        delayed=DelayedSettings(
            delay_max_s=chosen.delayed.delay_max_s, pending_max=chosen.delayed.pending_max
        ),
        system=SystemSettings(interval_s=chosen.system.interval_ms / 1000),
        rewrite=chosen.rewrite,
        auto_subscribe=chosen.auto_subscribe,
        redirect=Redirect(to=chosen.redirect_to, permanent=chosen.redirect_permanent),
    )


def _url(bound: BoundListener) -> str:
    secure = "s" if bound.tls is not None else ""
    if bound.websocket is None:
        return f"mqtt{secure}://{bound.listener.address}"
    return f"ws{secure}://{bound.listener.address}{''.join(bound.websocket.paths) or '/'}"


def _websocket(settings: StreamListener, config: Config) -> WebSocketSettings | None:
    path: str | None = getattr(settings, "path", None)
    if path is None:
        return None
    # A certificate proves the name. Without one, a name is only as good as its credentials.
    proven = hasattr(settings, "tls")
    needs_login = config.security.anonymous == "never" or not (
        config.security.anonymous == "always" or is_loopback(settings.host)
    )
    return WebSocketSettings(
        # "mqttv3.1" is what clients of MQTT 3.1 offer.
        subprotocols=("mqtt", "mqttv3.1"),
        frame_bytes_max=config.mqtt.limits.packet_bytes + 16,
        paths=(path,) if path else (),
        origins=words(getattr(settings, "origins", "")),
        trusts_names=proven or needs_login,
    )


def _opening(first: bytes, connect_bytes_max: int) -> bytes | None:
    """A connection begins with CONNECT; whatever else comes, and a CONNECT that announces more than
    any may have, is closed without a word."""
    if first[0] != _CONNECT:
        return b""
    announced = 0
    for number, byte in enumerate(first[1:5]):  # MQTT5 1.5.5: seven bits a byte, the lowest first
        announced |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return None if announced <= connect_bytes_max else b""
    return None  # the rest is to come, or the protocol says what is wrong
