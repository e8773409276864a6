"""`$SYS/broker/…`: numbers of the broker as topics, for those who subscribe to them.

Rules: nothing is written to the log. The values are computed when a client subscribes, and every
`interval_s` while any client is subscribed. They have QoS 0; the first ones have the retain flag,
as retained messages do. The names are Mosquitto's where it has the number. Clients cannot publish
there.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

import msgspec

from onelog import __version__
from onelog.base.topics import matches
from onelog.kernel import MqttOutput
from onelog.protocols.mqtt.fitting import fit_packet
from onelog.protocols.mqtt.packets import Publish
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection
    from onelog.protocols.mqtt.hub import Hub
    from onelog.protocols.mqtt.session import MqttSession
    from onelog.protocols.mqtt.subscribed import Subscribed

PREFIX: Final = "$SYS/"
_WINDOWS_S: Final = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))


class SystemSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often the numbers are computed."""

    interval_s: float = 10.0


class _Load:
    """The rate of a counter per minute, averaged over the last minutes."""

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._count = 0
        self._rates = dict.fromkeys((name for name, _seconds in _WINDOWS_S), 0.0)

    def update(self, count: int, now_s: float) -> dict[str, str]:
        passed_s = now_s - self._at_s
        if passed_s > 0:
            rate = (count - self._count) * 60 / passed_s
            for name, window_s in _WINDOWS_S:
                share = 1 - math.exp(-passed_s / window_s)
                self._rates[name] += share * (rate - self._rates[name])
            self._at_s, self._count = now_s, count
        return {name: f"{rate:.2f}" for name, rate in self._rates.items()}


class System:
    """The numbers of a hub, and the sessions that subscribed to them."""

    def __init__(self, hub: Hub, settings: SystemSettings) -> None:
        self._hub = hub
        self._settings = settings
        self._started_s = hub.clock.monotonic()
        self._watchers: set[MqttSession] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._clients_max = 0
        self._loads = {
            name: _Load(self._started_s)
            for name in ("messages/received", "messages/sent", "bytes/received", "bytes/sent",
                         "connections")
        }  # fmt: skip

    @property
    def is_running(self) -> bool:
        """Whether any session is subscribed."""
        return self._timer is not None

    # -- subscribers

    def watch(self, session: MqttSession) -> None:
        """A session subscribes to these topics, or came back with such a subscription."""
        self._watchers.add(session)
        if self._timer is None:
            self._arm()

    def send(self, connection: Connection, wanted: Subscribed) -> None:
        """Send the current values to a new subscription."""
        session = connection.session
        if session is None:
            return
        identifiers = (wanted.identifier,) if wanted.identifier else ()
        properties = Properties(subscription_ids=identifiers) if identifiers else NO_PROPERTIES
        for topic, value in self.values().items():
            if matches(wanted.filter, topic) and session.may_have(topic):
                packet = Publish(
                    topic=topic, payload=value.encode(), retain=True, properties=properties
                )
                data = fit_packet(packet, session.output.version, session.output.packet_bytes_max)
                if data is not None:
                    session.output.push(data)
                    self._hub.counters.caught_up += 1
        session.write_out()

    def _arm(self) -> None:
        self._timer = self._hub.loop.call_later(self._settings.interval_s, self.refresh)

    def refresh(self) -> None:
        """Send the current values to all subscribers; stop when there are none."""
        self._timer = None
        self._watchers = {
            session
            for session in self._watchers
            if session.connection is not None
            and any(text.startswith(PREFIX) for text in session.subscriptions)
        }
        if not self._watchers:
            return
        touched: list[MqttOutput] = []
        fallen: list[tuple[MqttOutput, int]] = []  # no session falls behind at QoS 0
        now_ms = self._hub.clock.now_ms()
        for topic, value in self.values().items():
            self._hub.fanout.deliver_record(
                topic.encode(), value.encode(), (), (0, 0), now_ms, touched, fallen
            )
        for output in touched:
            output.owner.write_out()
        self._arm()

    # -- the numbers

    def values(self) -> dict[str, str]:
        """Every topic and its value."""
        hub, now_s = self._hub, self._hub.clock.monotonic()
        connected = len(hub.sessions)
        kept = hub.broker.sessions.count()
        self._clients_max = max(self._clients_max, connected)
        counters = {
            "messages/received": sum(
                partition.records_appended
                for stream in hub.broker.streams.streams()
                if not stream.is_internal
                for partition in stream.partitions
            ),
            "messages/sent": hub.delivered_messages,
            "bytes/received": hub.turn.received_bytes,
            "bytes/sent": hub.sent_bytes,
            "connections": hub.counters.connects,
        }
        found = {
            "version": f"OneLog {__version__}",
            "uptime": f"{int(now_s - self._started_s)} seconds",
            "clients/connected": str(connected),
            "clients/disconnected": str(kept - connected),
            "clients/total": str(kept),
            "clients/maximum": str(max(self._clients_max, kept)),
            "subscriptions/count": str(len(hub.fanout)),
            "shared_subscriptions/count": str(len(hub.shares.groups)),
            "retained messages/count": str(len(hub.retained)),
        }
        for name, count in counters.items():
            if name != "connections":
                found[name] = str(count)
            for window, rate in self._loads[name].update(count, now_s).items():
                found[f"load/{name}/{window}"] = rate
        return {f"{PREFIX}broker/{name}": value for name, value in found.items()}

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
