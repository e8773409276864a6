"""This node and one other: their two connections, dialling, and whether the other seems dead.

Rules:
- The lower id dials both connections, again and again, with pauses that double from 50 ms to 2 s
  and a share of chance; a link that stood for 5 s begins with the shortest. The higher id waits,
  and only knocks: a refused connection says at once what silence says after two seconds.
- A peer is suspected when a connection to it is refused or silent, or when no link stands for two
  seconds. A finished handshake ends the suspicion. A suspicion is a report, never a decision.
- A newer connection for a lane takes the place of the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import Final, Protocol

from onelog.cluster.frames import FeedLane
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.connection import PING_S, SILENT_LOOKS, LinkConnection
from onelog.cluster.link.layout import LinkViolation
from onelog.net.deadline import Deadline
from onelog.net.tasks import OwnedTasks
from onelog.observe import Troubles, get_logger

_log = get_logger("cluster")

CONNECT_S: Final = 2.0
SILENT_S: Final = PING_S * SILENT_LOOKS
PAUSES_S: Final = (0.05, 2.0)
STEADY_S: Final = 5.0
DIAL_TROUBLE: Final = "inner-dial"
"""Incidents: dialling another node met a fault of ours."""


class PairHost(Protocol):
    """Whoever has the pairs of a node."""

    troubles: Troubles

    async def dial(self, pair: NodePair, lane: FeedLane) -> LinkConnection:
        """Connect and begin a handshake. Raises OSError."""
        ...

    def suspected(self, pair: NodePair) -> None:
        """`suspicion` was set or ended."""
        ...


class NodePair:
    """One other node."""

    def __init__(self, host: PairHost, node: int, address: LinkAddress, *, dials: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._host = host
        self.node = node
        self.address = address
        self.epoch = 0
        """The newest registration of the peer that is known."""
        self.dials = dials
        self.connections: dict[FeedLane, LinkConnection] = {}
        self.suspicion: str | None = None
        self.last_end = ""
        """Why the last connection ended."""
        self.attempts = 0
        self._patience = Deadline(self._loop)
        self._moved = asyncio.Event()
        """The address is another, or a connection ended: what waits for a pause looks again."""
        self._tasks = OwnedTasks(self._loop)
        for lane in FeedLane if dials else ():
            self._tasks.run(self._keep(lane), self._failed)
        if not dials:
            self._tasks.run(self._knock(), self._failed)
        self._wait_for_link()

    # -- connections

    def opened(self, connection: LinkConnection) -> None:
        """A peer has proved that it is this node."""
        self.epoch = max(self.epoch, connection.sender.epoch)
        before = self.connections.get(connection.lane)
        self.connections[connection.lane] = connection
        if before is not None:
            before.end("a newer connection took its place")
        self._patience.stop()
        self._suspect(None)

    def lost(self, connection: LinkConnection) -> None:
        """A connection is gone."""
        self.last_end = connection.ended or ""
        if self.connections.get(connection.lane) is connection:
            del self.connections[connection.lane]
        if self.connections:
            return
        if connection.is_silent:
            self._suspect(self.last_end)
        elif self.suspicion is None and not self._patience.is_running:
            self._wait_for_link()
        self._moved.set()

    def move(self, address: LinkAddress) -> None:
        """The peer listens elsewhere now."""
        if address != self.address:
            self.address = address
            self._moved.set()

    async def close(self, reason: str) -> None:
        """Forget the peer."""
        self._patience.stop()
        tasks = list(self._tasks)
        self._tasks.cancel()
        ending = list(self.connections.values())
        for connection in ending:
            connection.end(reason)
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in ending:
            await connection.closed

    def _failed(self, error: BaseException) -> None:
        """Dialling met a fault of ours: this pair has no links until the node is known anew."""
        self._host.troubles.note(DIAL_TROUBLE, f"node {self.node}", error)

    # -- suspicion

    def _wait_for_link(self) -> None:
        self._patience.start(SILENT_S, self._give_up)

    def _give_up(self) -> None:
        if not self.connections:
            why = f": {self.last_end}" if self.last_end else ""
            self._suspect(f"no link for {SILENT_S:g} s{why}")

    def _suspect(self, why: str | None) -> None:
        if (why is None) == (self.suspicion is None):
            return
        self.suspicion = why
        if why is None:
            _log.info("node answers again", node=self.node)
        else:
            _log.warning("node is suspected", node=self.node, why=why, address=str(self.address))
        self._host.suspected(self)

    # -- dialling

    async def _keep(self, lane: FeedLane) -> None:
        failures = 0
        while True:
            begun = self._loop.time()
            self.attempts += 1
            try:
                async with asyncio.timeout(CONNECT_S):
                    connection = await self._host.dial(self, lane)
                await asyncio.shield(connection.closed)
                stood = connection.agreed is not None
            except (OSError, TimeoutError, UnicodeError, LinkViolation) as error:
                self._refused(error)
                stood = False
            steady = stood and self._loop.time() - begun >= STEADY_S
            failures = 0 if steady else failures + 1
            await self._pause(failures)

    async def _knock(self) -> None:
        """The other side dials: see whether anybody is there while no link stands."""
        failures = 0
        while True:
            if self.connections:
                failures = 0
                self._moved.clear()
                await self._moved.wait()
                continue
            try:
                async with asyncio.timeout(CONNECT_S):
                    await knock(self.address)
            except (OSError, TimeoutError, UnicodeError) as error:
                self._refused(error)
            failures += 1
            await self._pause(failures)

    def _refused(self, error: Exception) -> None:
        late = isinstance(error, TimeoutError)
        words = f"no connection within {CONNECT_S:g} s" if late else str(error)
        self.last_end = words
        if not self.connections:
            self._patience.stop()
            self._suspect(words)

    async def _pause(self, failures: int) -> None:
        if not failures:
            return
        least, most = PAUSES_S
        seconds = min(most, least * 2 ** min(failures - 1, 10))
        address = self.address
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * (0.5 + random.random() / 2)):  # noqa: S311
                while self.address == address:
                    self._moved.clear()
                    await self._moved.wait()


async def knock(address: LinkAddress) -> None:
    """Connect and go away. Raises OSError."""
    loop = asyncio.get_running_loop()
    if address.path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, address.path)
        return
    transport, _ = await loop.create_connection(asyncio.Protocol, address.host, address.port)
    transport.abort()
