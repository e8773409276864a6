"""Many batches as Arrow buffers, compiled.

Two passes without the interpreter's lock: the first checks every byte and counts, the second fills
buffers of exactly that size. A record outside of the offsets asked for is checked and left out.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from onelog.kernel._native.format cimport (
    BAD_HEADERS,
    BATCH_TAIL,
    Span,
    bytes_at,
    check_deltas,
    ol_put_le32,
    ol_put_le64,
    read_field,
    read_span,
    time_of,
    topic_of,
)
from onelog.kernel._native.source cimport Source, close_source, fail, open_source

from onelog.base.errors import InvalidRequest
from onelog.kernel.types import Columns

cdef enum:
    # Repeated from kernel/types.py.
    WITH_OFFSETS = 1
    WITH_TIMESTAMPS = 2
    WITH_KEYS = 4
    WITH_VALUES = 8
    WITH_HEADERS = 16
    WITH_TOPICS = 32
    BYTES_MAX = 0x7FFFFFFF

cdef object _new = tuple.__new__
cdef object _Columns = Columns


cdef struct Count:
    # The size of one column of bytes.
    Py_ssize_t size
    Py_ssize_t nulls


cdef struct Totals:
    Py_ssize_t rows
    Count keys
    Count values
    Count topics
    Py_ssize_t headers
    Count names
    Count contents


cdef struct Binary:
    # One column of bytes while it is filled. It has no validity bits when nothing is null.
    unsigned char *validity
    unsigned char *ends
    unsigned char *data
    uint32_t used


cdef struct Filling:
    unsigned char *offsets
    unsigned char *timestamps
    unsigned char *lists
    Binary keys
    Binary values
    Binary topics
    Binary names
    Binary contents
    Py_ssize_t row
    Py_ssize_t header


cdef struct Range:
    int64_t first
    int64_t end
    int want


cdef inline void _count(Count *count, int32_t size) noexcept nogil:
    if size < 0:
        count.nulls += 1
    else:
        count.size += size


cdef inline void _count_headers(bytes_at data, const Span *span, Totals *t) noexcept nogil:
    cdef bytes_at at = data + span.headers
    cdef bytes_at end = data + span.end
    cdef int32_t size = 0
    cdef int index
    t.headers += span.header_count
    for index in range(span.header_count):
        read_field(&at, end, 0, BAD_HEADERS, &size)
        at += size
        _count(&t.names, size)
        read_field(&at, end, -1, BAD_HEADERS, &size)
        if size > 0:
            at += size
        _count(&t.contents, size)


cdef int _measure(Source *source, const Range *wanted, Totals *t, int *record) noexcept nogil:
    """Check every record of a batch and count the wanted ones. Returns 0 or the fault."""
    cdef Span span
    cdef bytes_at at = source.data
    cdef int32_t last = -1
    cdef int32_t size = 0
    cdef int64_t offset
    cdef int index, code
    for index in range(source.head.count):
        code = read_span(source.data, at, source.end, &span)
        if code == 0:
            code = check_deltas(&source.head, &span, last)
        if code:
            record[0] = index
            return code
        last = span.offset_delta
        at = source.data + span.end
        offset = source.head.base_offset + span.offset_delta
        if offset < wanted.first or offset >= wanted.end:
            continue
        t.rows += 1
        _count(&t.keys, span.key_bytes)
        _count(&t.values, span.value_bytes)
        if wanted.want & WITH_TOPICS:
            topic_of(source.data, &span, &size)
            _count(&t.topics, size)
        if wanted.want & WITH_HEADERS:
            _count_headers(source.data, &span, t)
    record[0] = -1
    return 0 if at == source.end else BATCH_TAIL


cdef inline void _put(Binary *column, Py_ssize_t row, bytes_at p, int32_t size) noexcept nogil:
    if size >= 0:
        if column.validity is not NULL:
            column.validity[row >> 3] |= <unsigned char> (1 << (row & 7))
        memcpy(column.data + column.used, p, size)
        column.used += size
    ol_put_le32(column.ends + 4 * (row + 1), column.used)


cdef inline void _put_headers(bytes_at data, const Span *span, Filling *f) noexcept nogil:
    cdef bytes_at at = data + span.headers
    cdef bytes_at end = data + span.end
    cdef int32_t size = 0
    cdef int index
    for index in range(span.header_count):
        read_field(&at, end, 0, BAD_HEADERS, &size)
        _put(&f.names, f.header, at, size)
        at += size
        read_field(&at, end, -1, BAD_HEADERS, &size)
        _put(&f.contents, f.header, at, size)
        if size > 0:
            at += size
        f.header += 1
    ol_put_le32(f.lists + 4 * (f.row + 1), <uint32_t> f.header)


cdef void _fill(Source *source, const Range *wanted, Filling *f) noexcept nogil:
    """The same walk again, over checked records."""
    cdef Span span
    cdef bytes_at at = source.data
    cdef bytes_at topic
    cdef int32_t size = 0
    cdef int64_t offset
    cdef int index
    for index in range(source.head.count):
        read_span(source.data, at, source.end, &span)
        at = source.data + span.end
        offset = source.head.base_offset + span.offset_delta
        if offset < wanted.first or offset >= wanted.end:
            continue
        if wanted.want & WITH_OFFSETS:
            ol_put_le64(f.offsets + 8 * f.row, offset)
        if wanted.want & WITH_TIMESTAMPS:
            ol_put_le64(f.timestamps + 8 * f.row, time_of(&source.head, &span))
        if wanted.want & WITH_KEYS:
            _put(&f.keys, f.row, source.data + span.key, span.key_bytes)
        if wanted.want & WITH_VALUES:
            _put(&f.values, f.row, source.data + span.value, span.value_bytes)
        if wanted.want & WITH_TOPICS:
            topic = topic_of(source.data, &span, &size)
            _put(&f.topics, f.row, topic, size)
        if wanted.want & WITH_HEADERS:
            _put_headers(source.data, &span, f)
        f.row += 1


cdef bytes _zeros(Py_ssize_t size):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    memset(PyBytes_AS_STRING(out), 0, size)
    return out


cdef inline unsigned char *_room(bytes buf) noexcept:
    return <unsigned char *> PyBytes_AS_STRING(buf)


cdef tuple _binary(Py_ssize_t rows, const Count *count, Binary *column):
    """Validity, ends and data of a column, to be filled."""
    if count.size > BYTES_MAX:
        raise InvalidRequest(
            f"a column of {count.size} bytes is more than Arrow counts: give fewer batches"
        )
    cdef bytes validity = _zeros((rows + 7) // 8) if count.nulls else b""
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, 4 * (rows + 1))
    cdef bytes data = PyBytes_FromStringAndSize(NULL, count.size)
    ol_put_le32(_room(ends), 0)
    column.validity = _room(validity) if count.nulls else NULL
    column.ends = _room(ends)
    column.data = _room(data)
    column.used = 0
    return validity, ends, data


def decode_columns(pieces, int64_t first, int64_t end, int want):
    """Records of many batches from offset `first` to before `end`, as columns.

    A piece is (buffer, position of a batch in it, its inflated records or None).
    """
    cdef Source *sources
    cdef Totals totals
    cdef Range wanted
    cdef int opened = 0
    cdef int count = len(pieces)
    cdef int index = 0
    cdef int code = 0
    cdef int record = -1
    wanted.first, wanted.end, wanted.want = first, end, want
    memset(&totals, 0, sizeof(Totals))
    sources = <Source *> calloc(count + 1, sizeof(Source))
    if sources is NULL:
        raise MemoryError
    try:
        for buf, position, records in pieces:
            open_source(&sources[opened], buf, position, records, True)
            opened += 1
        with nogil:
            while index < count and code == 0:
                code = _measure(&sources[index], &wanted, &totals, &record)
                index += 1
        if code:
            fail(&sources[index - 1], code, record)
        return _columns(sources, count, &wanted, &totals)
    finally:
        for index in range(opened):
            close_source(&sources[index])
        free(sources)


cdef object _columns(Source *sources, int count, const Range *wanted, const Totals *t):
    cdef Filling f
    cdef int index
    cdef bytes offsets = None
    cdef bytes timestamps = None
    cdef bytes lists
    cdef tuple keys = None
    cdef tuple values = None
    cdef tuple topics = None
    cdef tuple headers = None
    memset(&f, 0, sizeof(Filling))
    if wanted.want & WITH_OFFSETS:
        offsets = PyBytes_FromStringAndSize(NULL, 8 * t.rows)
        f.offsets = _room(offsets)
    if wanted.want & WITH_TIMESTAMPS:
        timestamps = PyBytes_FromStringAndSize(NULL, 8 * t.rows)
        f.timestamps = _room(timestamps)
    if wanted.want & WITH_KEYS:
        keys = _binary(t.rows, &t.keys, &f.keys)
    if wanted.want & WITH_VALUES:
        values = _binary(t.rows, &t.values, &f.values)
    if wanted.want & WITH_TOPICS:
        topics = _binary(t.rows, &t.topics, &f.topics)
    if wanted.want & WITH_HEADERS:
        lists = PyBytes_FromStringAndSize(NULL, 4 * (t.rows + 1))
        f.lists = _room(lists)
        ol_put_le32(f.lists, 0)
        headers = (
            (lists,)
            + _binary(t.headers, &t.names, &f.names)[1:]
            + _binary(t.headers, &t.contents, &f.contents)
        )
    with nogil:
        for index in range(count):
            _fill(&sources[index], wanted, &f)
    return _new(_Columns, (t.rows, offsets, timestamps, keys, values, topics, headers))
