"""A proxy before the addresses of nodes and etcd members, which can disturb any directed pair.

Rules:
- It has a thread and a loop of its own, so that it works for brokers in other processes, and while
  the loop of a test is busy.
- Who dials is read from the dialler's HELLO; where that cannot be read (TLS, etcd), `source` of
  `front` says it: give each dialler an address of its own.
- A fault is for bytes from one node to another, whoever dialled. Without one, bytes pass as they
  are. Nothing is ever lost in the middle of a stream, as with TCP: what is cut off is held, and
  passes after `heal`, or the connection ends. What a network loses is sent again after a while, and
  what is behind it waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onelog.base.errors import ProtocolViolation
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.hello import decode_hello
from onelog.cluster.link.layout import HEAD, SHAKE_BYTES_MAX, LinkKind

T = TypeVar("T")
PIECE_BYTES = 64 * 1024
HELD_PIECES = 256
HELLO_S = 5.0
UNKNOWN = -1
AGAIN_S = 0.2
"""When TCP sends again what was lost: no sooner than this while something comes behind it."""


@dataclass
class Fault:
    """What happens to the bytes from one node to another."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set: bytes are held."""
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: as fast as they come."""
    lost: float = 0.0
    """This share of all pieces, and of what is sent again."""
    losses: int = 0
    torn: int = 0
    """So many connections end in the middle of their next read."""
    refused: bool = False
    """Connections end as soon as the proxy knows whose they are."""


@dataclass(eq=False)
class _Passing:
    """A connection that goes through the proxy."""

    source: int
    target: int
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class LinkProxy:
    """A proxy; `front` gives it addresses."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._faults: dict[tuple[int, int], Fault] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._passing: set[_Passing] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.dialled: list[tuple[int, int]] = []
        """Who dialled whom, in order."""

    def __enter__(self) -> LinkProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- what a test says

    def front(self, target: int, upstream: LinkAddress, source: int = UNKNOWN) -> LinkAddress:
        """An address that leads to `upstream`, which is that of `target`."""
        return self._do(self._front(target, upstream, source))

    def cut(self, source: int, target: int) -> None:
        """Hold the bytes of one direction."""
        self._set(source, target, lambda fault: fault.open.clear())

    def part(self, one: int, other: int) -> None:
        """Hold the bytes of both directions."""
        self.cut(one, other)
        self.cut(other, one)

    def delay(self, source: int, target: int, seconds: float) -> None:
        """Bytes of one direction arrive later."""
        self._set(source, target, lambda fault: setattr(fault, "delay_s", seconds))

    def slow(self, source: int, target: int, bytes_per_s: float) -> None:
        """Bytes of one direction go no faster than this."""
        self._set(source, target, lambda fault: setattr(fault, "bytes_per_s", bytes_per_s))

    def lose(self, source: int, target: int, share: float) -> None:
        """A share of what goes in one direction is lost, and sent again."""
        self._set(source, target, lambda fault: setattr(fault, "lost", share))

    def losses(self, source: int, target: int) -> int:
        """How often something was lost in one direction."""
        return self._fault(source, target).losses

    def halve(self, source: int, target: int, times: int = 1) -> None:
        """Of the next read in one direction the first half passes, then the connection ends."""
        self._set(source, target, lambda fault: setattr(fault, "torn", times))

    def refuse(self, one: int, other: int) -> None:
        """End all connections of a pair, and every new one."""

        def act() -> None:
            for pair in ((one, other), (other, one)):
                self._fault(*pair).refused = True
            self._abort({(one, other), (other, one)})

        self._call(act)

    def reset(self, one: int, other: int) -> None:
        """End all connections of a pair; new ones pass."""
        self._call(lambda: self._abort({(one, other), (other, one)}))

    def heal(self) -> None:
        """No fault from now on: what was held passes."""

        def act() -> None:
            for fault in self._faults.values():
                fault.delay_s = fault.bytes_per_s = fault.lost = fault.torn = 0
                fault.refused = False
                fault.open.set()

        self._call(act)

    # -- on the loop of the proxy

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        self._do(run())

    def _set(self, source: int, target: int, act: Callable[[Fault], None]) -> None:
        self._call(lambda: act(self._fault(source, target)))

    def _fault(self, source: int, target: int) -> Fault:
        found = self._faults.get((source, target))
        if found is None:
            found = self._faults[source, target] = Fault()
            found.open.set()
        return found

    def _abort(self, pairs: set[tuple[int, int]]) -> None:
        for row in list(self._passing):
            if (row.source, row.target) in pairs:
                row.abort()

    async def _front(self, target: int, upstream: LinkAddress, source: int) -> LinkAddress:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(target, upstream, source, reader, writer)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # of its own loop, at the end of the proxy
            finally:
                writer.transport.abort()
                self._tasks.discard(task)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        return LinkAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])

    async def _serve(
        self,
        target: int,
        upstream: LinkAddress,
        source: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        first = b""
        if source == UNKNOWN:
            async with asyncio.timeout(HELLO_S):
                source, first = await read_dialler(reader)
        self.dialled.append((source, target))
        up, down = self._fault(source, target), self._fault(target, source)
        if up.refused or down.refused:
            return
        if upstream.path:
            far_reader, far_writer = await asyncio.open_unix_connection(upstream.path)
        else:
            far_reader, far_writer = await asyncio.open_connection(upstream.host, upstream.port)
        row = _Passing(source, target, (writer, far_writer))
        self._passing.add(row)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, far_writer, up, row, first))
                both.create_task(_pump(far_reader, writer, down, row, b""))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            row.abort()
            self._passing.discard(row)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await asyncio.sleep(0.02)  # for connections that were accepted a moment ago
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.02)  # for the loop to close what was aborted


async def read_dialler(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The node that a HELLO names, and all bytes that were read; unknown if there is no HELLO."""
    first = await reader.readexactly(HEAD.size)
    size, kind, _flags, _channel = HEAD.unpack(first)
    if kind != LinkKind.HELLO or size > SHAKE_BYTES_MAX:
        return UNKNOWN, first
    first += await reader.readexactly(size - HEAD.size + 4)
    try:
        return decode_hello(first[HEAD.size :]).node, first
    except ProtocolViolation:
        return UNKNOWN, first


def _again_s(fault: Fault) -> float:
    """How much later a piece arrives because it was lost, and perhaps lost again."""
    later_s = 0.0
    while fault.lost and random.random() < fault.lost:
        fault.losses += 1
        later_s += AGAIN_S
    return later_s


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    fault: Fault,
    row: _Passing,
    first: bytes,
) -> None:
    """Pass the bytes of one direction on until it ends."""
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_PIECES)
    loop = asyncio.get_running_loop()

    async def write() -> None:
        while True:
            due, data = await held.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await fault.open.wait()
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            if fault.torn:
                fault.torn -= 1
                writer.write(data[: len(data) // 2])
                with contextlib.suppress(OSError):
                    await writer.drain()
                writer.close()
                row.abort()
                return
            writer.write(data)
            await writer.drain()
            if fault.bytes_per_s:
                await asyncio.sleep(len(data) / fault.bytes_per_s)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        data = first or await reader.read(PIECE_BYTES)
        while data:
            await held.put((loop.time() + fault.delay_s + _again_s(fault), data))
            data = await reader.read(PIECE_BYTES)
        await held.put((loop.time() + fault.delay_s, b""))
