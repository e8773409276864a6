"""Threads that sync files, interpreted: they are asked on the loop, and tell it by one descriptor.

Rules: `fileno` is readable while there are syncs that are over and that nobody has taken. `take`
gives all of them. A file stays open until its ticket was taken, so that no thread syncs a number
that meanwhile belongs to another file. At most `OPEN_SYNCS_MAX` syncs are asked for and not taken:
the caller of one more takes another way. It also does when the threads are closed, or, with the
compiled threads, when a test has replaced `os.fdatasync`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Protocol

from onelog.kernel.types import OPEN_SYNCS_MAX


class _HasDescriptor(Protocol):
    @property
    def fd(self) -> int: ...


class SyncTicket:
    """One sync that was asked for."""

    __slots__ = ("_is_over", "done", "error", "file")

    def __init__(self, file: _HasDescriptor, done: Callable[[Any], None]) -> None:
        self.file = file
        """Stays open as long as the ticket exists."""
        self.done = done
        """For who takes the ticket, to be called with it on the loop."""
        self.error = 0
        """The error number of the sync; 0: it succeeded, or it is not over."""
        self._is_over = Event()

    def wait(self) -> None:
        """Block until the sync is over. Any thread may wait."""
        self._is_over.wait()

    def end(self, error: int) -> None:
        """Note how the sync ended."""
        self.error = error
        self._is_over.set()


class SyncThreads:
    """A few threads, and the syncs that they are asked for."""

    __slots__ = (
        "_asked", "_call", "_fds", "_is_closed", "_lock", "_open", "_ready", "_threads",
    )  # fmt: skip

    def __init__(self, threads: int, call: int = 0) -> None:
        """`call` is the address of a C function that is called instead of `fdatasync`, with a
        descriptor, and returns 0 or an error number: tests have disks of their own."""
        self._fds: tuple[int, ...] = ()
        self._fds = os.pipe()
        for fd in self._fds:
            os.set_blocking(fd, False)
        self._call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(call) if call else None
        self._asked: SimpleQueue[SyncTicket | None] = SimpleQueue()
        self._ready: list[SyncTicket] = []
        self._open = 0
        self._is_closed = False
        self._lock = Lock()
        self._threads = [
            Thread(target=self._work, name=f"onelog-disk-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __del__(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def _work(self) -> None:
        while (ticket := self._asked.get()) is not None:
            ticket.end(self._sync(ticket.file.fd))
            with self._lock:
                is_first = not self._ready
                self._ready.append(ticket)
            del ticket  # a thread that waits keeps no file open
            if is_first:
                with contextlib.suppress(BlockingIOError):  # full: the loop will look anyway
                    os.write(self._fds[1], b"\1")

    def _sync(self, fd: int) -> int:
        if self._call is not None:
            return int(self._call(fd))
        try:
            os.fdatasync(fd)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def fileno(self) -> int:
        """The descriptor that is readable when syncs are over."""
        return self._fds[0]

    def ask(self, file: _HasDescriptor, done: Callable[[Any], None]) -> SyncTicket | None:
        """Sync a file that has a descriptor `fd`; the ticket keeps the file open. None: not now."""
        with self._lock:
            if self._open >= OPEN_SYNCS_MAX or self._is_closed:
                return None
            self._open += 1
        ticket = SyncTicket(file, done)
        self._asked.put(ticket)
        return ticket

    def take(self) -> list[SyncTicket]:
        """The tickets of all syncs that are over, and that nobody has taken yet."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fds[0], 4096)
        with self._lock:
            found, self._ready = self._ready, []
            self._open -= len(found)
        return found

    def answer(self, raised: Callable[[Callable[[Any], None], Exception], None]) -> None:
        """Call `done(ticket)` for all syncs that are over; `raised(done, error)` hears of one that
        raised."""
        for ticket in self.take():
            try:
                ticket.done(ticket)
            except Exception as error:  # noqa: BLE001 - the others are called
                raised(ticket.done, error)

    def close(self) -> None:
        """Wait for all syncs, then end the threads. Blocks. What is over may still be taken."""
        with self._lock:
            self._is_closed = True
        for _thread in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
