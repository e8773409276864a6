"""The door of an HTTP listener: connections wait in the lobby until their first bytes are there.

Rules: what `net/accepting.py` says holds here. As many connections may wait as may stand
(`admission.py`): with one more, the one that has waited for longest gets a 503. TLS begins when the
ClientHello is there. Each connection has the newest certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

from onelog.admin.admission import OPEN_PER_PLACE, Admission
from onelog.base.errors import ProtocolViolation
from onelog.net import Listener
from onelog.net.accepting import Arrival, FirstWords, Unserved, WaitingRoom
from onelog.net.client_hello import has_hello
from onelog.net.openings import first_bytes, http_opening, say_last
from onelog.net.tls import Tls

REQUEST_TIMEOUT_S: Final = 30.0
"""Time for one request, from its first byte (or the connection, for the first) to its last."""
_REFUSAL_BODY: Final = (
    b'{"error":{"code":"unavailable","message":"too many requests at once: try again in a second,'
    b' or raise connections_max of this listener"}}'
)
REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"cache-control: no-store\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_REFUSAL_BODY), _REFUSAL_BODY)
)


class HttpDoor:
    """Accepts the connections of one listener from now on."""

    def __init__(
        self,
        listener: Listener,
        protocol: Callable[[], asyncio.Protocol],
        admission: Admission,
        tls: Tls | None,
    ) -> None:
        self._protocol = protocol
        self._admission = admission
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[None]] = set()
        self._waiting_max = admission.places * OPEN_PER_PLACE
        self._room = WaitingRoom(listener, self, waiting_max=self._waiting_max)
        self._room.open()

    def close(self) -> None:
        """Accept no more, and close what waits. Connections that stand are left alone."""
        self._room.close()
        for task in self._entering:
            task.cancel()

    def accept(self, listening: socket.socket) -> bool:
        """Accept a connection, if one waits."""
        try:
            sock, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        sock.setblocking(False)
        deadline = self._loop.time() + REQUEST_TIMEOUT_S
        self._room.take(Arrival(sock.fileno(), sock, address, deadline))
        return True

    def greet(self, arrival: Arrival) -> FirstWords:
        """Whether the first bytes of the peer are enough to begin."""
        assert arrival.sock is not None
        if self._tls is not None:
            try:
                return FirstWords.ENOUGH if has_hello(arrival.sock) else FirstWords.TOO_FEW
            except ProtocolViolation:
                return FirstWords.NO_GOOD
        first = first_bytes(arrival.fd)
        words = http_opening(first) if first else b""
        if words is None:
            return FirstWords.ENOUGH
        say_last(arrival.fd, words)
        return FirstWords.NO_GOOD

    def dismissed(self, arrival: Arrival, why: Unserved) -> None:
        """A connection ends before it was served."""
        if why is Unserved.CROWDED:
            self._admission.refused += 1
            if self._tls is None and arrival.sock is not None:
                with contextlib.suppress(OSError):
                    arrival.sock.send(REFUSAL)

    def enter(self, arrival: Arrival) -> None:
        """Serve a connection."""
        assert arrival.sock is not None
        if len(self._entering) >= self._waiting_max:  # handshakes of TLS that do not go on
            self._admission.refused += 1
            arrival.sock.close()
            return
        task = self._loop.create_task(self._connect(arrival.sock))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _connect(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                sock,
                ssl=None if self._tls is None else self._tls.context,
                ssl_handshake_timeout=None if self._tls is None else REQUEST_TIMEOUT_S,
            )
        except OSError:  # no TLS, or the peer has gone
            sock.close()
