"""Nodes that speak over inner links, in one process, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from onelog.base.clock import SystemClock
from onelog.cluster.frames import FeedFrame, FeedLane
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.calls import Handler
from onelog.cluster.link.connection import LinkConnection, LinkCounters
from onelog.cluster.link.handshake import LinkHandshake
from onelog.cluster.link.hello import FEATURES, VERSIONS, Hello, Sender, encode_hello
from onelog.cluster.link.layout import HEAD, LinkKind, frame
from onelog.cluster.link.links import LinkIdentity, Links
from onelog.cluster.link.listening import BoundInner
from onelog.cluster.link.security import LinkSecurity
from onelog.observe import Troubles

DEADLINE_S = 20.0
CLUSTER = "c1"
LOOPBACK = LinkAddress(host="127.0.0.1")
BOTH = {FeedLane.LIVE, FeedLane.BULK}


def hello(node: int, to: int, /, **changes: Any) -> Hello:
    """What a node says to another."""
    said = {
        "versions": VERSIONS, "features": FEATURES, "cluster_id": CLUSTER, "node": node,
        "epoch": 10 + node, "data_uuid": f"uuid-{node}", "to": to, "purpose": "live",
        "has_secret": False, "window": 1 << 20, "nonce": bytes([node]) * 32,
    }  # fmt: skip
    return Hello(**said | changes)


class Heard:
    """A user of links: keeps what it hears, and lets a test wait for it."""

    def __init__(self) -> None:
        self.frames: list[tuple[Sender, FeedLane, FeedFrame]] = []
        self.lanes: dict[int, set[FeedLane]] = {}
        self.ups: list[tuple[Sender, FeedLane]] = []
        self.downs: list[tuple[Sender, FeedLane]] = []
        self.rooms: list[tuple[int, FeedLane]] = []
        self.suspicions: list[tuple[int, str | None]] = []
        self.on_frame: Callable[[FeedFrame], None] = lambda _frame: None
        self._changed = asyncio.Event()

    def linked(self, sender: Sender, lane: FeedLane) -> None:
        self.ups.append((sender, lane))
        self.lanes.setdefault(sender.node, set()).add(lane)
        self._changed.set()

    def unlinked(self, sender: Sender, lane: FeedLane) -> None:
        self.downs.append((sender, lane))
        self.lanes[sender.node].discard(lane)
        self._changed.set()

    def received(self, sender: Sender, lane: FeedLane, frame: FeedFrame) -> None:
        self.on_frame(frame)
        self.frames.append((sender, lane, frame))
        self._changed.set()

    def has_room(self, node: int, lane: FeedLane) -> None:
        self.rooms.append((node, lane))
        self._changed.set()

    def suspects(self, node: int, why: str | None) -> None:
        self.suspicions.append((node, why))
        self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


class Node:
    """A node with links and an inner listener."""

    def __init__(
        self, number: int, security: LinkSecurity, at: LinkAddress, **changes: Any
    ) -> None:
        self.number = number
        self.heard = Heard()
        self.troubles = Troubles(SystemClock())
        said = {
            "cluster_id": CLUSTER, "node": number, "epoch": 10 + number,
            "data_uuid": f"uuid-{number}",
        }  # fmt: skip
        self.identity = LinkIdentity(**said | changes)
        self.handlers: dict[str, Handler] = {}
        self.links = Links(self.identity, self.heard, security, self.troubles, SystemClock())
        self.inner = BoundInner(at, security, SystemClock())

    async def serve(self) -> None:
        self.links.handlers.update(self.handlers)
        await self.inner.serve(self.links, self.troubles)

    async def close(self) -> None:
        await self.inner.close()
        await self.links.close()


@contextlib.asynccontextmanager
async def nodes(
    *numbers: int, security: LinkSecurity | None = None, folder: Path | None = None
) -> AsyncIterator[list[Node]]:
    """Nodes that do not know each other yet; with a folder they listen on Unix sockets."""
    made = []
    for number in numbers:
        at = LOOPBACK if folder is None else LinkAddress(path=str(folder / f"n{number}.sock"))
        made.append(Node(number, security or LinkSecurity(), at))
    try:
        for node in made:
            await node.serve()
        yield made
    finally:
        for node in made:
            await node.close()


def introduce(*made: Node) -> None:
    """Everybody knows everybody."""
    for node in made:
        for other in made:
            if other is not node:
                node.links.know(other.number, other.inner.address, other.identity.epoch)


async def linked(*made: Node) -> None:
    """Wait until every pair has both connections."""
    introduce(*made)
    for node in made:
        others = [other.number for other in made if other is not node]
        await node.heard.until(
            lambda node=node, others=others: all(
                node.heard.lanes.get(other) == BOTH for other in others
            )
        )


async def until_ended(node: Node, other: int, words: str) -> None:
    """Wait until a connection to another node ended for this reason."""
    async with asyncio.timeout(DEADLINE_S):
        while words not in node.links.pairs[other].last_end:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


class Owner:
    """The owner of one connection, without any node behind it."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.handlers: dict[str, Handler] = {}
        self.troubles = Troubles(SystemClock())
        self.counters = LinkCounters()
        self.clock = SystemClock()
        self._make = make
        self.opens = 0
        self.losses = 0
        self.frames: list[FeedFrame] = []

    def handshake(self, connection: Any, secure: Any) -> Any:
        del secure
        return self._make(connection)

    def opened(self, connection: Any) -> None:
        del connection
        self.opens += 1

    def received(self, connection: Any, frame: FeedFrame) -> None:
        del connection
        self.frames.append(frame)

    def has_room(self, connection: Any) -> None:
        del connection

    def lost(self, connection: Any) -> None:
        del connection
        self.losses += 1


class Wire(asyncio.Transport):
    """A transport without a socket: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.written = bytearray()
        self.writes = 0
        self.unread = 0
        """Bytes that the peer has not taken; a test sets it."""
        self._is_closing = False

    def write(self, data: Any) -> None:
        assert not self._is_closing
        self.written += data
        self.writes += 1

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default


def accepting(owner: Owner | None = None) -> tuple[LinkConnection, Wire, Owner]:
    """Node 2's end of a connection that node 1 dials, without a socket."""
    owner = owner or Owner(lambda _connection: LinkHandshake(hello(2, 0), dials=False))
    connection, wire = LinkConnection(owner, dials=False), Wire()
    wire.protocol = connection
    connection.connection_made(wire)
    return connection, wire, owner


GREETING = frame(LinkKind.HELLO, encode_hello(hello(1, 2))) + frame(LinkKind.PROOF)
"""What node 1 says to node 2 until it is known."""


def greeted(owner: Owner | None = None) -> tuple[LinkConnection, Wire, Owner]:
    """The same, after the handshake; what was written until then is forgotten."""
    connection, wire, owner = accepting(owner)
    connection.data_received(GREETING)
    assert owner.opens == 1
    wire.written.clear()
    wire.writes = 0
    return connection, wire, owner


def frames_in(data: bytes | bytearray) -> list[tuple[int, int, int, bytes]]:
    """LinkKind, flags, channel and body of every frame; they must be whole."""
    found, at = [], 0
    while at < len(data):
        size, kind, flags, channel = HEAD.unpack_from(data, at)
        assert at + 4 + size <= len(data), "a frame is cut off"
        found.append((kind, flags, channel, bytes(data[at + HEAD.size : at + 4 + size])))
        at += 4 + size
    return found
