"""C face of the bytes that wait for a socket."""

from onelog.kernel._native.epoll cimport iovec, ol_sending

cdef class Outbox:
    cdef list chunks
    # Bytes of all chunks that the system has not taken.
    cdef Py_ssize_t waiting
    # Bytes of the first chunk that the system has taken.
    cdef Py_ssize_t skipped
    # When the protocol is to pause and to go on, in bytes that wait.
    cdef Py_ssize_t high
    cdef Py_ssize_t low

    cdef int keep(self, object data) except -1
    cdef int fill(self, ol_sending *row, iovec *vectors, int most) except -1
    cdef int drop_sent(self, Py_ssize_t sent) except -1
    cdef void drop_all(self) noexcept
