"""The inner listener: where other nodes connect.

Rules: it binds what the configuration names, loopback unless told otherwise; without certificates
and without a secret nothing but loopback and Unix sockets is bound. Its connections are counted by
a gate, and a peer that does not begin with HELLO is turned away before anything is made for it. A
Unix socket has mode 0600: only the user of the broker (and root) can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Final

from onelog.base.clock import Clock
from onelog.base.errors import ConfigError
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.connection import SHAKE_S
from onelog.cluster.link.layout import (
    INNER_HEAD_BYTES,
    LENGTH_BYTES,
    SHAKE_BYTES_MAX,
    LinkKind,
)
from onelog.cluster.link.links import Links
from onelog.cluster.link.security import LinkSecurity
from onelog.net import Gate, GateLimits, Listener, ServedListener, bind, start_listener
from onelog.net.sockets import LOOP
from onelog.observe import Troubles

CONNECTIONS_MAX: Final = 1_000
CONNECTS_PER_SECOND: Final = 100
"""Beyond, a connection is closed at once: nodes come again."""
WRITE_TIMEOUT_S: Final = 10.0
NAME: Final = "inner"


def inner_opening(first: bytes) -> bytes | None:
    """A link begins with a HELLO, which is short."""
    size = int.from_bytes(first[:LENGTH_BYTES], "big")
    is_short = len(first) < LENGTH_BYTES or INNER_HEAD_BYTES <= size <= SHAKE_BYTES_MAX
    is_hello = len(first) <= LENGTH_BYTES or first[LENGTH_BYTES] == LinkKind.HELLO
    return None if is_short and is_hello else b""


class BoundInner:
    """A bound inner listener, which is served once there are links."""

    def __init__(self, address: LinkAddress, security: LinkSecurity, clock: Clock) -> None:
        """Bind. Raises ConfigError and Conflict."""
        security.check(address, "listeners.inner.host")
        self._security = security
        self.gate = Gate(
            GateLimits(total_max=CONNECTIONS_MAX, per_second_max=CONNECTS_PER_SECOND), clock
        )
        self._listener: Listener | None = None
        self._unix: socket.socket | None = None
        self._served: ServedListener | None = None
        self._server: asyncio.AbstractServer | None = None
        if address.path:
            self._unix = bind_unix(address.path)
            self.address = address
        else:
            self._listener = bind(NAME, address.host, address.port)
            self.address = LinkAddress(host=address.host, port=self._listener.port)

    async def serve(self, links: Links, troubles: Troubles) -> None:
        """Accept connections of nodes."""
        secure = self._security.accepting
        if secure is not None:
            secure.troubles = troubles
        if self._unix is not None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(
                links.accept, sock=self._unix, ssl=None if secure is None else secure.context
            )
            return
        assert self._listener is not None
        self._served = await start_listener(
            self._listener,
            lambda _peer: links.accept(),
            self.gate,
            tls=secure,
            handshake_timeout_s=SHAKE_S,
            write_timeout_s=WRITE_TIMEOUT_S,
            backend=LOOP,
            opening=inner_opening,
        )
        self._served.troubles = troubles

    async def close(self) -> None:
        """Accept no more; links that stand go on. Idempotent."""
        if self._served is not None:
            self._served.close()
            await self._served.wait_closed()
            self._served = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._unix is not None:
            self._unix.close()
            self._unix = None
            _unlink(self.address.path)
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def bind_unix(path: str) -> socket.socket:
    """A listening Unix socket. Its file is the broker's: an old one is stale. Raises
    ConfigError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), 0o600)  # before the bind: the file never has another mode
        _unlink(path)
        sock.bind(path)
        sock.listen(64)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"the inner listener cannot use the socket {path!r}: {error.strerror or error}"
        ) from None
    return sock


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(path).unlink()
