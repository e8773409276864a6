"""C face of the clock."""

from libc.stdint cimport int64_t

cdef int64_t read_clock(object clock) except? -1
