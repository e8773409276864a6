"""C face of the tick."""

cimport cython
from libc.stdint cimport int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.ends cimport PartitionEnd
from onelog.kernel._native.stage cimport Stage

@cython.freelist(64)
cdef class Taken:
    cdef Stage stage
    cdef BatchBuilder builder
    cdef Py_ssize_t count
    cdef list rows

cdef class Ticker:
    # As in the twin.
    cdef readonly list dirty
    cdef readonly list on_tick
    cdef object call_soon
    cdef object writing
    cdef object tick_bound
    cdef bint ticking
    # What ticks took; the first `next` of them are written.
    cdef list taken
    cdef Py_ssize_t next
    cdef readonly int64_t messages
    cdef readonly int64_t ticks

    cdef int _write_all(self) except -1
    cdef int _write(self, Taken row) except -1
    cdef int _answer(self, Taken row, int64_t base) except -1
