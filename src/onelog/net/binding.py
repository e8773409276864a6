"""The listeners of one protocol, as the configuration names them: bound, then served, then closed.

Rules: ports are bound, and certificates read, before the broker recovers; no connection is accepted
before `serve`. If one port cannot be bound, all are released. A second `serve` sets the factory for
new connections; existing connections stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from onelog.base.clock import Clock
from onelog.config.listeners import ListenerTls, ServerTls, StreamListener
from onelog.net.gate import Gate, GateLimits
from onelog.net.listener import Listener, bind
from onelog.net.openings import Opening
from onelog.net.peer import Peer, StreamProtocol
from onelog.net.server import ProxySettings, ServedListener, start_listener
from onelog.net.sockets import AUTO, chosen_backend
from onelog.net.tls import Tls, TlsSettings
from onelog.net.websocket import WebSocketSettings
from onelog.observe import Troubles


class BoundListener(msgspec.Struct, frozen=True):
    """A listener that is bound and not served yet."""

    listener: Listener
    tls: Tls | None
    websocket: WebSocketSettings | None
    proxy: ProxySettings | None
    settings: StreamListener


Factory = Callable[[BoundListener, Peer], StreamProtocol]


class ConnectionBounds(Protocol):
    """The limits of connections that every protocol has; 0 is no bound."""

    @property
    def connections(self) -> int:
        """Connections at once, in all."""
        ...

    @property
    def connections_per_ip(self) -> int:
        """Connections at once, from one address."""
        ...

    @property
    def connects_per_second(self) -> int:
        """New connections per second; more are closed at once."""
        ...

    @property
    def write_timeout_ms(self) -> int:
        """How long a peer may take no bytes, although some wait for it."""
        ...


class ProtocolListeners:
    """All listeners of one protocol, and the gate before them."""

    def __init__(
        self,
        clock: Clock,
        bounds: ConnectionBounds,
        alpn: Sequence[str] = (),
        backend: str = AUTO,
        opening: Opening | None = None,
    ) -> None:
        self._clock = clock
        self._opening = opening
        self._backend = backend
        self._alpn = tuple(alpn)
        self._write_timeout_s = bounds.write_timeout_ms / 1000
        self.gate = Gate(
            GateLimits(
                total_max=bounds.connections,
                per_host_max=bounds.connections_per_ip,
                per_second_max=bounds.connects_per_second,
            ),
            clock,
        )
        self.bound: list[BoundListener] = []
        self._served: list[ServedListener] = []
        self._factory: Factory

    def bind(
        self,
        listeners: Mapping[str, StreamListener],
        websocket: Callable[[StreamListener], WebSocketSettings | None] = lambda _settings: None,
    ) -> None:
        """Take the port of every enabled listener. Raises Conflict or ConfigError."""
        chosen_backend(self._backend)
        try:
            for name, settings in listeners.items():
                if settings.enabled:
                    self.bound.append(self._bind_one(name, settings, websocket(settings)))
        except BaseException:
            self._unbind()
            raise

    def _bind_one(
        self, name: str, settings: StreamListener, websocket: WebSocketSettings | None
    ) -> BoundListener:
        found: ListenerTls | None = getattr(settings, "tls", None)
        trusted = words(settings.proxy_trusted)
        return BoundListener(
            bind(name, settings.host, settings.port),
            None
            if found is None
            else listener_tls(found, f"listeners.{name}.tls", self._clock, self._alpn),
            websocket,
            ProxySettings(trusted=trusted) if settings.proxy_protocol else None,
            settings,
        )

    async def serve(
        self,
        factory: Factory,
        handshake_timeout_s: float,
        troubles: Troubles,
        guards: tuple[Callable[[str], bool], ...] = (),
    ) -> None:
        """Accept connections; `factory` makes the protocol of each. A guard that says no to an
        address keeps it out."""
        self._factory = factory
        self.gate.guards = guards
        for bound in self.bound[len(self._served) :]:
            served = await start_listener(
                bound.listener,
                lambda peer, bound=bound: self._factory(bound, peer),  # type: ignore[misc]
                self.gate,
                tls=bound.tls,
                websocket=bound.websocket,
                proxy=bound.proxy,
                handshake_timeout_s=handshake_timeout_s,
                write_timeout_s=self._write_timeout_s,
                backend=self._backend,
                opening=self._opening,
            )
            served.troubles = troubles
            if bound.tls is not None:
                bound.tls.troubles = troubles
            self._served.append(served)

    def addresses(self, scheme: str) -> list[tuple[Listener, str]]:
        """The names of the listeners, with their addresses as people write them."""
        return [
            (bound.listener, f"{scheme}{'s' if bound.tls else ''}://{bound.listener.address}")
            for bound in self.bound
        ]

    async def stop_accepting(self) -> None:
        """Accept no more connections. Idempotent."""
        for served in self._served:
            served.close()
        for served in self._served:
            await served.wait_closed()
        self._served.clear()

    def close(self) -> None:
        """Give the ports back. Idempotent."""
        self._unbind()

    def _unbind(self) -> None:
        for bound in self.bound:
            bound.listener.close()
        self.bound.clear()


def listener_tls(settings: ServerTls, name: str, clock: Clock, alpn: tuple[str, ...] = ()) -> Tls:
    """The TLS of a listener; `name` is the section that errors speak of. Raises ConfigError."""
    clients = settings if isinstance(settings, ListenerTls) else ListenerTls()
    return Tls(
        TlsSettings(
            cert_file=settings.cert_file,
            key_file=settings.key_file,
            client_ca_file=clients.client_ca_file,
            client_cert=clients.client_cert,
            version_min=settings.version_min,
            alpn=alpn,
        ),
        clock,
        name,
    )


def words(text: str) -> tuple[str, ...]:
    """The words of a configuration key that joins them by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
