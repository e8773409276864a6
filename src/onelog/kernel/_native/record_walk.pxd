"""A walk over the records of a batch, each checked as it comes."""

from libc.stdint cimport int32_t

from onelog.kernel._native.format cimport (
    BAD_COUNT,
    RECORD_BYTES_MIN,
    Head,
    Span,
    bytes_at,
    check_deltas,
    read_span,
)


cdef struct Walk:
    bytes_at data
    bytes_at at
    bytes_at end
    int32_t last
    int index  # of the next record; of the bad one when there is one


cdef inline int begin_walk(
    Walk *walk, const Head *head, bytes_at data, bytes_at end
) noexcept nogil:
    """Before the first record."""
    walk.data = walk.at = data
    walk.end = end
    walk.last = -1
    walk.index = 0
    return BAD_COUNT if <Py_ssize_t> head.count * RECORD_BYTES_MIN > end - data else 0


cdef inline int next_record(Walk *walk, const Head *head, Span *span) noexcept nogil:
    """The next record. Returns 0, or the fault in it."""
    cdef int code = read_span(walk.data, walk.at, walk.end, span)
    if code == 0:
        code = check_deltas(head, span, walk.last)
    if code == 0:
        walk.last = span.offset_delta
        walk.at = walk.data + span.end
        walk.index += 1
    return code
