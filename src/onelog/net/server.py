"""Serves a bound listener: limits, PROXY header, TLS, WebSocket, then the protocol.

Rules:
- A connection over a limit is closed at once, before a byte is read or a key is exchanged.
- PROXY header, TLS handshake and WebSocket upgrade share one deadline. TLS begins when the peer has
  sent its ClientHello.
- Plain TCP is served by the sockets that `net.backend` names (`sockets.py`), everything else by the
  loop's transports.
- Nothing of ours stands between these and a protocol over TCP or TLS: a read is one call of its
  `data_received`. A guard sees the beginning and the end of a connection, to count it, and the
  reads of a peer that is behind with reading (`pace.py`).
- Works on asyncio and on uvloop. Established connections belong to their protocol: closing the
  listener ends handshakes and leaves them alone.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import msgspec

from onelog.base.clock import SystemClock
from onelog.base.errors import ProtocolViolation
from onelog.base.networks import is_within, parse_networks
from onelog.net import proxy as proxy_header
from onelog.net.accepting import (
    ENOUGH,
    NO_GOOD,
    TOO_FEW,
    Arrival,
    FirstWords,
    Unserved,
    WaitingRoom,
)
from onelog.net.client_hello import has_hello, wait_for_hello
from onelog.net.gate import Gate
from onelog.net.listener import Listener
from onelog.net.openings import Opening, first_bytes, http_opening, say_last
from onelog.net.pace import PacedTransport
from onelog.net.peer import Peer, ProtocolFactory, StreamProtocol, Via
from onelog.net.sockets import AUTO, SharedSockets, open_sockets
from onelog.net.tls import Tls
from onelog.net.websocket import WebSocketServer, WebSocketSettings
from onelog.observe import Troubles, get_logger

_log = get_logger("net")

HANDSHAKE: Final = "handshake"
"""Incidents: a connection met a fault of ours before its protocol began."""
CONNECTION: Final = "connection"
"""Incidents: a protocol raised an error that it does not know when its connection called it."""


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The PROXY protocol of a listener: every connection begins with a header of version 2."""

    trusted: tuple[str, ...] = ()
    """Networks of the proxies, such as 10.0.0.0/8; none: every peer is trusted as a proxy."""


class ServedListener:
    """A listener that accepts connections; made by `start_listener`."""

    def __init__(  # noqa: PLR0913 - each is named by the caller
        self,
        listener: Listener,
        factory: ProtocolFactory,
        gate: Gate,
        *,
        tls: Tls | None,
        websocket: WebSocketSettings | None,
        proxy: ProxySettings | None,
        handshake_timeout_s: float,
        write_timeout_s: float,
        backend: str,
        speaks_first: bool,
        opening: Opening | None,
    ) -> None:
        self.listener = listener
        self.troubles = Troubles(SystemClock())
        """The register for our own faults; the protocol passes that of its broker."""
        self.gate = gate
        self._factory = factory
        self._tls = tls
        self._websocket = websocket
        self._proxy = proxy
        self._trusted = (
            parse_networks(f"listeners.{listener.name}.proxy_trusted", proxy.trusted)
            if proxy
            else ()
        )
        self._timeout_s = handshake_timeout_s
        self.write_timeout_s = write_timeout_s
        self._loop = asyncio.get_running_loop()
        self._loopback = listener.is_loopback
        is_plain = tls is None and websocket is None and proxy is None
        self._sockets: SharedSockets | None = open_sockets(backend) if is_plain else None
        # The client begins a TLS handshake, an upgrade and a PROXY header, whatever comes then.
        is_first = speaks_first and tls is None and websocket is None and proxy is None
        self._room = WaitingRoom(listener, self, speaks_first=is_first)
        self._opening = opening or _any_opening if websocket is None else http_opening
        self._handshakes: dict[asyncio.Task[None], _Guard] = {}
        self._closing = False
        secure, frames = tls is not None, websocket is not None
        self._via: Via = ("wss" if frames else "tls") if secure else ("ws" if frames else "tcp")

    def start(self) -> None:
        """Begin to accept."""
        self._room.open()

    def close(self) -> None:
        """Accept no more, end handshakes, leave connections alone. Idempotent."""
        self._closing = True
        self._room.close()
        if self._sockets is not None:
            self._sockets.close()
        for task, guard in self._handshakes.items():
            if not guard.made:  # else the loop would silently drop an established connection
                task.cancel()
        self.listener.close()

    async def wait_closed(self) -> None:
        """Wait until no handshake is left."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    # ---- from the backlog to the first bytes (`accepting.py`) ----

    def accept(self, listening: socket.socket) -> bool:
        """Accept a connection, if one waits."""
        sock: socket.socket | None = None
        if self._sockets is not None:
            found = self._sockets.accept(listening)
            if found is None:
                return False
            fd, address = found
        else:
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            sock.setblocking(False)
            fd = sock.fileno()
        deadline = self._loop.time() + self._timeout_s
        arrival = Arrival(fd, sock, address, deadline)
        if self._admits(arrival):
            self._room.take(arrival)
        else:
            arrival.close()
        return True

    def _admits(self, arrival: Arrival) -> bool:
        if not self.gate.enter():
            return False
        if self._proxy is None:  # else its header has the address
            arrival.host_key = self.gate.take_host(arrival.host)
            if arrival.host_key is None:
                self.gate.leave()
                return False
        return True

    def greet(self, arrival: Arrival) -> FirstWords:
        """Whether the first bytes of the peer are enough to begin."""
        if self._proxy is None and self._tls is not None:
            return self._greet_secure(arrival)
        first = first_bytes(arrival.fd)
        if not first:
            return NO_GOOD
        words = None if self._proxy is not None else self._opening(first)
        if words is None:
            return ENOUGH
        _log.info(
            "a peer does not speak what this listener serves",
            listener=self.listener.name,
            peer=arrival.host,
        )
        say_last(arrival.fd, words)
        return NO_GOOD

    def _greet_secure(self, arrival: Arrival) -> FirstWords:
        assert arrival.sock is not None
        try:
            return ENOUGH if has_hello(arrival.sock) else TOO_FEW
        except ProtocolViolation as error:
            self._debug_failed(arrival, str(error))
            return NO_GOOD

    def dismissed(self, arrival: Arrival, why: Unserved) -> None:
        """A connection ends before it was served."""
        self.gate.leave(arrival.host_key)
        if not self._closing:
            self.handshake_failed(why is Unserved.LATE)

    def enter(self, arrival: Arrival) -> None:
        """Serve a connection."""
        guard = _Guard(self, arrival)
        if self._sockets is not None:
            self._enter_own(self._sockets, arrival, guard)
            return
        assert arrival.sock is not None
        task = self._loop.create_task(self._shake(arrival.sock, arrival, guard))
        self._handshakes[task] = guard
        task.add_done_callback(partial(self._shaken, arrival.sock, arrival))

    def _enter_own(self, sockets: SharedSockets, arrival: Arrival, guard: _Guard) -> None:
        """Give a connection that needs no handshake to sockets of our own."""
        try:
            transport = sockets.add(arrival.fd, guard, arrival.address)
        except OSError as error:
            arrival.close()
            self.gate.leave(arrival.host_key)
            _log.error("connection refused", listener=self.listener.name, error=str(error))
            return
        guard.connection_made(cast("asyncio.Transport", transport))

    async def _shake(self, sock: socket.socket, arrival: Arrival, guard: _Guard) -> None:
        try:
            if self._proxy is not None:
                await self._read_proxy_header(sock, arrival)
                arrival.host_key = self.gate.take_host(arrival.host)
            if arrival.host_key is not None:
                if self._tls is not None and self._proxy is not None:
                    await wait_for_hello(sock, arrival.deadline)
                left_s = max(0.001, arrival.deadline - self._loop.time())
                make = cast("Callable[[], asyncio.Protocol]", lambda: guard)
                await self._loop.connect_accepted_socket(
                    make,
                    sock,
                    ssl=None if self._tls is None else self._tls.context,
                    ssl_handshake_timeout=None if self._tls is None else left_s,
                )
        except (OSError, TimeoutError, ProtocolViolation) as error:
            self._handshake_failed(arrival, error)

    def _shaken(self, sock: socket.socket, arrival: Arrival, task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step never runs.
        if not self._handshakes.pop(task).made:
            sock.close()
            self.gate.leave(arrival.host_key)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.troubles.note(HANDSHAKE, self.listener.name, error)

    async def _read_proxy_header(self, sock: socket.socket, arrival: Arrival) -> None:
        if self._trusted and not is_within(self._trusted, arrival.host):
            raise ProtocolViolation("the peer is not one of the trusted proxies (proxy_trusted)")
        header = b""
        async with asyncio.timeout_at(arrival.deadline):
            while wanted := proxy_header.bytes_wanted(header):
                data = await self._loop.sock_recv(sock, wanted)
                if not data:
                    raise ProtocolViolation("the PROXY header is cut off")
                header += data
        source = proxy_header.parse(header).source
        if source is not None:
            arrival.proxy_host = arrival.host
            arrival.host, arrival.port = source

    def _handshake_failed(self, arrival: Arrival, error: Exception) -> None:
        # Both loops end a TLS handshake at its deadline with an abort. Not by the clock: uvloop's
        # timers are whole milliseconds, and may be over a little before the deadline is.
        late = isinstance(error, TimeoutError | ConnectionAbortedError)
        self.handshake_failed(late)
        self._debug_failed(arrival, "too late" if late else str(error))

    def _debug_failed(self, arrival: Arrival, error: str) -> None:
        _log.debug("handshake failed", listener=self.listener.name, peer=arrival.host, error=error)

    # ---- making the protocol ----

    def handshake_failed(self, late: bool) -> None:
        """Count a connection that never reached its protocol."""
        self.gate.handshakes_failed += 1
        self.gate.handshakes_late += late

    def stuck(self, arrival: Arrival) -> None:
        """Report a peer that takes no bytes any more and is cut off."""
        self.gate.writes_stuck += 1
        _log.info(
            "connection ended",
            listener=self.listener.name,
            peer=f"{arrival.host}:{arrival.port}",
            reason="it takes no bytes",
        )

    def make(self, arrival: Arrival, transport: asyncio.BaseTransport) -> StreamProtocol:
        """The protocol of a connection that stands."""
        secure = transport.get_extra_info("ssl_object")
        peer = Peer(
            host=arrival.host,
            port=arrival.port,
            via=self._via,
            listener=self.listener.name,
            listener_is_loopback=self._loopback,
            certificate=None if secure is None else _certificate(secure),
            proxy_host=arrival.proxy_host,
        )
        if self._websocket is None:
            return self._factory(peer)
        left_s = max(0.001, arrival.deadline - self._loop.time())
        return WebSocketServer(
            self._websocket, lambda: self._factory(peer), left_s, self.handshake_failed
        )


class _Guard:
    """Counts one connection and steps aside: `data_received` is the protocol's own method."""

    __slots__ = ("_arrival", "_pace", "_served", "_transport", "_upper", "data_received", "made")

    def __init__(self, served: ServedListener, arrival: Arrival) -> None:
        self._served = served
        self._arrival = arrival
        self._upper: StreamProtocol | None = None
        self._transport: asyncio.Transport
        self._pace: PacedTransport | None = None
        self.made = False
        self.data_received: Callable[[bytes], None] = _ignore

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.made = True
        self._transport = transport
        try:
            upper = self._upper = self._served.make(self._arrival, transport)
        except BaseException:
            transport.abort()
            raise
        self._receive_by(upper.data_received)
        timeout_s = self._served.write_timeout_s
        self._pace = PacedTransport(transport, timeout_s, self)
        upper.connection_made(self._pace)

    def _receive_by(self, method: Callable[[bytes], None]) -> None:
        self.data_received = method
        # Tells the loop anew, because it remembers the method and not the object.
        self._transport.set_protocol(cast("asyncio.BaseProtocol", self))

    def eof_received(self) -> bool | None:
        return None if self._upper is None else self._upper.eof_received()

    def pause_writing(self) -> None:
        if self._upper is not None and self._pace is not None:
            self._pace.fell_behind()
            if self.data_received is not _ignore:
                self._receive_by(self._receive_slowly)
            self._upper.pause_writing()

    def resume_writing(self) -> None:
        if self._upper is not None and self._pace is not None:
            if self.data_received is not _ignore:
                self._receive_by(self._upper.data_received)
            self._pace.caught_up()
            self._upper.resume_writing()

    def _receive_slowly(self, data: bytes) -> None:
        if self._upper is not None and self._pace is not None:
            self._pace.receive(data, self._upper.data_received)

    def faulted(self, method: str, error: Exception) -> None:
        self._served.troubles.note(CONNECTION, f"{self._served.listener.name}, {method}", error)

    def parting(self) -> None:
        self._receive_by(_ignore)

    def stuck(self) -> None:
        self._served.stuck(self._arrival)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        upper, self._upper = self._upper, None
        self.data_received = _ignore
        if not self.made:
            return
        pace, self._pace = self._pace, None
        if pace is not None:
            pace.lost()
        self._served.gate.leave(self._arrival.host_key)
        if upper is not None:
            upper.connection_lost(exc)


def _any_opening(first: bytes) -> bytes | None:
    del first
    return None


def _ignore(data: bytes) -> None:
    del data


async def start_listener(  # noqa: PLR0913 - each is named by the caller
    listener: Listener,
    factory: ProtocolFactory,
    gate: Gate,
    *,
    tls: Tls | None = None,
    websocket: WebSocketSettings | None = None,
    proxy: ProxySettings | None = None,
    handshake_timeout_s: float = 10.0,
    write_timeout_s: float = 30.0,
    backend: str = AUTO,
    speaks_first: bool = False,
    opening: Opening | None = None,
) -> ServedListener:
    """Accept connections on a bound listener; `factory` makes the protocol of each.

    It is made when the first bytes of the peer are there and its `opening` has nothing against
    them, or at once if the protocol speaks first.
    """
    served = ServedListener(
        listener,
        factory,
        gate,
        tls=tls,
        websocket=websocket,
        proxy=proxy,
        handshake_timeout_s=handshake_timeout_s,
        write_timeout_s=write_timeout_s,
        backend=backend,
        speaks_first=speaks_first,
        opening=opening,
    )
    served.start()
    return served


def _certificate(secure: ssl.SSLObject) -> dict[str, Any] | None:
    found = secure.getpeercert()  # empty without a certificate, or when it was not verified
    return cast("dict[str, Any]", found) if found else None
