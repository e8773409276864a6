"""HTTP listeners: uvicorn inside our own event loop.

Rules: uvicorn touches no signal, no logging configuration and no loop policy; the process owns
those. Its main loop, which polls ten times a second, does not run: it accepts by the event loop
and ends when it is closed. An application that does not ask who it is serves loopback and nothing
else. A peer that takes no byte of its answer for `WRITE_TIMEOUT_S` is cut off, as in every
protocol, and so is one whose request is not there after `REQUEST_TIMEOUT_S` or has a head beyond
`HEAD_BYTES_MAX`: nobody has logged in by then. When all places are taken, a connection that waits
for its own peer makes room, so that idle peers keep no probe out. Renewed certificates take effect
without a restart.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onelog.base.errors import ConfigError
from onelog.net import Listener
from onelog.net.deadline import Deadline
from onelog.net.pace import WriteWatch
from onelog.net.tls import Tls

WRITE_TIMEOUT_S: Final = 30.0
"""How long a peer may take no bytes at all while some wait for it."""
REQUEST_TIMEOUT_S: Final = 30.0
"""Time for one request, from its first byte (or the connection, for the first) to its last."""
HEAD_BYTES_MAX: Final = 128 * 1024
"""Bytes of one request apart from its body: line, headers, the frames of chunks, trailers."""


class WatchedHttp(HttpToolsProtocol):
    """uvicorn's connection; it pauses by itself, and waits no longer than this for its peer."""

    _watch: WriteWatch
    _patience: Deadline
    _head_bytes = 0
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection stands."""
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._watch = WriteWatch(
            transport, Deadline(loop), WRITE_TIMEOUT_S, transport.abort, _nothing
        )
        self._patience = Deadline(loop)
        self._wait_for_request()
        self._make_room()

    @property
    def waits_for_peer(self) -> bool:
        """Whether no request is here that could be answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _make_room(self) -> None:
        """Close the connections that wait for longest, if there are too many."""
        limit = self.limit_concurrency
        if limit is None or len(self.connections) < limit:
            return
        others = (row for row in self.connections if isinstance(row, WatchedHttp))
        waiting = [row for row in others if row.waits_for_peer and row is not self]
        waiting.sort(key=lambda row: row._since)
        for row in waiting[: len(self.connections) - limit + 1]:
            self.connections.discard(row)  # its place is free now, not when it is lost
            if row.transport.get_write_buffer_size():
                row.transport.close()  # the end of its answer is on its way
            else:
                row.transport.abort()

    def _wait_for_request(self) -> None:
        self._since = self.loop.time()
        self._patience.start(REQUEST_TIMEOUT_S, self._lose_patience)

    def _lose_patience(self) -> None:
        if self.flow.read_paused:  # it is we who do not read: an earlier request is answered first
            self._wait_for_request()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request came."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._wait_for_request()

    def on_body(self, body: bytes) -> None:
        """A part of the body came; the application bounds bodies."""
        self._head_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        self._head_bytes = 0
        self._patience.stop()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        super().pause_writing()
        self._watch.start()

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        self._watch.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._watch.stop()
        self._patience.stop()
        super().connection_lost(exc)


def _nothing() -> None:
    """uvicorn reads no request while it answers one."""


def _renewing(tls: Tls) -> ssl.SSLContext:
    """A context that lets each new connection have the newest certificate."""
    context = tls.context

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = tls.context

    context.sni_callback = renew
    return context


class HttpServer:
    """Serves one application until it is closed."""

    def __init__(
        self,
        listener: Listener,
        application: ASGIApp,
        connections_max: int,
        *,
        asks_who: bool = False,
        tls: Tls | None = None,
    ) -> None:
        if not (listener.is_loopback or asks_who):
            raise ConfigError(
                f"listeners.{listener.name}.host = {listener.host!r} is reachable by other "
                "machines, and what it serves has no credentials yet: use 127.0.0.1, ::1 or "
                "localhost"
            )
        self._listener = listener
        self._tls = tls
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                loop="none",
                http=WatchedHttp,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=connections_max,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=2,
            )
        )
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin to answer; the task ends with `close`, or with the error that ended the server."""
        assert self._task is None
        self._task = asyncio.create_task(self._serve(), name=f"{self._listener.name}-server")
        return self._task

    async def _serve(self) -> None:
        self._server.config.load()
        if self._tls is not None:
            self._server.config.ssl = _renewing(self._tls)
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=self._listener.sockets)
        await self._closing.wait()
        await self._server.shutdown(sockets=self._listener.sockets)

    async def close(self) -> None:
        """Finish open requests (at most two seconds), then close the port. Idempotent."""
        self._closing.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task
        self._listener.close()
