"""C face of the clock."""

from libc.stdint cimport int64_t

cdef int64_t read_clock(object clock) except? -1
cdef double read_monotonic(object clock) except? -1
