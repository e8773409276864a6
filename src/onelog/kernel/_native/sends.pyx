"""Sends that are described first and made together, compiled: one after the other, or by a ring.

Rules: a ring makes many sends with one call of the system (`uring.h`), and few of them no cheaper.
When `make` returns, every send is over, and the bytes are not needed any longer.
"""

from onelog.kernel._native.epoll cimport ol_send_all, ol_sending

import os

cdef enum:
    # So few sends do not let go of the interpreter: to get it back may take longer.
    ALONE_MAX = 4
    ALONE_BYTES_MAX = 65536


cdef class Sends:
    """Makes the sends of a set."""

    def __cinit__(self):
        self.ring.fd = -1  # before anything can fail: 0 is a descriptor

    def __init__(self, int ring_from=0):
        cdef int problem
        if ring_from:
            problem = ol_ring_open(&self.ring)
            if problem:
                raise OSError(problem, os.strerror(problem))
            self.ring_from = ring_from

    def __dealloc__(self):
        ol_ring_close(&self.ring)

    cdef void close(self) noexcept:
        """Give the ring back. Idempotent."""
        self.ring_from = 0
        ol_ring_close(&self.ring)

    cdef void make(self, ol_sending *rows, int count, Py_ssize_t size) noexcept:
        """Make at most `OL_RING_SENDS` sends of `size` bytes in all."""
        if 0 < self.ring_from <= count <= OL_RING_SENDS:
            with nogil:
                ol_ring_send_all(&self.ring, rows, count)
        elif count <= ALONE_MAX and size <= ALONE_BYTES_MAX:
            ol_send_all(rows, count)
        else:
            with nogil:
                ol_send_all(rows, count)


def probe_ring():
    """Find out whether the system has a ring for us. Raises OSError if not."""
    Sends(1)
