"""A blocking connection to a broker: connect, send, receive, each with a deadline.

Rules: every error is an OnelogError that names the address. Every wait for an answer has a
deadline; the user chooses how long to wait for messages (`Patience`).
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Final, NoReturn

from onelog.base.errors import ConfigError, Timeout, Unavailable
from onelog.cli.failures import NotReachable

ANSWER_S: Final = 30.0
"""How long a broker may take to answer, unless the user says otherwise."""
CHUNK_BYTES: Final = 65_536


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """The address of a broker, and the login to use there."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    tls: bool = False
    ca_file: str = ""
    answer_s: float = ANSWER_S
    """How long the broker may take to answer."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Patience:
    """How long to wait for messages: in all, and between two of them; None: for ever."""

    def __init__(self, timeout_s: float | None = None, idle_s: float | None = None) -> None:
        self._ends = None if timeout_s is None else time.monotonic() + timeout_s
        self._idle_s = idle_s
        self._idle_ends = 0.0
        self.refresh()

    def refresh(self) -> None:
        """A message came."""
        if self._idle_s is not None:
            self._idle_ends = time.monotonic() + self._idle_s

    def left_s(self, at_most_s: float) -> float:
        """How long to wait now; 0 when there is no more time."""
        now, left = time.monotonic(), at_most_s
        if self._ends is not None:
            left = min(left, self._ends - now)
        if self._idle_s is not None:
            left = min(left, self._idle_ends - now)
        return max(0.0, left)


class Link:
    """A socket to a broker."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self.buffer = bytearray()
        try:
            self._socket = socket.create_connection((address.host, address.port), address.answer_s)
        except OSError as error:
            raise NotReachable(f"nothing answers at {address} ({error})") from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            self._secure()

    def _secure(self) -> None:
        import ssl  # noqa: PLC0415 - most connections have none

        address = self.address
        try:
            context = ssl.create_default_context(cafile=address.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--ca-file {address.ca_file}: {error}") from error
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        except (OSError, ssl.SSLError) as error:
            raise NotReachable(
                f"{address} does not offer TLS that can be trusted ({error})"
            ) from error

    def fileno(self) -> int:
        """Of the socket, for those who wait for several."""
        return self._socket.fileno()

    def send(self, data: bytes | bytearray) -> None:
        """Write all of it. Raises Unavailable, Timeout."""
        try:
            self._socket.settimeout(self.address.answer_s)
            self._socket.sendall(data)
        except TimeoutError:
            raise Timeout(f"{self.address} reads no more bytes") from None
        except OSError as error:
            self._fail(error)

    def receive(self, timeout_s: float) -> bool:
        """Take more bytes into the buffer; False when none came in time. Raises Unavailable."""
        try:
            # 0 would not wait at all for bytes that TLS has already.
            self._socket.settimeout(max(timeout_s, 0.001))
            data = self._socket.recv(CHUNK_BYTES)
        except TimeoutError:
            return False
        except OSError as error:
            self._fail(error)
        if not data:
            raise Unavailable(f"{self.address} closed the connection")
        self.buffer += data
        return True

    def receive_there(self) -> None:
        """Take the bytes that are there already, TLS's own buffer too. Raises Unavailable."""
        self.receive(0)
        while self.address.tls and self._socket.pending():  # type: ignore[attr-defined]
            self.receive(0)

    def receive_answer(self) -> None:
        """Take more bytes that have to come. Raises Unavailable, Timeout."""
        if not self.receive(self.address.answer_s):
            raise Timeout(f"{self.address} does not answer")

    def take(self, count: int) -> bytes:
        """The first bytes of the buffer, which has them."""
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _fail(self, error: OSError) -> NoReturn:
        raise Unavailable(f"the connection to {self.address} broke ({error})") from error
