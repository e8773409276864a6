"""C face of an opened batch."""

from onelog.kernel._native.format cimport Head, Span, bytes_at

cdef struct Source:
    # The buffer that holds the records stays exported until `close_source`.
    Py_buffer view
    Py_ssize_t position
    bytes_at data
    bytes_at end
    Head head

cdef int open_source(
    Source *source, object buf, Py_ssize_t position, object records, bint check_crc
) except -1
cdef void close_source(Source *source) noexcept
cdef int check_tail(Source *source, bytes_at at) except -1
cdef int fail(Source *source, int code, int record) except -1
cdef Span *walk(Source *source) except? NULL
cdef tuple headers_of(bytes_at data, const Span *span)
