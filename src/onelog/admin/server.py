"""HTTP listeners: uvicorn inside our own event loop.

Rules: uvicorn touches no signal, no logging configuration and no loop policy; the process owns
those. Neither its main loop, which polls ten times a second, nor its servers run: connections come
from the lobby (`door.py`). An application that does not ask who it is serves loopback and nothing
else. A peer that takes no byte of its answer for `WRITE_TIMEOUT_S` is cut off, as in every
protocol, and so is one whose request is not there after `REQUEST_TIMEOUT_S` or has a head beyond
`HEAD_BYTES_MAX`: nobody has logged in by then. A request that announces a body beyond the bound of
its application is refused by its head: nothing is made for it. `admission.py` says who is served,
who makes room and who is sent away with a 503. Renewed certificates take effect without a restart.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, cast

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onelog.admin.admission import Admission
from onelog.admin.bodies import BodyBound
from onelog.admin.door import REFUSAL, REQUEST_TIMEOUT_S, HttpDoor
from onelog.base.errors import ConfigError
from onelog.net import Listener
from onelog.net.deadline import Deadline
from onelog.net.pace import WriteWatch
from onelog.net.tls import Tls
from onelog.observe import Sample

WRITE_TIMEOUT_S: Final = 30.0
"""How long a peer may take no bytes at all while some wait for it."""
HEAD_BYTES_MAX: Final = 128 * 1024
"""Bytes of one request apart from its body: line, headers, the frames of chunks, trailers."""
PARTING_S: Final = 2.0
"""How long a peer that was sent away may go on sending."""
_HEAD_OF_BODY: Final = b"\r\ncontent-length: "
"""An answer without a length is a stream: its head is of use before there is a body."""


class JoinedWrites:
    """The loop's transport as uvicorn has it: the head of an answer waits for the body.

    uvicorn writes one after the other, and each write is a call of the system.
    """

    def __init__(self, lower: asyncio.Transport) -> None:
        self._lower = lower
        self._head = b""
        self.abort = lower.abort
        self.can_write_eof = lower.can_write_eof
        self.get_extra_info = lower.get_extra_info
        self.get_write_buffer_size = lower.get_write_buffer_size
        self.is_closing = lower.is_closing
        self.pause_reading = lower.pause_reading
        self.resume_reading = lower.resume_reading
        self.set_protocol = lower.set_protocol

    def write(self, data: bytes) -> None:
        """Write, unless it is the head of an answer whose body is to come."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.endswith(b"\r\n\r\n") and _HEAD_OF_BODY in data:
            self._head = data
            return
        self._lower.write(data)

    def let_go(self) -> None:
        """Write what is held: no body came."""
        if self._head:
            head, self._head = self._head, b""
            self._lower.write(head)

    def write_eof(self) -> None:
        """Send what waits, and say that nothing more comes."""
        self.let_go()
        self._lower.write_eof()

    def close(self) -> None:
        """Send what waits, then end."""
        self.let_go()
        self._lower.close()


class WatchedHttp(HttpToolsProtocol):
    """uvicorn's connection; it pauses by itself, and waits no longer than this for its peer."""

    _joined: JoinedWrites
    _watch: WriteWatch
    _patience: Deadline
    _head_bytes = 0
    _was_answered = False
    _is_parting = False
    """Nothing that still comes counts."""

    def __init__(self, *, admission: Admission, body: BodyBound | None, **given: Any) -> None:
        super().__init__(**given)
        self._admission = admission
        self._bound = body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection stands."""
        self._joined = JoinedWrites(transport)
        super().connection_made(cast("asyncio.Transport", self._joined))
        loop = asyncio.get_running_loop()
        self._watch = WriteWatch(
            transport, Deadline(loop), WRITE_TIMEOUT_S, transport.abort, _nothing
        )
        self._patience = Deadline(loop)
        self._wait_for_request()
        self._admission.enter(self)

    def send_away(self) -> None:
        """Refuse the request, or the one that may be on its way, and close.

        A socket that is closed with unread bytes in it takes the answer back. So what the peer
        still sends is read and dropped, for `PARTING_S` at most. An idle connection that had an
        answer is closed without one: its client expects that.
        """
        self._admission.refused += 1
        self._part(REFUSAL)

    def _part(self, words: bytes) -> None:
        waits = self._admission.part(self)
        self._is_parting = True
        cycle = self.cycle
        is_idle = cycle is None or cycle.response_complete
        if is_idle and self._was_answered:
            if self.transport.get_write_buffer_size():
                self.transport.close()  # the end of its answer is on its way
            else:
                self.transport.abort()
            return
        if cycle is not None and not is_idle:
            cycle.disconnected = True  # the application learns that nobody listens any more
            cycle.message_event.set()
        if is_idle or not cycle.response_started:
            self.transport.write(words)
        if not waits:
            self.transport.close()
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._patience.start(PARTING_S, self.transport.abort)

    def _wait_for_request(self) -> None:
        self._patience.start(REQUEST_TIMEOUT_S, self._lose_patience)

    def _lose_patience(self) -> None:
        if self.flow.read_paused:  # it is we who do not read: an earlier request is answered first
            self._wait_for_request()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request came."""
        if self._is_parting:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self._is_parting:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._is_parting:
            return
        super().on_message_begin()
        self._wait_for_request()

    def on_headers_complete(self) -> None:
        """The head of a request is here: it gets a place, or is refused."""
        if self._is_parting:
            return
        if self._bound is not None and self._announces_more_than(self._bound.bytes_max):
            self._part(self._bound.answer)
        elif self._admission.take_place(self):
            super().on_headers_complete()
        else:
            self.send_away()

    def _announces_more_than(self, bytes_max: int) -> bool:
        """Whether the body will be longer. Behind a request that is not answered yet, the
        application says so when it is its turn."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        for name, value in self.headers:
            if name == b"content-length":
                return value.isdigit() and int(value) > bytes_max
        return False

    def on_body(self, body: bytes) -> None:
        """A part of the body came; the application bounds bodies."""
        if self._is_parting:
            return
        self._head_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        if self._is_parting:
            return
        self._head_bytes = 0
        self._patience.stop()
        self._admission.wait_for_answer(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is complete."""
        self._joined.let_go()
        self._was_answered = True
        if self.cycle.response_complete:  # else a request that came behind it is next
            self._admission.leave_place(self)
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops."""
        if self._is_parting:
            self.transport.abort()
        else:
            super().shutdown()

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
        self._admission.leave(self)
        self._watch.stop()
        self._patience.stop()
        super().connection_lost(exc)


def _nothing() -> None:
    """uvicorn reads no request while it answers one."""


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
        body: BodyBound | None = None,
    ) -> None:
        if not (listener.is_loopback or asks_who):
            raise ConfigError(
                f"listeners.{listener.name}.host = {listener.host!r} is reachable by other "
                "machines, and what it serves has no credentials yet: use 127.0.0.1, ::1 or "
                "localhost"
            )
        # uvicorn warns of each request that is no HTTP: whoever sends those could fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._listener = listener
        self._tls = tls
        self.admission = Admission(connections_max)
        self._body = body
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
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
        async with anyio.create_task_group():
            pass  # starlette's streams need one: the first one imports modules for 50 ms
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[])
        door = HttpDoor(self._listener, self._protocol, self.admission, self._tls)
        await self._closing.wait()
        door.close()
        await self._server.shutdown()

    def _protocol(self) -> WatchedHttp:
        """What serves one connection."""
        server = self._server
        return WatchedHttp(
            admission=self.admission,
            body=self._body,
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )

    def samples(self) -> tuple[Sample, ...]:
        """Numbers for the metrics."""
        labels = (("listener", self._listener.name), ("limit", "total"))
        about = "Connections closed at once because of a limit."
        refused = self.admission.refused
        return (Sample("onelog_connections_refused_total", about, "counter", refused, labels),)

    async def close(self) -> None:
        """Finish open requests (at most two seconds), then close the port. Idempotent."""
        self._closing.set()
        if self._task is not None:
            task, self._task = self._task, None
            await task
        self._listener.close()
