"""The lobby of a loop: listening sockets, and connections whose peers have said nothing yet.

Rules:
- Clients that have come in before are served first. Whatever wakes the lobby up, its work is one
  piece behind everything else that woke the loop in the same pass. A piece lasts `PIECE_S` and the
  work that was begun by then; afterwards `REST_PASSES` passes go by without a piece. A pass that
  took `LONG_S` already has no piece, unless `LONG_PASSES_MAX` such passes came one after the other.
- All listeners of a loop share one lobby. Sockets have their turns one after the other, so a storm
  at one listener keeps nobody out of another one. The more peers have said something and wait, the
  slower the lobby accepts: the rest waits in the system's backlog.
- A socket that waits here is a row in a table, and nothing of it is read.
"""

from __future__ import annotations

import asyncio
import select
import selectors
from time import perf_counter
from typing import Any, Final, Protocol

from onelog.net.openings import first_bytes

PIECE_S: Final = 0.00004
"""How long a piece goes on to begin work of one more socket. To accept a connection takes half of
it, to begin to serve one takes twice as long."""
REST_PASSES: Final = 2
"""Passes without a piece, behind each piece that found more work than time: what was begun goes on
in these."""
IDLE_S: Final = 0.00001
"""A pass that took less than this had nothing else to do: it is no rest, unless it is the first."""
LONG_S: Final = 0.00005
LONG_PASSES_MAX: Final = 8


class Waiting(Protocol):
    """A socket that waits in the lobby."""

    def woke(self, is_ending: bool) -> None:
        """Something came; with `is_ending` the peer has closed, perhaps after its last bytes."""
        ...


class _Polled:
    """What is ready: by epoll, one socket at a time, in turns."""

    _ENDS = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLHUP", 0)
    _BROKEN = _ENDS | getattr(select, "EPOLLERR", 0)

    def __init__(self) -> None:
        self._poll = select.epoll()
        self.fileno = self._poll.fileno
        self.close = self._poll.close
        self.unregister = self._poll.unregister

    def register(self, fd: int) -> None:
        self._poll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)

    def next(self) -> tuple[int, bool] | None:
        """The next socket that is ready, and whether its peer ends; it goes behind all others."""
        found = self._poll.poll(0, 1)
        return (found[0][0], bool(found[0][1] & self._BROKEN)) if found else None


class _Selected:
    """The same where there is no epoll. The end of a peer is looked for each time."""

    def __init__(self) -> None:
        self._selector: Any = selectors.DefaultSelector()
        self._ready: list[int] = []
        self.fileno = self._selector.fileno
        self.close = self._selector.close
        self.unregister = self._selector.unregister

    def register(self, fd: int) -> None:
        self._selector.register(fd, selectors.EVENT_READ)

    def next(self) -> tuple[int, bool] | None:
        if not self._ready:
            self._ready = [key.fd for key, _events in self._selector.select(0)]
        if not self._ready:
            return None
        fd = self._ready.pop()
        return fd, not has_bytes(fd)


class Lobby:
    """The lobby of one loop; all methods are called there."""

    _lobbies: Final[dict[asyncio.AbstractEventLoop, Lobby]] = {}

    @classmethod
    def join(cls) -> Lobby:
        """The lobby of the running loop; the caller leaves it with `leave`."""
        loop = asyncio.get_running_loop()
        found = cls._lobbies.get(loop)
        if found is None:
            found = cls._lobbies[loop] = cls(loop)
        found._users += 1
        return found

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._users = 0
        self._waiting: dict[int, Waiting] = {}
        self._polled = _Polled() if hasattr(select, "epoll") else _Selected()
        self._is_soon = False
        self._rest = 0
        self._woke_s = 0.0
        self._long_passes = 0
        loop.add_reader(self._polled.fileno(), self._wake)

    def leave(self) -> None:
        """The last one who leaves closes the lobby."""
        self._users -= 1
        if not self._users:
            assert not self._waiting, "sockets wait in a lobby that nobody uses"
            del self._lobbies[self._loop]
            self._loop.remove_reader(self._polled.fileno())
            self._polled.close()

    def wait(self, fd: int, waiting: Waiting) -> None:
        """Call `woke` when bytes or connections are there, again and again. Raises OSError."""
        self._polled.register(fd)
        self._waiting[fd] = waiting

    def forget(self, fd: int) -> None:
        """A socket waits no more; it is still open."""
        del self._waiting[fd]
        self._polled.unregister(fd)

    def _wake(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            self._woke_s = perf_counter()
            self._loop.call_soon(self._do_piece)

    def _do_piece(self) -> None:
        self._is_soon = False
        now = perf_counter()
        if self._rest:
            self._rest -= 1
            if self._rest or now - self._woke_s >= IDLE_S:
                return  # the sockets are still ready: they wake the next pass
        if now - self._woke_s >= LONG_S and self._long_passes < LONG_PASSES_MAX:
            self._long_passes += 1
            return
        self._long_passes = 0
        until = now + PIECE_S
        while self._users and (found := self._polled.next()) is not None:
            fd, is_ending = found
            waiting = self._waiting.get(fd)
            if waiting is not None:
                waiting.woke(is_ending)
            if perf_counter() >= until:
                self._rest = REST_PASSES
                return


def has_bytes(fd: int) -> bool:
    """Whether a peer that ends has sent something that is not read yet."""
    try:
        return bool(first_bytes(fd))
    except OSError:
        return False
