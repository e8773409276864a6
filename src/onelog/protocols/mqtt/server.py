"""MQTT on one node: its listeners as the configuration says, and the hub behind them.

Rules: ports are bound, and certificates read, before the broker recovers; nobody is accepted
before the hub is open. At the end nobody new is accepted, then everybody is told to leave (0x8B),
then sessions are saved; the broker closes after that.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ConfigError
from onelog.broker import Broker
from onelog.config import Config
from onelog.config.listeners import ListenerTls, StreamListener
from onelog.config.mqtt import Mqtt, MqttLimits
from onelog.net import (
    ConnectionLimits,
    Gate,
    Listener,
    ProxySettings,
    ServedListener,
    Tls,
    TlsSettings,
    WebSocketSettings,
    bind,
    start_listener,
)
from onelog.observe import Sample
from onelog.protocols.mqtt.connection import Connection
from onelog.protocols.mqtt.delayed import DelayedSettings
from onelog.protocols.mqtt.features import MqttFeatures, Redirect
from onelog.protocols.mqtt.hub import Hub
from onelog.protocols.mqtt.shares import ShareSettings, ShareStrategy
from onelog.protocols.mqtt.system import SystemSettings
from onelog.security.authenticator import Authenticator

NAMES = ("mqtt", "mqtt_tls", "mqtt_ws", "mqtt_wss")
"""The listeners of MQTT, as the configuration names them."""


class _Bound(msgspec.Struct, frozen=True):
    """A listener that is bound and not served yet."""

    listener: Listener
    tls: Tls | None
    websocket: WebSocketSettings | None
    proxy: ProxySettings | None

    @property
    def url(self) -> str:
        secure = "s" if self.tls is not None else ""
        if self.websocket is None:
            return f"mqtt{secure}://{self.listener.address}"
        return f"ws{secure}://{self.listener.address}{''.join(self.websocket.paths) or '/'}"


class MqttServer:
    """All listeners of MQTT. Call `bind`, then `start` when the broker is open, then `close`."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._bound: list[_Bound] = []
        self._served: list[ServedListener] = []
        self._hub: Hub | None = None
        limits = config.mqtt.limits
        self.gate = Gate(
            ConnectionLimits(
                total_max=limits.connections,
                per_host_max=limits.connections_per_ip,
                per_second_max=limits.connects_per_second,
            ),
            clock,
        )

    @property
    def listeners(self) -> list[tuple[Listener, str]]:
        """What is bound, and the address as clients write it."""
        return [(bound.listener, bound.url) for bound in self._bound]

    def bind(self) -> None:
        """Take every port. Raises Conflict or ConfigError, and then holds none."""
        try:
            for name in NAMES:
                settings: StreamListener = getattr(self._config.listeners, name)
                if settings.enabled:
                    self._bound.append(self._bind_one(name, settings))
        except BaseException:
            self._unbind()
            raise

    def _bind_one(self, name: str, settings: StreamListener) -> _Bound:
        found: ListenerTls | None = getattr(settings, "tls", None)
        tls = None if found is None else _tls(found, f"listeners.{name}.tls", self._clock)
        return _Bound(
            bind(name, settings.host, settings.port),
            tls,
            _websocket(settings, self._config.mqtt.limits),
            ProxySettings(trusted=_words(settings.proxy_trusted))
            if settings.proxy_protocol
            else None,
        )

    async def start(self, broker: Broker, authenticator: Authenticator) -> None:
        """Open the hub, then accept connections."""
        if not self._bound:
            return
        chosen = self._config.mqtt
        hub = Hub(broker, authenticator, chosen.limits, self._clock, _features(chosen))
        await hub.open()
        self._hub = hub
        for bound in self._bound:
            self._served.append(
                await start_listener(
                    bound.listener,
                    lambda peer: Connection(hub, peer),
                    self.gate,
                    tls=bound.tls,
                    websocket=bound.websocket,
                    proxy=bound.proxy,
                    handshake_timeout_s=hub.limits.connect_timeout_ms / 1000,
                )
            )

    async def close(self) -> None:
        """Accept no more, disconnect everybody, save sessions. Idempotent."""
        for served in self._served:
            served.close()
        for served in self._served:
            await served.wait_closed()
        self._served.clear()
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.close()
        self._unbind()

    def _unbind(self) -> None:
        for bound in self._bound:
            bound.listener.close()
        self._bound.clear()

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield from self.gate.samples("mqtt")
        hub = self._hub
        if hub is None:
            return
        counters = hub.counters
        totals = (
            ("connects_total", "Clients accepted.", counters.connects),
            ("connects_refused_total", "Clients refused.", counters.refused),
            ("disconnects_total", "Connections that ended.", counters.disconnects),
            ("fallen_behind_total", "Times a session fell behind.", counters.fallen_behind),
            ("received_bytes_total", "Bytes received.", hub.turn.received_bytes),
            (
                "delivered_bytes_total",
                "Bytes of messages sent.",
                hub.fanout.sent_bytes + counters.sent_bytes,
            ),
            (
                "delivered_messages_total",
                "Messages sent.",
                hub.fanout.delivered + counters.caught_up,
            ),
        )
        for name, about, value in totals:
            yield Sample(f"onelog_mqtt_{name}", about, "counter", value)
        sessions = hub.sessions.values()
        gauges = (
            ("connections", "Connections now.", len(hub.connections)),
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
        pairs = (word.split("=") for word in _words(shares.groups))
        by_group = {group.strip(): ShareStrategy(name.strip()) for group, name in pairs}
    except ValueError:
        known = ", ".join(ShareStrategy)
        raise ConfigError(
            f"mqtt.shares.groups = {shares.groups!r}: expected group=strategy, joined by commas, "
            f"with a strategy of {known}"
        ) from None
    return MqttFeatures(
        shares=ShareSettings(
            strategy=ShareStrategy(shares.strategy),
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


def _tls(settings: ListenerTls, name: str, clock: Clock) -> Tls:
    return Tls(
        TlsSettings(
            cert_file=settings.cert_file,
            key_file=settings.key_file,
            client_ca_file=settings.client_ca_file,
            client_cert=settings.client_cert,
            version_min=settings.version_min,
            alpn=("mqtt", "http/1.1"),
        ),
        clock,
        name,
    )


def _websocket(settings: StreamListener, limits: MqttLimits) -> WebSocketSettings | None:
    path: str | None = getattr(settings, "path", None)
    if path is None:
        return None
    return WebSocketSettings(
        # "mqttv3.1" is what clients of MQTT 3.1 offer.
        subprotocols=("mqtt", "mqttv3.1"),
        frame_bytes_max=limits.packet_bytes + 16,
        paths=(path,) if path else (),
        origins=_words(getattr(settings, "origins", "")),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
