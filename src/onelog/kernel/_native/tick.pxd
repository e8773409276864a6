"""C face of the tick."""

cimport cython
from libc.stdint cimport int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.ends cimport PartitionEnd, Pending
from onelog.kernel._native.stage cimport Stage

cdef class Ticker

@cython.freelist(64)
cdef class Taken(Pending):
    cdef Ticker ticker
    cdef Stage stage
    cdef BatchBuilder builder
    cdef Py_ssize_t count
    cdef readonly list rows

cdef class Ticker:
    # As in the twin.
    cdef readonly list dirty
    cdef readonly list on_tick
    cdef object call_soon
    cdef object writing
    # Writes that are not answered, also those of `writing`.
    cdef dict under_way
    cdef object tick_bound
    cdef bint ticking
    # What ticks took; the first `next` of them are written.
    cdef list taken
    cdef Py_ssize_t next
    # Partitions that wait for a sync of what was written.
    cdef list unsynced
    cdef readonly int64_t messages
    cdef readonly int64_t ticks

    cdef int _write_all(self) except -1
    cdef int _write(self, Taken row) except -1
    cdef int _sync_all(self) except -1
    cdef int _answer(self, Taken row) except -1
