"""Which sockets serve plain TCP: the loop's own transports, or a set of the kernel.

Rules:
- `net.backend` names a row of `BACKENDS`, or is `auto`: the first row of `PREFERRED` that works.
  The interpreted kernel is slower than the loop's transports, so `auto` never chooses it.
- `io_uring` is epoll whose sends go by a ring. Containers and hardened systems often refuse rings:
  then it is epoll, and the log says why. `auto` never chooses it.
- TLS, WebSocket, PROXY headers and HTTP have the loop's transports, whatever the key says.
- All listeners of a loop share one set: one wake-up reads the connections of all protocols. It
  outlives its listeners until its last connection is gone.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from functools import cache
from typing import Any, Final
from weakref import WeakSet

from onelog.base.errors import ConfigError
from onelog.kernel import COMPILED, SocketSet, SocketTransport, probe_ring
from onelog.observe import get_logger

_log = get_logger("net")

LOOP: Final = "loop"
EPOLL: Final = "epoll"
RING: Final = "io_uring"
AUTO: Final = "auto"

RING_FROM: Final = 5
"""From how many sends of a pass on a ring makes them: fewer are as cheap without."""

_Open = Callable[[asyncio.AbstractEventLoop], SocketSet]


def _open_ring(loop: asyncio.AbstractEventLoop) -> SocketSet:
    try:
        return SocketSet(loop, RING_FROM)
    except OSError as error:  # there was one at the start, and now the system has no more of them
        _log.warning("io_uring cannot be used: epoll sends", error=str(error))
        return SocketSet(loop)


BACKENDS: Final[dict[str, tuple[_Open | None, Callable[[], bool]]]] = {
    # name: (how a set is opened, None: the loop serves; whether it works here)
    LOOP: (None, lambda: True),
    EPOLL: (SocketSet, lambda: hasattr(select, "epoll")),
    RING: (_open_ring, lambda: hasattr(select, "epoll")),
}
PREFERRED: Final = (EPOLL,)


@cache
def has_ring() -> bool:
    """Whether the system lets us send by io_uring. If not, the log says why, once."""
    try:
        probe_ring()
    except OSError as error:
        _log.warning("io_uring cannot be used: epoll sends", error=str(error))
        return False
    return True


def chosen_backend(name: str) -> str:
    """The row of `BACKENDS` that a value of `net.backend` means here. Raises ConfigError."""
    if name == AUTO:
        found = (row for row in PREFERRED if COMPILED and BACKENDS[row][1]())
        return next(found, LOOP)
    if not BACKENDS[name][1]():
        raise ConfigError(
            f"net.backend = {name!r} does not work on this system: use {AUTO!r} or {LOOP!r}"
        )
    return EPOLL if name == RING and not has_ring() else name


_served_by_loop: Final[WeakSet[asyncio.AbstractEventLoop]] = WeakSet()
"""Loops whose own transports serve plain TCP: the log says so once."""


class SharedSockets:
    """A listener's share in the set of its loop."""

    _sets: Final[dict[tuple[asyncio.AbstractEventLoop, str], list[Any]]] = {}
    """The set of each loop and back end, and how many listeners share it."""

    def __init__(self, key: tuple[asyncio.AbstractEventLoop, str], opened: _Open) -> None:
        self._key = key
        if key not in self._sets:
            self._sets[key] = [opened(key[0]), 0]
            _log.info("plain TCP has sockets of its own", backend=key[1])
        row = self._sets[key]
        row[1] += 1
        self._set: SocketSet = row[0]
        self._is_closed = False
        self.accept: Callable[[socket.socket], tuple[int, Any] | None] = self._set.accept
        self.add: Callable[[int, Any, Any], SocketTransport] = self._set.add
        """Accept a connection, and take over its socket; see the kernel."""

    def close(self) -> None:
        """The listener takes no more connections; those that stand go on. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        row = self._sets[self._key]
        row[1] -= 1
        if not row[1]:
            del self._sets[self._key]
            self._set.close()


def open_sockets(name: str) -> SharedSockets | None:
    """The sockets that a value of `net.backend` means, on the running loop; None: the loop's."""
    backend = chosen_backend(name)
    opened = BACKENDS[backend][0]
    if opened is None:
        loop = asyncio.get_running_loop()
        if loop not in _served_by_loop:
            _served_by_loop.add(loop)
            _log.info("plain TCP has the transports of the loop", backend=backend)
        return None
    return SharedSockets((asyncio.get_running_loop(), backend), opened)
