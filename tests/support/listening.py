"""Listeners for tests: a protocol that echoes, on a real socket, on asyncio or on uvloop.

The name of a loop may end in that of a back end for plain TCP: `uvloop-epoll`. Without it the loop
itself serves. With `io_uring` a ring makes every send, also a lone one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import trustme
import uvloop
from websockets.asyncio.client import connect

from onelog.base.clock import SystemClock
from onelog.kernel import probe_ring
from onelog.net import (
    Gate,
    GateLimits,
    Peer,
    ServedListener,
    Tls,
    TlsSettings,
    WebSocketSettings,
    bind,
    sockets,
    start_listener,
)
from onelog.net.proxy import SIGNATURE
from onelog.net.sockets import EPOLL, RING, chosen_backend

DEADLINE_S = 30.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def without_ring() -> str:
    """Why io_uring cannot be used here; empty: it can."""
    if chosen_backend("auto") != EPOLL:
        return "sets of the kernel are not chosen here"
    try:
        probe_ring()
    except OSError as error:
        return f"no ring: {error}"
    return ""


needs_ring = pytest.mark.skipif(bool(without_ring()), reason=without_ring())
SERVED = (
    *LOOPS,
    *(f"{name}-{EPOLL}" for name in LOOPS if chosen_backend("auto") == EPOLL),
    *(pytest.param(f"{name}-{RING}", marks=needs_ring) for name in LOOPS),
)
"""Every way in which plain TCP is served here."""
_backend = contextvars.ContextVar("backend", default="loop")


SUBPROTOCOL = "mqtt"


def over_websocket(**changes) -> WebSocketSettings:
    """A WebSocket listener of one subprotocol, which the tests' clients offer."""
    return WebSocketSettings(subprotocols=(SUBPROTOCOL,), **changes)


@contextlib.contextmanager
def ring_from(count: int) -> Iterator[None]:
    """From how many sends of a pass on a ring makes them."""
    before, sockets.RING_FROM = sockets.RING_FROM, count  # type: ignore[misc]
    try:
        yield
    finally:
        sockets.RING_FROM = before  # type: ignore[misc]


def run_on(loop_name: str, main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on a kind of loop, with a deadline; no error may go unseen."""
    problems = []
    loop_name, _, backend = loop_name.partition("-")

    async def bounded():
        _backend.set(backend or "loop")
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(DEADLINE_S):
            await main()

    with ring_from(1), asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(bounded())
    assert not problems


class WatchedGate(Gate):
    """A gate that a test can wait at."""

    def __init__(self, limits: GateLimits) -> None:
        super().__init__(limits, SystemClock())
        self._changed = asyncio.Event()

    def enter(self) -> bool:
        self._changed.set()
        return super().enter()

    def leave(self, host_key: str | None = None) -> None:
        self._changed.set()
        super().leave(host_key)

    async def until_open(self, count: int) -> None:
        while self.open != count:
            self._changed.clear()
            await self._changed.wait()


class Echo(asyncio.Protocol):
    """Sends back what comes and remembers what happened."""

    def __init__(self, peer: Peer, book: Book) -> None:
        self.peer = peer
        self.book = book
        self.received: list[bytes] = []
        self.lost = asyncio.get_running_loop().create_future()
        self.paused = 0
        self.resumed = asyncio.Event()
        self.echo = True

    def connection_made(self, transport):
        self.transport = transport
        self.book.made.append(self)
        self.book.arrived.set()

    def data_received(self, data):
        assert type(data) is bytes
        self.received.append(data)
        self.book.got.set()
        if self.echo:
            self.transport.write(data)

    def pause_writing(self):
        self.paused += 1

    def resume_writing(self):
        self.resumed.set()

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class Book:
    def __init__(self) -> None:
        self.made: list[Echo] = []
        self.arrived = asyncio.Event()
        self.got = asyncio.Event()

    async def only(self) -> Echo:
        await self.arrived.wait()
        assert len(self.made) == 1
        return self.made[0]


class Running:
    def __init__(self, served: ServedListener, book: Book, gate: WatchedGate) -> None:
        self.served = served
        self.book = book
        self.port = served.listener.port
        self.gate = gate

    def accept_now(self) -> None:
        """Accept what is in the backlog, whoever's turn it is."""
        room = self.served._room
        room.accept_some(next(iter(room._listening)))

    async def stream(self, **options):
        return await asyncio.open_connection("127.0.0.1", self.port, **options)

    def websocket(self, scheme="ws", **options):
        options.setdefault("subprotocols", [SUBPROTOCOL])
        options.setdefault("compression", None)
        return connect(f"{scheme}://localhost:{self.port}/mqtt", **options)


@contextlib.asynccontextmanager
async def listening(limits=None, **options) -> AsyncIterator[Running]:
    book = Book()
    gate = WatchedGate(limits or GateLimits())
    listener = bind("test", "127.0.0.1", 0)
    options.setdefault("backend", _backend.get())
    options.setdefault("speaks_first", True)
    served = await start_listener(listener, lambda peer: Echo(peer, book), gate, **options)
    try:
        yield Running(served, book, gate)
    finally:
        served.close()
        await served.wait_closed()
        for echo in book.made:
            echo.transport.abort()
            await echo.lost
        await gate.until_open(0)


async def end(writer) -> None:
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


async def refused(reader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def server_tls(files, **changes) -> Tls:
    if changes.get("client_cert", "none") != "none":
        changes["client_ca_file"] = str(files / "ca.pem")
    settings = TlsSettings(
        cert_file=str(files / "cert.pem"), key_file=str(files / "key.pem"), **changes
    )
    return Tls(settings, SystemClock())


def client_tls(authority, common_name: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if common_name is not None:
        authority.issue_cert("client.example", common_name=common_name).configure_cert(context)
    return context


def proxied(source: str, port: int = 4711) -> bytes:
    addresses = socket.inet_aton(source) + socket.inet_aton("127.0.0.1")
    body = addresses + struct.pack("!HH", port, 1883)
    return SIGNATURE + b"\x21\x11" + struct.pack("!H", len(body)) + body


def write_tls_files(directory, authority: trustme.CA):
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    (directory / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    (directory / "key.pem").write_bytes(leaf.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    return directory
