"""One blocking connection to a broker: TLS, login, and an answer for each request, in order.

Rules: what goes wrong is an OnelogError that names the address; what broke is not used again.
Nobody waits for ever. All answers are read into one buffer, and records stay where they came: what
is seen of an answer is good until the next one is read.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from onelog.base.errors import NotAuthenticated, OnelogError, ProtocolViolation, Unavailable
from onelog.kafka_client import codes, wire
from onelog.kafka_client.access import Access, Address
from onelog.kafka_client.apis import VERSIONS, Api
from onelog.kafka_client.wire import Reader

ANSWER_BYTES_MAX: Final = 256 << 20
RECEIVE_BUFFER_BYTES: Final = 4 << 20
KEPT_BYTES_MAX: Final = 32 << 20
"""A buffer that a larger answer needed is not kept for the next."""


class Link:
    """A connection that is logged in."""

    def __init__(self, address: Address, access: Access) -> None:
        self._address = address
        self._client_id = access.client_id
        self._answer_s = access.answer_s
        self._number = 0
        self._waiting: list[int] = []
        self._buffer = bytearray()
        self.broken = False
        """Whether bytes were lost: nothing can be asked any more."""
        try:
            self._socket = socket.create_connection(address, access.connect_s)
        except OSError as error:
            raise Unavailable(f"nothing answers at {self} ({error})") from error
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls:
                self._secure(access)
            if access.user:
                self._log_in(access)
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return "{}:{}".format(*self._address)

    def _secure(self, access: Access) -> None:
        import ssl  # noqa: PLC0415

        context = access.context()
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self._address[0])
        except ssl.SSLError as error:
            raise NotAuthenticated(
                f"{self} does not offer TLS that can be trusted ({error})"
            ) from error
        except OSError as error:
            raise Unavailable(f"the connection to {self} broke ({error})") from error

    def _log_in(self, access: Access) -> None:
        reader = self.ask(Api.SASL_HANDSHAKE, wire.text(access.mechanism))
        code = reader.number("h")
        if code:
            offered = ", ".join(name for name in reader.rows(reader.string) if name)
            raise NotAuthenticated(f"{self} offers {offered}, not {access.mechanism}")
        from onelog.kafka_client.login import LOGINS  # noqa: PLC0415

        steps = LOGINS[access.mechanism](access)
        said = next(steps)
        while True:
            reader = self.ask(Api.SASL_AUTHENTICATE, wire.blob(said))
            code, words = reader.number("h"), reader.string()
            if code:
                raise NotAuthenticated(
                    f"{self} does not let {access.user} in:"
                    f" {words or codes.meaning(code).words} (error {code})"
                )
            try:
                said = steps.send(bytes(reader.blob()))
            except StopIteration:
                return

    def fileno(self) -> int:
        """Of the socket."""
        return self._socket.fileno()

    def has_more(self) -> bool:
        """Whether TLS holds bytes that were received and not read."""
        pending = getattr(self._socket, "pending", None)
        return pending is not None and pending() > 0

    # -- requests

    def ask(
        self, api: int, body: bytes, *, version: int | None = None, wait_s: float = 0.0
    ) -> Reader:
        """Send a request and read its answer; `wait_s` is how long the broker may wait itself."""
        self.send(api, body, version=version)
        return self.answer(wait_s)

    def send(self, api: int, body: bytes, *, version: int | None = None) -> None:
        """Send a request; its answer comes after those of all before it."""
        self._number = (self._number + 1) & 0x7FFF_FFFF
        chosen = VERSIONS[api] if version is None else version
        try:
            self._socket.settimeout(self._answer_s)
            self._socket.sendall(wire.request(api, chosen, self._number, self._client_id, body))
        except OSError as error:
            self.broken = True
            raise Unavailable(f"the connection to {self} broke ({error})") from error
        self._waiting.append(self._number)

    def answer(self, wait_s: float = 0.0) -> Reader:
        """The answer to the oldest request that has none."""
        assert self._waiting, "nothing was asked"
        ends = time.monotonic() + self._answer_s + wait_s
        broken, self.broken = self.broken, True  # until the whole answer is here
        size = int.from_bytes(self._read(4, ends), "big")
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise ProtocolViolation(f"{self} does not speak Kafka")
        reader = Reader(self._read(size, ends))
        if reader.number("i") != self._waiting.pop(0):
            raise ProtocolViolation(f"{self} answers what was not asked")
        self.broken = broken
        return reader

    def _room(self, size: int) -> memoryview:
        if not size <= len(self._buffer) <= KEPT_BYTES_MAX:
            # Somebody may still hold what he saw of the last one: it is left to him.
            self._buffer = bytearray(max(size, 1 << 16))
        return memoryview(self._buffer)[:size]

    def _read(self, size: int, ends: float) -> memoryview:
        view = self._room(size)
        got = 0
        try:
            while got < size:
                self._socket.settimeout(max(0.001, ends - time.monotonic()))
                count = self._socket.recv_into(view[got:])
                if not count:
                    raise Unavailable(f"{self} closed the connection")
                got += count
        except TimeoutError:
            raise Unavailable(f"{self} does not answer") from None
        except OSError as error:
            raise Unavailable(f"the connection to {self} broke ({error})") from error
        return view

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def open_link(access: Access) -> Link:
    """A connection to the first of the servers that answers. Raises Unavailable."""
    told: list[str] = []
    for address in access.servers:
        try:
            return Link(address, access)
        except OnelogError as error:
            if not error.retriable:
                raise
            told.append(str(error))
    raise Unavailable("; ".join(told))
