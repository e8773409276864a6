"""C face of sends."""

from onelog.kernel._native.epoll cimport ol_sending

cdef extern from "uring.h":
    cdef enum:
        OL_RING_SENDS
    ctypedef struct ol_ring:
        int fd
    int ol_ring_open(ol_ring *ring)
    void ol_ring_close(ol_ring *ring)
    void ol_ring_send_all(ol_ring *ring, ol_sending *rows, int count) nogil

cdef class Sends:
    cdef ol_ring ring
    # From how many sends on they go by the ring; 0: there is none.
    cdef int ring_from

    cdef void close(self) noexcept
    cdef void make(self, ol_sending *rows, int count, Py_ssize_t size) noexcept
