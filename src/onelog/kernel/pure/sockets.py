"""Sockets of our own, interpreted: an epoll set inside the loop's, and the transports in it.

Rules:
- A wake-up of the set reads each ready socket until it is empty, at most `READS_MAX` times: few
  passes serve a flood, and it leaves the others their turn.
- A wake-up is a pass (`loop_pass.py`): the tick that the reads lead to runs before it ends, and
  then what was written goes out, with one call for each connection. What is written outside of a
  wake-up goes out in the next pass of the loop. More than the high mark goes out at once.
- A protocol is called as by asyncio: `connection_lost` once, by the loop, and never while the
  protocol itself calls the transport. `pause_writing` may come within `write`.
- A read that raises ends its connection. Whatever a call of the protocol raises goes to the
  protocol's `faulted(method, error)`, which registers it.
- `close` sends what waits first; what is written afterwards is dropped. `abort` drops everything.
- A pause of reading costs no system call, unless bytes come meanwhile: then the socket leaves the
  set until it is read again.
- A socket leaves the set before it is closed. A transport that ended earlier in the same wake-up is
  skipped.
- A set that was closed goes on until its last transport is gone.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Iterable
from typing import Any, Final

from onelog.kernel.pure.loop_pass import pass_of

EVENTS_MAX: Final = 256
READ_BYTES_MAX: Final = 256 * 1024
READS_MAX: Final = 4
HIGH_BYTES: Final = 64 * 1024
_PIECES_MAX: Final = 1024
"""Pieces that the system takes in one call."""
_IN: Final = getattr(select, "EPOLLIN", 1)
_OUT: Final = getattr(select, "EPOLLOUT", 4)


def probe_ring() -> None:
    """Find out whether io_uring can send. Raises OSError: the interpreted kernel cannot use it."""
    raise OSError(errno.ENOSYS, "the interpreted kernel has no io_uring")


class SocketSet:
    """Sockets that are watched together; all methods are called on the loop."""

    __slots__ = ("_dirty", "_epoll", "_is_closing", "_is_soon", "_loop", "_pass",
                 "_transports", "is_closed")  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, ring_from: int = 0) -> None:
        """`ring_from`: from how many sends of a pass on they go by io_uring; 0: they never do."""
        if ring_from:
            probe_ring()
        if not hasattr(select, "epoll"):
            raise OSError("this system has no epoll")
        self._loop = loop
        self._pass = pass_of(loop)
        self._epoll = select.epoll()
        self._transports: dict[int, SocketTransport] = {}
        self._dirty: list[SocketTransport] = []
        """Transports with collected bytes, in the order of their first write."""
        self._is_soon = False
        """Whether the pass or the loop is going to call `_flush`."""
        self._is_closing = False
        self.is_closed = False
        """Whether the set is gone."""
        loop.add_reader(self._epoll.fileno(), self._wake)

    def __len__(self) -> int:
        return len(self._transports)

    def close(self) -> None:
        """Take no more sockets. The set is gone when its last transport is. Idempotent."""
        self._is_closing = True
        self._close_if_unused()

    def accept(self, listening: socket.socket) -> tuple[int, Any] | None:
        """Accept a connection: its descriptor and its peer's address; None: there is none.

        Raises OSError when the system gives none although one is there.
        """
        try:
            sock, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        return sock.detach(), address

    def add(self, fd: int, protocol: Any, peername: Any) -> SocketTransport:
        """Take over a connected socket; the caller calls `connection_made` of the protocol.

        Raises OSError when the system cannot watch it; then it remains the caller's.
        """
        assert not self._is_closing, "the set is closed"
        self._epoll.register(fd, _IN)
        made = SocketTransport(self, socket.socket(fileno=fd), protocol, peername)
        self._transports[fd] = made
        return made

    def _close_if_unused(self) -> None:
        if self._is_closing and not self._transports and not self.is_closed:
            self.is_closed = True
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _wake(self) -> None:
        self._pass.run(self._read_all)

    def _read_all(self) -> None:
        # All are looked up before any is called: a number may get another owner meanwhile.
        found = self._epoll.poll(0, EVENTS_MAX)
        for transport, events in [(self._transports[fd], events) for fd, events in found]:
            transport._take_events(events)

    def _note_dirty(self, transport: SocketTransport) -> None:
        self._dirty.append(transport)
        if not self._is_soon:
            self._is_soon = True
            self._pass.call_last(self._flush)

    def _flush(self) -> None:
        self._is_soon = False
        dirty, self._dirty = self._dirty, []
        for transport in dirty:
            transport._send_collected()
        for transport in dirty:
            transport._resume_if_sent()

    def _watch(self, transport: SocketTransport, fd: int, events: int) -> None:
        if events == 0:
            self._epoll.unregister(fd)
        elif transport._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)

    def _forget(self, fd: int) -> None:
        del self._transports[fd]
        self._close_if_unused()


class SocketTransport:
    """One connection of a set, with the calls of an asyncio transport."""

    __slots__ = (
        "_chunks", "_fd", "_high", "_is_closing", "_is_dirty", "_is_ended",
        "_is_full", "_is_half_open", "_is_lost", "_is_paused", "_is_slow", "_low", "_peername",
        "_protocol", "_receive", "_set", "_sock", "_waiting", "_watched",
    )  # fmt: skip

    def __init__(self, owner: SocketSet, sock: socket.socket, protocol: Any, peername: Any) -> None:
        sock.setblocking(False)
        self._set = owner
        self._sock: socket.socket | None = sock
        self._fd = sock.fileno()
        self._peername = peername
        self._watched = _IN
        """The events that the system watches for; 0: the socket is not in the set."""
        self._chunks: list[Any] = []
        self._waiting = 0
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._is_paused = False
        """Whether the protocol wants no bytes for now."""
        self._is_half_open = False
        """Whether the peer sends no more, and the protocol goes on nevertheless."""
        self._is_dirty = False
        """Whether the set has it in its list."""
        self._is_full = False
        """Whether the system took no more bytes: the set waits for room."""
        self._is_slow = False
        """Whether the protocol was told to pause."""
        self._is_ended = False
        """Whether `write_eof` was called."""
        self._is_closing = False
        self._is_lost = False
        """Whether `connection_lost` was called, or the loop is going to call it."""
        self.set_protocol(protocol)

    # -- facts

    def set_protocol(self, protocol: Any) -> None:
        """Call this protocol from now on. Its `data_received` is looked up once, here."""
        self._protocol = protocol
        self._receive = protocol.data_received

    def get_protocol(self) -> Any:
        """Whom it calls."""
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername`, `sockname` or `socket`."""
        if name == "peername":
            return self._peername
        if self._sock is not None and name in ("socket", "sockname"):
            return self._sock if name == "socket" else self._sock.getsockname()
        return default

    def is_closing(self) -> bool:
        """Whether `close` or `abort` was called or the connection is lost."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Whether bytes of the peer are read."""
        return not (self._is_paused or self._is_closing or self._is_half_open)

    def can_write_eof(self) -> bool:
        """Whether `write_eof` works: always."""
        return True

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and that the system has not taken yet."""
        return self._waiting

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The low and the high mark."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When `pause_writing` and `resume_writing` of the protocol are called."""
        if high is None:
            high = HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low
        self._pause_if_over()

    # -- reading

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        if not self._is_lost:
            self._watch_for(self._watched)

    def _take_events(self, events: int) -> None:
        if self._is_full and events & ~_IN:
            self._send()
            self._resume_if_sent()
        if self._is_lost or not events & ~_OUT:
            return
        if not self.is_reading():
            self._watch_for(0)
        for _ in range(READS_MAX):
            if not self.is_reading() or not self._read():
                break

    def _read(self) -> bool:
        """Read once. Returns whether there may be more."""
        assert self._sock is not None
        try:
            data = self._sock.recv(READ_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._lose(error)
            return False
        try:
            if data:
                self._receive(data)
            elif self._protocol.eof_received():
                self._is_half_open = True
            else:
                self.close()
        except Exception as error:  # noqa: BLE001 - a fault of the protocol ends one connection
            self._protocol.faulted("data_received" if data else "eof_received", error)
            self._lose(error)
        return len(data) == READ_BYTES_MAX

    def _watch_for(self, kept: int) -> None:
        """Watch for what is wanted now. Events of `kept` stay, though nobody waits for them."""
        events = kept & _IN
        if self.is_reading():
            events |= _IN
        if self._is_full:
            events |= _OUT
        if events == self._watched:
            return
        try:
            self._set._watch(self, self._fd, events)
            self._watched = events
        except OSError as error:  # the system can watch no more sockets
            self._watched = 0
            self._lose(error)

    # -- writing

    def write(self, data: Any) -> None:
        """Send bytes at the end of the pass, or when the peer has room."""
        self.writelines((data,))

    def writelines(self, chunks: Iterable[Any]) -> None:
        """Send several pieces."""
        if self._is_ended:
            raise RuntimeError("nothing can be written after write_eof")
        if self._is_closing:
            return
        for data in chunks:
            if size := memoryview(data).nbytes:
                # Bytes that their owner may change are copied.
                self._chunks.append(bytes(data) if isinstance(data, bytearray) else data)
                self._waiting += size
        self._written()

    def _written(self) -> None:
        if self._chunks and not self._is_full:
            if not self._is_dirty:
                self._is_dirty = True
                self._set._note_dirty(self)
            if self._waiting > self._high:
                self._send()
        self._pause_if_over()

    def write_eof(self) -> None:
        """Send what waits, and then say that nothing more comes."""
        if self._is_ended or self._is_closing:
            return
        self._is_ended = True
        if not self._is_full:
            self._send()

    def _send_collected(self) -> None:
        self._is_dirty = False
        if self._chunks and not self._is_full:
            self._send()

    def _send(self) -> None:
        """Give the system what waits; the callbacks of the protocol are the caller's affair."""
        if self._is_lost:
            return
        assert self._sock is not None
        self._is_full = False
        try:
            while self._chunks and not self._is_full:
                self._drop_sent(self._sock.sendmsg(self._chunks[:_PIECES_MAX]))
        except (BlockingIOError, InterruptedError):
            self._is_full = True
        except OSError as error:
            self._lose(error)
            return
        if self._chunks:
            self._watch_for(self._watched)
        else:
            self._all_sent()

    def _drop_sent(self, sent: int) -> None:
        """Forget bytes that the system took. If it did not take a whole call's, it is full."""
        self._waiting -= sent
        pieces = 0
        for chunk in self._chunks[:_PIECES_MAX]:
            size = memoryview(chunk).nbytes
            if size > sent:
                self._chunks[pieces] = memoryview(chunk).cast("B")[sent:]
                self._is_full = True
                break
            sent -= size
            pieces += 1
        del self._chunks[:pieces]

    def _all_sent(self) -> None:
        self._watch_for(self._watched)
        if self._is_closing:
            self._lose(None)
        elif self._is_ended:
            assert self._sock is not None
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._lose(error)

    def _pause_if_over(self) -> None:
        if self._waiting > self._high and not self._is_slow and not self._is_lost:
            self._is_slow = True
            try:
                self._protocol.pause_writing()
            except Exception as error:  # noqa: BLE001 - the protocol registers its faults
                self._protocol.faulted("pause_writing", error)

    def _resume_if_sent(self) -> None:
        if self._is_slow and self._waiting <= self._low and not self._is_lost:
            self._is_slow = False
            try:
                self._protocol.resume_writing()
            except Exception as error:  # noqa: BLE001 - the protocol registers its faults
                self._protocol.faulted("resume_writing", error)

    # -- the end

    def close(self) -> None:
        """Send what waits, then end."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._is_full:
            return
        if self._chunks:
            self._send()
        else:
            self._lose(None)

    def abort(self) -> None:
        """End at once; what waits is dropped."""
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """The connection is over: the loop tells the protocol, once."""
        self._is_closing = True
        if self._is_lost:
            return
        self._is_lost = True
        self._is_full = False
        self._chunks.clear()
        self._waiting = 0
        self._watch_for(0)
        self._set._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        assert self._sock is not None
        try:
            self._protocol.connection_lost(error)
        except Exception as fault:  # noqa: BLE001 - the protocol registers its faults
            self._protocol.faulted("connection_lost", fault)
        finally:
            self._protocol = self._receive = None
            self._set._forget(self._fd)
            self._sock.close()
            self._sock = None
