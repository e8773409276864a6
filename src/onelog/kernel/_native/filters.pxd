"""C face of the topic filter."""

from libc.stdint cimport uint16_t

cdef enum:
    LEVEL_TEXT = 0
    LEVEL_PLUS = 1
    LEVEL_REST = 2

cdef struct Level:
    # Place of one level in its filter.
    uint16_t at
    uint16_t size
    int kind

cdef int split_levels(const unsigned char *text, Py_ssize_t size, Level *levels) noexcept nogil
cdef int refuse_filter(bytes text, int code) except -1

cdef class TopicFilter:
    cdef readonly bytes filter
    cdef readonly bint exact
    cdef Level *levels
    cdef int depth
    cdef const unsigned char *text
    cdef Py_ssize_t text_bytes

    cdef bint match(self, const unsigned char *topic, Py_ssize_t size) noexcept nogil
