"""Sockets of our own, compiled: an epoll set inside the loop's, and the transports in it.

Rules: the twin is the specification. Beyond it:
- The sends of a pass are gathered and made without the interpreter (`sends.pyx`). Meanwhile nobody
  touches a transport: all of them belong to the loop's thread.
- The bytes of all sends are counted before any protocol is called.
- Events carry the address of their transport. The set keeps a transport until the loop has told its
  protocol of the end, which is never in a wake-up.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from onelog.kernel._native.epoll cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, SHUT_WR,
    close_fd, epoll_create1, epoll_event, epoll_wait, iovec, ol_send, ol_sending, ol_watch,
    shutdown,
)
from onelog.kernel._native.loop_pass cimport LoopPass, pass_of
from onelog.kernel._native.outbox cimport Outbox, Receiver, receiver_of
from onelog.kernel._native.sends cimport Sends
from onelog.kernel._native.socket_accept cimport accept_socket
from onelog.kernel._native.socket_read cimport READ_BYTES_LARGE, READ_BYTES_MAX
from onelog.kernel._native.socket_read cimport ol_reading, read_once

import os
import socket

cdef enum:
    EVENTS_MAX = 256
    READS_MAX = 4
    PIECES_MAX = 1024
    SENDINGS_MAX = 256
    # A send of so few bytes does not let go of the interpreter: to get it back may take longer.
    ALONE_BYTES_MAX = 65536


cdef object _error(int number):
    return OSError(number, os.strerror(number))


cdef class SocketSet:
    """Sockets that are watched together; all methods are called on the loop."""

    cdef object loop
    cdef LoopPass passing
    cdef int fd
    cdef set transports
    cdef list dirty
    cdef bint is_soon
    cdef bint is_closing
    cdef readonly bint is_closed
    cdef object flush
    cdef char *buffer
    cdef epoll_event events[EVENTS_MAX]
    cdef iovec vectors[PIECES_MAX]
    cdef ol_sending sendings[SENDINGS_MAX]
    cdef Sends sends

    def __cinit__(self):
        self.fd = -1

    def __init__(self, loop, int ring_from=0):
        self.sends = Sends(ring_from)
        self.loop = loop
        self.passing = pass_of(loop)
        self.transports = set()
        self.dirty = []
        self.buffer = <char *> malloc(READ_BYTES_MAX)
        if self.buffer is NULL:
            raise MemoryError
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise _error(errno)
        self.flush = self._flush
        loop.add_reader(self.fd, self._wake)

    def __dealloc__(self):
        if self.fd >= 0:
            close_fd(self.fd)
        free(self.buffer)

    def __len__(self):
        return len(self.transports)

    def close(self):
        """Take no more sockets. The set is gone when its last transport is. Idempotent."""
        self.is_closing = True
        self._close_if_unused()

    def accept(self, listening):
        """Accept a connection: its descriptor and its peer's address; None: there is none.

        Raises OSError when the system gives none although one is there.
        """
        cdef int problem = 0
        found = accept_socket(listening.fileno(), &problem)
        if problem:
            raise _error(problem)
        return found

    def add(self, int fd, protocol, peername):
        """Take over a connected socket; the caller calls `connection_made` of the protocol.

        Raises OSError when the system cannot watch it; then it remains the caller's.
        """
        cdef SocketTransport made = SocketTransport.__new__(SocketTransport)
        cdef int problem
        assert not self.is_closing, "the set is closed"
        problem = ol_watch(self.fd, EPOLL_CTL_ADD, fd, EPOLLIN, <void *> made)
        if problem:
            raise _error(problem)
        made.fd = fd
        made.owner = self
        made.peername = peername
        made.watched = EPOLLIN
        self.transports.add(made)
        made.set_protocol(protocol)
        return made

    cdef int _close_if_unused(self) except -1:
        if not self.is_closing or self.transports or self.is_closed:
            return 0
        self.is_closed = True
        self.loop.remove_reader(self.fd)
        close_fd(self.fd)
        self.fd = -1
        self.sends.close()
        return 0

    def _wake(self):
        cdef int count, index
        cdef SocketTransport transport
        if self.fd < 0 or not self.passing.begin():
            return
        try:
            count = epoll_wait(self.fd, self.events, EVENTS_MAX, 0)
            for index in range(count):
                transport = <SocketTransport> self.events[index].data.ptr
                transport.take_events(self.events[index].events)
        finally:
            self.passing.end()

    cdef int note_dirty(self, SocketTransport transport) except -1:
        self.dirty.append(transport)
        if not self.is_soon:
            self.is_soon = True
            self.passing.later(self.flush)
        return 0

    def _flush(self):
        cdef list dirty = self.dirty
        cdef SocketTransport transport
        cdef Py_ssize_t at = 0, count = len(dirty), upto
        self.is_soon = False
        if count == 0:
            return
        self.dirty = []
        while at < count:
            upto = self._send_some(dirty, at, count)
            while at < upto:
                (<SocketTransport> dirty[at]).is_dirty = False
                at += 1
        for transport in dirty:
            if transport.is_slow:
                transport.resume_if_sent()

    cdef Py_ssize_t _send_some(self, list dirty, Py_ssize_t at, Py_ssize_t count) except -1:
        """Send the bytes of transports from `at` on, as far as the room here goes: how far."""
        cdef SocketTransport transport
        cdef Py_ssize_t start = at, size = 0
        cdef int pieces = 0, rows = 0, index
        while at < count and rows < SENDINGS_MAX and pieces < PIECES_MAX:
            transport = <SocketTransport> dirty[at]
            if transport.waiting and not transport.is_full and not transport.is_lost:
                self.sendings[rows].fd = transport.fd
                pieces += transport.fill(
                    &self.sendings[rows], &self.vectors[pieces], PIECES_MAX - pieces
                )
                size += self.sendings[rows].size
                rows += 1
            at += 1
        self.sends.make(self.sendings, rows, size)
        index = 0
        while start < at:
            transport = <SocketTransport> dirty[start]
            if transport.waiting and not transport.is_full and not transport.is_lost:
                index += 1
                if transport.settle(&self.sendings[index - 1]):
                    transport.send_waiting()
            start += 1
        return at

    cdef int forget(self, SocketTransport transport) except -1:
        self.transports.discard(transport)
        return self._close_if_unused()


cdef class SocketTransport(Outbox):
    """One connection of a set, with the calls of an asyncio transport."""

    cdef SocketSet owner
    cdef object protocol
    cdef object receive
    # Whose method `receive` is, if that is one of the kernel.
    cdef Receiver receiver
    cdef object peername
    cdef object sock
    cdef int fd
    cdef uint32_t watched
    cdef bint is_dirty
    cdef bint is_full
    cdef bint is_lost
    cdef bint is_slow
    cdef bint is_paused
    cdef bint is_half_open
    cdef bint is_ended
    cdef bint closing
    # Whether the last read was large.
    cdef bint is_large
    # Whether `sock` owns the descriptor.
    cdef bint is_shared

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0 and not self.is_shared:
            close_fd(self.fd)

    # -- facts

    def set_protocol(self, protocol):
        """Call this protocol from now on. Its `data_received` is looked up once, here."""
        self.protocol = protocol
        self.receive = protocol.data_received
        self.receiver = receiver_of(self.receive)

    def get_protocol(self):
        """Whom it calls."""
        return self.protocol

    def get_extra_info(self, name, default=None):
        """`peername`, `sockname` or `socket`."""
        if name == "peername":
            return self.peername
        if self.fd < 0:
            return default
        if name == "sockname":
            looking = socket.socket(fileno=self.fd)
            try:
                return looking.getsockname()
            finally:
                looking.detach()
        if name == "socket":
            if not self.is_shared:
                self.sock = socket.socket(fileno=self.fd)
                self.is_shared = True
            return self.sock
        return default

    def is_closing(self):
        """Whether `close` or `abort` was called or the connection is lost."""
        return self.closing

    def is_reading(self):
        """Whether bytes of the peer are read."""
        return self.reads()

    cdef bint reads(self) noexcept:
        return not (self.is_paused or self.closing or self.is_half_open)

    def can_write_eof(self):
        """Whether `write_eof` works: always."""
        return True

    # -- reading

    def pause_reading(self):
        """Read no more for now."""
        self.is_paused = True

    def resume_reading(self):
        """Read again."""
        self.is_paused = False
        if not self.is_lost:
            self.watch_for(self.watched)

    cdef int take_events(self, uint32_t events) except -1:
        if self.is_full and events & ~<uint32_t> EPOLLIN:
            self.send_waiting()
            self.resume_if_sent()
        if self.is_lost or not events & ~<uint32_t> EPOLLOUT:
            return 0
        if not self.reads():
            return self.watch_for(0)
        for _ in range(READS_MAX):
            if not self.reads() or not self.read():
                break
        return 0

    cdef bint read(self) except -1:
        """Read once. Returns whether there may be more."""
        cdef ol_reading row
        cdef Receiver receiver = self.receiver
        cdef object data = read_once(self.fd, self.owner.buffer, receiver, self.is_large, &row)
        if row.size < 0:
            if row.problem != EAGAIN and row.problem != EINTR:
                self.lose(_error(row.problem))
            return 0
        self.is_large = row.size >= READ_BYTES_LARGE
        try:
            if row.size == 0:
                self._meet_end()
            elif data is None:
                receiver.took(row.size)
            elif receiver is not None:
                receiver.take_bytes(<bytes> data)
            else:
                self.receive(data)
        except Exception as error:
            self.protocol.faulted("data_received" if row.size else "eof_received", error)
            self.lose(error)
        return row.size == row.asked

    cdef int _meet_end(self) except -1:
        """The peer sends no more."""
        self.is_half_open = bool(self.protocol.eof_received())
        if not self.is_half_open:
            self.close()
        return 0

    cdef int watch_for(self, uint32_t kept) except -1:
        """Watch for what is wanted now. Events of `kept` stay, though nobody waits for them."""
        cdef uint32_t events = kept & EPOLLIN
        cdef int what = EPOLL_CTL_MOD, problem
        if self.reads():
            events |= EPOLLIN
        if self.is_full:
            events |= EPOLLOUT
        if events == self.watched:
            return 0
        if events == 0:
            what = EPOLL_CTL_DEL
        elif self.watched == 0:
            what = EPOLL_CTL_ADD
        problem = ol_watch(self.owner.fd, what, self.fd, events, <void *> self)
        self.watched = events
        if problem and not self.is_lost:
            self.watched = 0
            return self.lose(_error(problem))
        return 0

    # -- writing

    def write(self, data):
        """Send bytes at the end of the pass, or when the peer has room."""
        self.put(data)

    cdef int put(self, object data) except -1:
        if self.may_write():
            self.keep(data)
            self.written()
        return 0

    def writelines(self, chunks):
        """Send several pieces."""
        if self.may_write():
            for data in chunks:
                self.keep(data)
            self.written()

    cdef bint may_write(self) except -1:
        if self.is_ended:
            raise RuntimeError("nothing can be written after write_eof")
        return not self.closing

    cdef int written(self) except -1:
        if self.waiting == 0 or self.is_full:
            return self.pause_if_over()
        if not self.is_dirty:
            self.is_dirty = True
            self.owner.note_dirty(self)
        if self.waiting > self.high:
            self.send_waiting()
            self.pause_if_over()
        return 0

    def write_eof(self):
        """Send what waits, and then say that nothing more comes."""
        if self.is_ended or self.closing:
            return
        self.is_ended = True
        if not self.is_full:
            self.send_waiting()

    cdef int settle(self, ol_sending *row) except -1:
        """Take note of a send: 1 if more pieces wait than one call takes.

        If the system did not take all bytes of the call, it is full.
        """
        cdef Py_ssize_t sent = row.sent
        if sent < 0:
            if sent != -EAGAIN:
                return self.lose(_error(<int> -sent))
            sent = 0
        self.is_full = sent < row.size
        self.drop_sent(sent)
        if self.waiting == 0:
            return self.all_sent()
        if self.is_full:
            return self.watch_for(self.watched)
        return 1

    cdef int send_waiting(self) except -1:
        """Give the system what waits; the callbacks of the protocol are the caller's affair."""
        cdef ol_sending row
        if self.is_lost:
            return 0
        if self.waiting == 0:
            return self.all_sent()
        row.fd = self.fd
        while True:
            self.fill(&row, self.owner.vectors, PIECES_MAX)
            if row.size <= ALONE_BYTES_MAX:
                ol_send(&row)
            else:
                with nogil:
                    ol_send(&row)
            if not self.settle(&row):
                return 0

    cdef int all_sent(self) except -1:
        self.is_full = False
        self.watch_for(self.watched)
        if self.closing:
            return self.lose(None)
        if self.is_ended and shutdown(self.fd, SHUT_WR) < 0:
            return self.lose(_error(errno))
        return 0

    cdef int pause_if_over(self) except -1:
        if self.waiting > self.high and not self.is_slow and not self.is_lost:
            self.is_slow = True
            try:
                self.protocol.pause_writing()
            except Exception as error:
                self.protocol.faulted("pause_writing", error)
        return 0

    cdef int resume_if_sent(self) except -1:
        if self.is_slow and self.waiting <= self.low and not self.is_lost:
            self.is_slow = False
            try:
                self.protocol.resume_writing()
            except Exception as error:
                self.protocol.faulted("resume_writing", error)
        return 0

    # -- the end

    def close(self):
        """Send what waits, then end."""
        if self.closing:
            return
        self.closing = True
        if not self.is_full:
            self.send_waiting()

    def abort(self):
        """End at once; what waits is dropped."""
        self.lose(None)

    cdef int lose(self, object error) except -1:
        """The connection is over: the loop tells the protocol, once."""
        self.closing = True
        if self.is_lost:
            return 0
        self.is_lost = True
        self.is_full = False
        self.drop_all()
        self.watch_for(0)
        self.owner.loop.call_soon(self._end, error)
        return 0

    def _end(self, error):
        cdef int fd = self.fd
        try:
            self.protocol.connection_lost(error)
        except Exception as fault:
            self.protocol.faulted("connection_lost", fault)
        finally:
            self.protocol = self.receive = self.receiver = None
            self.fd = -1
            if self.is_shared:
                self.sock.close()
            else:
                close_fd(fd)
            self.owner.forget(self)
