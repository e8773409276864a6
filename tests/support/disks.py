"""A disk for the threads of the kernel whose syncs wait for the test, are counted, and fail."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
_PATIENCE_S = 20


def address_of(function: object) -> int:
    """The address of a C function."""
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found
    return found


class GatedDisk:
    """What stands in for `fdatasync`; `address` is what `SyncThreads` is to call."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.entered = threading.Semaphore(0)
        """One for each sync that began."""
        self.gate = threading.Semaphore(1_000_000 if is_open else 0)
        self.error = 0
        """The error number that syncs get when they end."""
        self.fds: list[int] = []
        """The files that were synced, in the order of their beginning."""
        self.on_enter: Callable[[int], None] = lambda _fd: None
        self.running = 0
        self.running_max = 0
        self._lock = threading.Lock()
        self._call = SYNC(self._sync)
        self.address = address_of(self._call)

    def _sync(self, fd: int) -> int:
        with self._lock:
            self.fds.append(fd)
            self.running += 1
            self.running_max = max(self.running, self.running_max)
        self.on_enter(fd)
        self.entered.release()
        opened = self.gate.acquire(timeout=_PATIENCE_S)
        with self._lock:
            self.running -= 1
        return self.error if opened else 110

    def wait_entered(self, count: int = 1) -> None:
        """Block until so many more syncs have begun."""
        for _ in range(count):
            assert self.entered.acquire(timeout=_PATIENCE_S), "no sync began"

    def let_go(self, count: int = 1) -> None:
        """Let so many syncs end."""
        for _ in range(count):
            self.gate.release()
