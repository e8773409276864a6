"""HTTP listeners: uvicorn inside our own event loop.

Rules: uvicorn touches no signal, no logging configuration and no loop policy; the process owns
those. Its main loop, which polls ten times a second, does not run: it accepts by the event loop
and ends when it is closed. An application that does not ask who it is serves loopback and nothing
else. A peer that takes no byte of its answer for `WRITE_TIMEOUT_S` is cut off, as in every
protocol. Renewed certificates take effect without a restart.
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


class WatchedHttp(HttpToolsProtocol):
    """uvicorn's connection; it pauses by itself, and waits no longer than this for its peer."""

    _watch: WriteWatch

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection stands."""
        super().connection_made(transport)
        deadline = Deadline(asyncio.get_running_loop())
        self._watch = WriteWatch(transport, deadline, WRITE_TIMEOUT_S, transport.abort, _nothing)

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
