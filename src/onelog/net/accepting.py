"""Accepts the connections of one listener, and lets each wait until its peer has said something.

Rules:
- A connection that was accepted is a socket and a row in the lobby (`lobby.py`) until its first
  bytes are there. Then its host makes what serves it. A host that speaks first gets it at once.
- A peer that says nothing until the deadline, and one that goes without a word, cost their host
  nothing: their sockets are closed here, `LATE_AT_ONCE` of those that are late in a piece.
- If `waiting_max` connections wait, one more sends the one away that has waited for longest.
- When the process runs out of open files, nothing is accepted for `PAUSE_S`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from onelog.net.listener import Listener
from onelog.net.lobby import Lobby
from onelog.observe import get_logger

_log = get_logger("net")

BACKLOG: Final = 1_024
AT_ONCE: Final = 4
"""Connections of one listener that are accepted before other sockets have a turn."""
LATE_AT_ONCE: Final = 8
LATE_AGAIN_S: Final = 0.001
"""How soon others of those that are late are sent away."""
PAUSE_S: Final = 1.0
"""How long nothing is accepted after the process ran out of open files."""

_OUT_OF_FILES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Unserved(Enum):
    """Why a connection ended before it was served."""

    LATE = "late"
    """Its peer said nothing in time."""
    GONE = "gone"
    """Its peer went, or said nothing that is of use, or the listener closes."""
    CROWDED = "crowded"
    """Too many wait, and it has waited for longest."""


class FirstWords(Enum):
    """What the first bytes of a peer are worth."""

    ENOUGH = "enough"
    TOO_FEW = "too few"
    NO_GOOD = "no good"


# Python 3.11 looks up a member of an enumeration by calls of functions.
ENOUGH: Final = FirstWords.ENOUGH
TOO_FEW: Final = FirstWords.TOO_FEW
NO_GOOD: Final = FirstWords.NO_GOOD


class Arrival:
    """A connection on its way in."""

    __slots__ = (
        "_at", "address", "deadline", "fd", "host", "host_key", "port", "proxy_host", "sock",
    )  # fmt: skip

    def __init__(self, fd: int, sock: socket.socket | None, address: Any, deadline: float) -> None:
        self.fd = fd
        self.sock = sock
        """The same socket, for those who do not use its number."""
        self.address = address
        self.host: str = address[0]
        self.port: int = address[1]
        self.deadline = deadline
        self.host_key: str | None = None
        self.proxy_host: str | None = None
        self._at: WaitingRoom | None = None

    def join(self, at: WaitingRoom | None) -> None:
        """Wait with others of a listener."""
        self._at = at

    def woke(self, is_ending: bool) -> None:
        """Something came from the peer."""
        assert self._at is not None
        self._at.woke(self, is_ending)

    def close(self) -> None:
        """Close the socket, which nobody serves yet."""
        if self.sock is not None:
            self.sock.close()
        else:
            os.close(self.fd)


class ArrivalHost(Protocol):
    """Whoever serves the connections."""

    def accept(self, listening: socket.socket) -> bool:
        """Accept a connection, if one waits, and give it to the room; False: there was none.
        Raises OSError."""
        ...

    def greet(self, arrival: Arrival) -> FirstWords:
        """Look at the bytes of the peer that are there, and leave them there. Raises OSError, and
        BlockingIOError if there are none."""
        ...

    def enter(self, arrival: Arrival) -> None:
        """Serve the connection."""
        ...

    def dismissed(self, arrival: Arrival, why: Unserved) -> None:
        """The connection is closed next."""
        ...


class _Listening:
    """A listening socket in the lobby."""

    __slots__ = ("_room", "sock")

    def __init__(self, room: WaitingRoom, sock: socket.socket) -> None:
        self._room = room
        self.sock = sock

    def woke(self, is_ending: bool) -> None:
        del is_ending
        self._room.accept_some(self)


class WaitingRoom:
    """The connections of one listener that nobody serves yet."""

    def __init__(
        self,
        listener: Listener,
        host: ArrivalHost,
        *,
        speaks_first: bool = False,
        waiting_max: int = 0,
    ) -> None:
        self._listener = listener
        self._host = host
        self._speaks_first = speaks_first
        self._waiting_max = waiting_max
        self._loop = asyncio.get_running_loop()
        self._lobby = Lobby.join()
        self._listening: set[_Listening] = set()
        self._waiting: dict[int, Arrival] = {}
        """The first has waited for longest, and its deadline is the next one."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._has_entered = False
        """Since it was set back: connections are accepted until one is served."""

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self) -> None:
        """Begin to accept."""
        for sock in self._listener.sockets:
            # Connections have it from the socket that listens.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.listen(BACKLOG)
            self._listen(_Listening(self, sock))

    def close(self) -> None:
        """Accept no more, and close what waits. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for listening in self._listening:
            self._lobby.forget(listening.sock.fileno())
        self._listening.clear()
        for arrival in list(self._waiting.values()):
            self._dismiss(arrival, Unserved.GONE)
        if self._timer is not None:
            self._timer.cancel()
        self._lobby.leave()

    # -- accepting

    def _listen(self, listening: _Listening) -> None:
        if not self._is_closed:
            self._lobby.wait(listening.sock.fileno(), listening)
            self._listening.add(listening)

    def accept_some(self, listening: _Listening) -> None:
        """Accept a few connections."""
        try:
            self._has_entered = False
            for _ in range(AT_ONCE):
                if self._is_closed or not self._host.accept(listening.sock) or self._has_entered:
                    return
        except OSError as error:
            self._failed(listening, error)

    def _failed(self, listening: _Listening, error: OSError) -> None:
        if error.errno not in _OUT_OF_FILES:
            _log.warning("accept failed", listener=self._listener.name, error=str(error))
            return
        _log.error(
            "no connection can be accepted, too many files are open: raise limits.open_files_max",
            listener=self._listener.name,
            error=str(error),
        )
        self._lobby.forget(listening.sock.fileno())
        self._listening.discard(listening)
        self._loop.call_later(PAUSE_S, partial(self._listen, listening))

    def take(self, arrival: Arrival) -> None:
        """Let a connection wait for its first bytes; most clients have sent them by now."""
        greeting = ENOUGH if self._speaks_first else self._look(arrival)
        if greeting is not TOO_FEW:
            self._meet(arrival, greeting)
            return
        try:
            self._lobby.wait(arrival.fd, arrival)
        except OSError as error:
            _log.error("connection refused", listener=self._listener.name, error=str(error))
            self._meet(arrival, NO_GOOD)
            return
        arrival.join(self)
        self._waiting[arrival.fd] = arrival
        if self._timer is None:
            self._timer = self._loop.call_at(arrival.deadline, self._look_at_clock)
        if self._waiting_max and len(self._waiting) > self._waiting_max:
            self._dismiss(next(iter(self._waiting.values())), Unserved.CROWDED)

    # -- waiting

    def woke(self, arrival: Arrival, is_ending: bool) -> None:
        """Bytes of a peer are there, or the peer has gone."""
        greeting = self._look(arrival)
        if greeting is TOO_FEW:
            if not is_ending:
                return
            greeting = NO_GOOD  # no more will come
        self._forget(arrival)
        self._meet(arrival, greeting)

    def _look(self, arrival: Arrival) -> FirstWords:
        try:
            return self._host.greet(arrival)
        except BlockingIOError:
            return TOO_FEW
        except OSError:
            return NO_GOOD

    def _meet(self, arrival: Arrival, greeting: FirstWords) -> None:
        """Serve a connection that waits no more, or close it."""
        self._has_entered = True
        if greeting is ENOUGH:
            self._host.enter(arrival)
        else:
            self._host.dismissed(arrival, Unserved.GONE)
            arrival.close()

    def _forget(self, arrival: Arrival) -> None:
        del self._waiting[arrival.fd]
        self._lobby.forget(arrival.fd)
        arrival.join(None)

    def _dismiss(self, arrival: Arrival, why: Unserved) -> None:
        self._forget(arrival)
        self._host.dismissed(arrival, why)
        arrival.close()

    def _look_at_clock(self) -> None:
        self._timer = None
        now = self._loop.time()
        for _ in range(LATE_AT_ONCE):
            first = next(iter(self._waiting.values()), None)
            if first is None:
                return
            if first.deadline > now:
                self._timer = self._loop.call_at(first.deadline, self._look_at_clock)
                return
            self._dismiss(first, Unserved.LATE)
        self._timer = self._loop.call_later(LATE_AGAIN_S, self._look_at_clock)
