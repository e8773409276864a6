"""C face of the bytes of a socket: those that wait for it, and whoever takes those that come."""

from onelog.kernel._native.epoll cimport iovec, ol_sending

cdef class Receiver:
    cdef int take_bytes(self, bytes data) except -1
    cdef Py_ssize_t room(self, char **into) noexcept
    cdef int took(self, Py_ssize_t size) except -1
    cdef Py_ssize_t first_bytes(self) noexcept

cdef Receiver receiver_of(object call)

cdef class Outbox:
    cdef list chunks
    # Bytes of all chunks that the system has not taken.
    cdef Py_ssize_t waiting
    # Bytes of the first chunk that the system has taken.
    cdef Py_ssize_t skipped
    # When the protocol is to pause and to go on, in bytes that wait.
    cdef Py_ssize_t high
    cdef Py_ssize_t low

    cdef int put(self, object data) except -1
    cdef int pause_if_over(self) except -1
    cdef int keep(self, object data) except -1
    cdef int fill(self, ol_sending *row, iovec *vectors, int most) except -1
    cdef int drop_sent(self, Py_ssize_t sent) except -1
    cdef void drop_all(self) noexcept
