"""A batch opened for reading, compiled: its header checked, its records' bytes held.

Rules: the caller that opens a batch closes it, also when a check raises. `walk` checks every record
before it returns any; the caller frees the array.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc

from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport (
    BAD_COUNT,
    BAD_CRC,
    BAD_HEADERS,
    BAD_INFLATED,
    BATCH_TAIL,
    CODEC_MASK,
    CRC_FROM,
    HEADER_BYTES,
    INFLATED_BYTES_MAX,
    RECORD_BYTES_MIN,
    Head,
    Span,
    bytes_at,
    check_deltas,
    read_field,
    read_head,
    read_span,
)

from onelog.base.errors import InvalidRequest
from onelog.kernel.corruption import corrupt


cdef int open_source(
    Source *source, object buf, Py_ssize_t position, object records, bint check_crc
) except -1:
    PyObject_GetBuffer(buf, &source.view, PyBUF_SIMPLE)
    try:
        _open(source, position, records, check_crc)
    except BaseException:
        PyBuffer_Release(&source.view)
        raise
    return 0


cdef int _open(Source *source, Py_ssize_t position, object records, bint check_crc) except -1:
    cdef Head *head = &source.head
    cdef bytes_at p
    cdef int code
    cdef Py_buffer inflated
    source.position = position
    if not 0 <= position <= source.view.len:
        raise InvalidRequest(
            f"bytes {position} to {source.view.len} are outside the buffer"
            f" of {source.view.len} bytes"
        )
    p = <bytes_at> source.view.buf + position
    code = read_head(p, source.view.len - position, head)
    if code == 0 and check_crc and crc_of(p + CRC_FROM, head.size - CRC_FROM, 0) != head.crc:
        code = BAD_CRC
    if code:
        raise corrupt(code, position)
    if records is None:
        if head.attributes & CODEC_MASK:
            raise InvalidRequest(
                f"the batch at byte {position} is compressed: give its records"
            )
        source.data = p + HEADER_BYTES
        source.end = p + head.size
    else:
        PyObject_GetBuffer(records, &inflated, PyBUF_SIMPLE)
        if inflated.len > INFLATED_BYTES_MAX:
            PyBuffer_Release(&inflated)
            raise corrupt(BAD_INFLATED, position)
        PyBuffer_Release(&source.view)
        source.view = inflated
        source.data = <bytes_at> inflated.buf
        source.end = source.data + inflated.len
    if <Py_ssize_t> head.count * RECORD_BYTES_MIN > source.end - source.data:
        raise corrupt(BAD_COUNT, position)
    return 0


cdef void close_source(Source *source) noexcept:
    PyBuffer_Release(&source.view)


cdef int fail(Source *source, int code, int record) except -1:
    raise corrupt(code, source.position, record)


cdef int check_tail(Source *source, bytes_at at) except -1:
    if at != source.end:
        raise corrupt(BATCH_TAIL, source.position)
    return 0


cdef Span *walk(Source *source) except? NULL:
    cdef Head *head = &source.head
    cdef bytes_at at = source.data
    cdef int32_t last = -1
    cdef int index, code
    cdef Span *spans = <Span *> malloc((<size_t> head.count + 1) * sizeof(Span))
    if spans is NULL:
        raise MemoryError
    for index in range(head.count):
        code = read_span(source.data, at, source.end, &spans[index])
        if code == 0:
            code = check_deltas(head, &spans[index], last)
        if code:
            free(spans)
            raise corrupt(code, source.position, index)
        last = spans[index].offset_delta
        at = source.data + spans[index].end
    if at != source.end:
        free(spans)
        raise corrupt(BATCH_TAIL, source.position)
    return spans


cdef tuple headers_of(bytes_at data, const Span *span):
    """The headers of a checked record."""
    cdef tuple out, pair
    cdef object name, value
    cdef bytes_at at = data + span.headers
    cdef bytes_at end = data + span.end
    cdef int32_t size = 0
    cdef int index
    if span.header_count == 0:
        return ()
    out = PyTuple_New(span.header_count)
    for index in range(span.header_count):
        read_field(&at, end, 0, BAD_HEADERS, &size)
        name = PyBytes_FromStringAndSize(<const char *> at, size)
        at += size
        read_field(&at, end, -1, BAD_HEADERS, &size)
        if size < 0:
            value = None
        else:
            value = PyBytes_FromStringAndSize(<const char *> at, size)
            at += size
        pair = (name, value)
        Py_INCREF(pair)
        PyTuple_SET_ITEM(out, index, pair)
    return out
