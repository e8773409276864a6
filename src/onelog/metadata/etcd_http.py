"""HTTP/1.1 to one member of etcd: connections that carry one request at a time, all of it bounded.

Rules:
- An answer has at most `ANSWER_BYTES_MAX` bytes, and so has a line of a stream. More of them, or
  bytes that are not HTTP, end the connection with `HttpFailed`.
- `HttpFailed.sent` says whether the member may have got the request. Only if it surely did not, a
  mutation may be tried elsewhere.
- A stream stops reading from the socket while its reader has enough (`pause`).
- Nothing here knows etcd; nothing here waits without a deadline of the caller.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from onelog.base.errors import InvalidRequest

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one answer, or of one line of a stream. The longest line has two values of 1.5 MB, in
base64."""
HEADER_BYTES_MAX: Final = 64 * 1024
"""Bytes of the headers of an answer."""
_OK: Final = 200


class Endpoint(NamedTuple):
    """Where a member of etcd listens for clients."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """An endpoint such as https://10.0.0.1:2379. Raises InvalidRequest."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"{text!r} is no endpoint of etcd: {error}") from None
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_bare:
        raise InvalidRequest(
            f"{text!r} is no endpoint of etcd: write http://HOST:PORT or https://HOST:PORT"
        )
    return Endpoint(parts.hostname, 2379 if port is None else port, parts.scheme == "https")


class HttpAnswer(NamedTuple):
    """The whole answer to a request."""

    status: int
    body: bytes


class HttpFailed(Exception):
    """A request without a usable answer."""

    def __init__(
        self, text: str, *, sent: bool, too_large: bool = False, is_cut: bool = False
    ) -> None:
        super().__init__(text)
        self.sent = sent
        """Whether the member may have got the request."""
        self.too_large = too_large
        """Whether its answer was longer than any may be."""
        self.is_cut = is_cut
        """Whether the connection ended under the request."""


class HttpConnection(asyncio.Protocol):
    """One connection. `on_end` is called once, when it can carry no further request."""

    def __init__(self, endpoint: Endpoint, on_end: Callable[[HttpConnection], None]) -> None:
        self._endpoint = endpoint
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._on_line: Callable[[bytes], None] | None = None
        self._on_cut: Callable[[HttpFailed], None] | None = None
        self._body = bytearray()
        self._header_bytes = 0
        self._is_closed = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the socket is closed."""

    @property
    def is_closed(self) -> bool:
        """Whether it can carry no further request."""
        return self._is_closed

    # -- requests

    async def ask(self, method: str, path: str, headers: str, body: bytes) -> HttpAnswer:
        """Send a request and wait for its answer. Raises HttpFailed.

        A caller that stops waiting ends the connection: its answer could be taken for the next.
        """
        self._send(method, path, headers, body)
        waiter: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        try:
            return await waiter
        finally:
            if not waiter.done() or waiter.cancelled():
                self.close()
            self._waiter = None

    def stream(
        self,
        path: str,
        headers: str,
        body: bytes,
        on_line: Callable[[bytes], None],
        on_cut: Callable[[HttpFailed], None],
    ) -> None:
        """Send a request whose answer is lines without an end. `on_cut` says why they ended."""
        self._on_line, self._on_cut = on_line, on_cut
        self._send("POST", path, headers, body)

    def _send(self, method: str, path: str, headers: str, body: bytes) -> None:
        if self._transport is None or self._is_closed:
            raise HttpFailed(f"the connection to {self._endpoint} ended", sent=False)
        assert self._waiter is None, "a connection carries one request at a time"
        self._body.clear()
        self._header_bytes = 0
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._endpoint.host}\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + body)

    def pause(self) -> None:
        """Read no more bytes of a stream."""
        if self._transport is not None and not self._is_closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._is_closed:
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection; whoever waits for an answer gets an error. Idempotent."""
        self._end(f"the connection to {self._endpoint} was closed")

    def _end(self, why: str, *, too_large: bool = False, is_cut: bool = False) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
        failure = HttpFailed(why, sent=True, too_large=too_large, is_cut=is_cut)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(failure)
        if self._on_cut is not None:
            on_cut, self._on_cut = self._on_cut, None
            on_cut(failure)
        self._on_end(self)

    # -- as the protocol of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer or the network ended it."""
        why = f"{self._endpoint} ended the connection{f' ({exc})' if exc else ''}"
        self._end(why, is_cut=True)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._is_closed:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"{self._endpoint} sent bytes that are not HTTP ({error})")
        except httptools.HttpParserUpgrade:
            self._end(f"{self._endpoint} wants to speak something else than HTTP")

    # -- as the listener of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; none of them matters, but their sum is bounded."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES_MAX:
            self._end(f"{self._endpoint} sent more than {HEADER_BYTES_MAX} bytes of headers")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._is_closed:
            return
        self._body += data
        is_stream = self._on_line is not None and self._parser.get_status_code() == _OK
        if is_stream and b"\n" in data:
            self._take_lines()
        if len(self._body) > ANSWER_BYTES_MAX:
            what = f"{self._endpoint} sent an answer of more than {ANSWER_BYTES_MAX} bytes"
            self._end(what, too_large=True)

    def _take_lines(self) -> None:
        assert self._on_line is not None
        *lines, rest = self._body.split(b"\n")
        if lines:
            self._body = bytearray(rest)
        for line in lines:
            if line and not self._is_closed:
                self._on_line(bytes(line))

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._is_closed or self._parser.get_status_code() < _OK:  # 100 Continue
            return
        if self._on_line is not None:
            if self._body:  # an error, or a last line
                self._on_line(bytes(self._body))
            self._end(f"{self._endpoint} ended the stream")
            return
        if self._waiter is None:
            self._end(f"{self._endpoint} answered what was not asked")
            return
        if not self._waiter.done():
            body = bytes(self._body)
            self._waiter.set_result(HttpAnswer(self._parser.get_status_code(), body))
        if not self._parser.should_keep_alive():
            self._end(f"{self._endpoint} ended the connection")


async def connect(
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    on_end: Callable[[HttpConnection], None] = lambda _connection: None,
) -> HttpConnection:
    """A new connection. Raises HttpFailed, whose request was not sent."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            lambda: HttpConnection(endpoint, on_end),
            endpoint.host,
            endpoint.port,
            ssl=tls if endpoint.is_tls else None,
        )
    except (OSError, ssl.SSLError) as error:
        raise HttpFailed(f"{endpoint} cannot be reached: {error}", sent=False) from None
    return connection
