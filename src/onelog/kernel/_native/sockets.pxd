"""C face of sockets of our own."""

from libc.stdint cimport uint32_t

from onelog.kernel._native.epoll cimport epoll_event, iovec, ol_sending
from onelog.kernel._native.loop_pass cimport LoopPass, PassEnd
from onelog.kernel._native.outbox cimport Outbox, Receiver
from onelog.kernel._native.sends cimport Sends

cdef enum:
    EVENTS_MAX = 256
    READS_MAX = 4
    PIECES_MAX = 1024
    SENDINGS_MAX = 256
    # A send of so few bytes does not let go of the interpreter: to get it back may take longer.
    ALONE_BYTES_MAX = 65536
    # To so many sockets at most bytes are sent before a pass ends.
    FEW_MAX = 4

cdef class SocketTransport

cdef class SocketSet(PassEnd):
    cdef object loop
    cdef LoopPass passing
    cdef int fd
    cdef set transports
    cdef list dirty
    cdef bint is_soon
    cdef bint is_closing
    cdef readonly bint is_closed
    cdef char *buffer
    cdef epoll_event events[EVENTS_MAX]
    cdef iovec vectors[PIECES_MAX]
    cdef ol_sending sendings[SENDINGS_MAX]
    cdef Sends sends

    cdef int _close_if_unused(self) except -1
    cdef int note_dirty(self, SocketTransport transport) except -1
    cdef int _send_all(self, list dirty) except -1
    cdef Py_ssize_t _send_some(self, list dirty, Py_ssize_t at, Py_ssize_t count) except -1
    cdef int forget(self, SocketTransport transport) except -1

cdef class SocketTransport(Outbox):
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

    cdef bint reads(self) noexcept
    cdef int take_events(self, uint32_t events) except -1
    cdef bint read(self) except -1
    cdef int _meet_end(self) except -1
    cdef int watch_for(self, uint32_t kept) except -1
    cdef bint may_write(self) except -1
    cdef int written(self) except -1
    cdef int settle(self, ol_sending *row) except -1
    cdef int send_waiting(self) except -1
    cdef int all_sent(self) except -1
    cdef int resume_if_sent(self) except -1
    cdef int lose(self, object error) except -1
