"""The batch of a Produce request, compiled: checked once, before it is appended as it came."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp

from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport (
    BAD_COUNT,
    BAD_CRC,
    BAD_HEADERS,
    BAD_LENGTH,
    BAD_MAGIC,
    BATCH_TAIL,
    CODEC_MASK,
    CRC_FROM,
    HEADER_BYTES,
    NO_KEY,
    NOT_DENSE,
    RECORD_BYTES_MIN,
    SECOND_BATCH,
    SHORT_BATCH,
    SHORT_HEADER,
    Head,
    Span,
    bytes_at,
    check_deltas,
    read_field,
    read_head,
    read_span,
    time_of,
)
from onelog.kernel._native.scan cimport info_of
from onelog.kernel._native.source cimport Source, close_source, open_source, walk

from onelog.base.errors import InvalidRequest
from onelog.kernel.corruption import corrupt


cdef int _check_head(bytes_at p, Py_ssize_t left, Head *head) noexcept nogil:
    """The header. Damage is checked first: other faults mean something only in undamaged bytes."""
    cdef int code
    if left > 16 and p[16] != 2:
        return BAD_MAGIC  # older formats have the magic in the same place, and may be shorter
    code = read_head(p, left, head)
    if code == SHORT_HEADER or code == BAD_LENGTH or code == SHORT_BATCH:
        return code
    if crc_of(p + CRC_FROM, head.size - CRC_FROM, 0) != head.crc:
        return BAD_CRC
    if head.size != left:
        return SECOND_BATCH
    if code == 0 and head.last_delta != head.count - 1:
        code = NOT_DENSE
    return code


cdef int _check_records(
    bytes_at data, bytes_at end, const Head *head, bint need_keys, int32_t *index, int64_t *latest
) noexcept nogil:
    """Check every record and find the latest time; `index` is the bad record, or -1 for the
    batch."""
    cdef Span span
    cdef bytes_at at = data
    cdef int32_t last = -1
    cdef int code
    index[0] = -1
    if <Py_ssize_t> head.count * RECORD_BYTES_MIN > end - data:
        return BAD_COUNT
    for index[0] in range(head.count):
        code = read_span(data, at, end, &span)
        if code == 0:
            code = check_deltas(head, &span, last)
        if code == 0 and need_keys and span.key_bytes < 0:
            code = NO_KEY
        if code:
            return code
        # Offsets ascend, and there are as many as the batch spans: they are dense.
        last = span.offset_delta
        at = data + span.end
        if index[0] == 0 or time_of(head, &span) > latest[0]:
            latest[0] = time_of(head, &span)
    index[0] = -1
    return 0 if at == end else BATCH_TAIL


def check_produce_batch(buf, Py_ssize_t start, Py_ssize_t end, bint need_keys=False):
    """The one batch that fills `buf[start:end]`, as a client may send it, and its latest time.

    Damage raises CorruptBatch, an older format UnsupportedMagic, and a content that is not allowed
    InvalidRecords. Compressed records are not opened: their time is that of the header.
    """
    cdef Py_buffer view
    cdef Head head
    cdef bytes_at p
    cdef int32_t index = -1
    cdef int64_t latest
    cdef int code
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise InvalidRequest(
                f"bytes {start} to {end} are outside the buffer of {view.len} bytes"
            )
        p = <bytes_at> view.buf + start
        code = _check_head(p, end - start, &head)
        latest = head.max_timestamp
        if code == 0 and not head.attributes & CODEC_MASK:
            code = _check_records(
                p + HEADER_BYTES, p + head.size, &head, need_keys, &index, &latest
            )
        if code:
            raise corrupt(code, start, index)
        return info_of(start, &head), latest
    finally:
        PyBuffer_Release(&view)


cdef bint _has_text(bytes_at at, bytes_at end, tuple names):
    """Whether bytes hold one of these names, which all begin with `~`, anywhere."""
    cdef bytes name
    cdef Py_ssize_t size
    while at < end:
        at = <bytes_at> memchr(at, c"~", end - at)
        if at == NULL:
            return False
        for name in names:
            size = PyBytes_GET_SIZE(name)
            if size <= end - at and memcmp(at, PyBytes_AS_STRING(name), size) == 0:
                return True
        at += 1
    return False


cdef int _gather(
    bytes_at data, const Span *span, int index, tuple names, dict found
) except -1:
    """Add the headers of these names that a checked record has."""
    cdef bytes_at at = data + span.headers
    cdef bytes_at end = data + span.end
    cdef bytes_at first
    cdef bytes name
    cdef int32_t size = 0
    cdef int32_t value = 0
    cdef int32_t number
    for number in range(span.header_count):
        read_field(&at, end, 0, BAD_HEADERS, &size)
        first = at
        at += size
        read_field(&at, end, -1, BAD_HEADERS, &value)
        for name in names:
            if PyBytes_GET_SIZE(name) == size and not memcmp(first, PyBytes_AS_STRING(name), size):
                key = name, (
                    PyBytes_FromStringAndSize(<char *> at, value) if value >= 0 else None
                )
                if key not in found:
                    found[key] = index
        if value > 0:
            at += value
    return 0


def find_headers(buf, Py_ssize_t position, records, tuple names not None, Py_ssize_t most):
    """The headers of some names in a batch: (name, value) → the first record that has it.

    `names` all begin with `~`. `records` holds the inflated records, if the batch is compressed.
    It stops after `most` different ones. A batch whose bytes have none of the names is not walked.
    """
    cdef Source source
    cdef Span *spans = NULL
    cdef dict found = {}
    cdef int index
    open_source(&source, buf, position, records, False)
    try:
        if not _has_text(source.data, source.end, names):
            return found
        spans = walk(&source)
        for index in range(source.head.count):
            _gather(source.data, &spans[index], index, names, found)
            if len(found) >= most:
                break
        return found
    finally:
        free(spans)
        close_source(&source)
