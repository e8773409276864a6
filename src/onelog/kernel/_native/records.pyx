"""The records of one batch, compiled: validate, topics, slices.

The topic of a record is the value of its first header if that header's key is `~t`, else its key.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free

from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport (
    NO_KEY,
    Span,
    bytes_at,
    check_deltas,
    ol_put_le32,
    read_span,
    time_of,
    topic_of,
)
from onelog.kernel._native.source cimport (
    Source,
    check_tail,
    close_source,
    fail,
    headers_of,
    open_source,
    walk,
)


cdef inline object _part(bytes_at data, uint32_t position, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *> data + position, size)


def validate_records(buf, Py_ssize_t pos=0, records=None, bint need_keys=False):
    """Check every record of the batch at `pos`. Returns the latest time. Raises CorruptBatch."""
    cdef Source source
    cdef Span span
    cdef bytes_at at
    cdef int32_t last = -1
    cdef int64_t latest
    cdef int index, code
    open_source(&source, buf, pos, records, False)
    try:
        at = source.data
        latest = source.head.max_timestamp
        for index in range(source.head.count):
            code = read_span(source.data, at, source.end, &span)
            if code == 0:
                code = check_deltas(&source.head, &span, last)
            if code == 0 and need_keys and span.key_bytes < 0:
                code = NO_KEY
            if code:
                fail(&source, code, index)
            last = span.offset_delta
            at = source.data + span.end
            if index == 0 or time_of(&source.head, &span) > latest:
                latest = time_of(&source.head, &span)
        check_tail(&source, at)
        return latest
    finally:
        close_source(&source)


def batch_topics(buf, Py_ssize_t pos=0, records=None):
    """u32 pairs (topic hash, offset delta), little endian, of the records that have a topic."""
    cdef Source source
    cdef Span *spans = NULL
    cdef bytes_at topic
    cdef int32_t size
    cdef int index
    cdef Py_ssize_t used = 0
    cdef bytes out
    cdef unsigned char *p
    open_source(&source, buf, pos, records, False)
    try:
        spans = walk(&source)
        out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> source.head.count * 8)
        p = <unsigned char *> PyBytes_AS_STRING(out)
        for index in range(source.head.count):
            topic = topic_of(source.data, &spans[index], &size)
            if size >= 0:
                ol_put_le32(p + used, crc_of(topic, size, 0))
                ol_put_le32(p + used + 4, spans[index].offset_delta)
                used += 8
        return out if used == len(out) else out[:used]
    finally:
        free(spans)
        close_source(&source)


cdef class Slices:
    """The records of one batch as positions in its buffer; their bytes are copied when asked for.

    It keeps the buffer: while it lives, a bytearray cannot be resized, nor a mapping closed.
    """

    cdef Source source
    cdef Span *spans
    cdef bint opened

    def __cinit__(self):
        self.spans = NULL
        self.opened = False

    def __init__(self):
        if not self.opened:
            raise TypeError("decode_batch makes slices")

    def __dealloc__(self):
        free(self.spans)
        if self.opened:
            close_source(&self.source)

    def __len__(self):
        return self.source.head.count

    cdef Span *_span(self, Py_ssize_t index) except NULL:
        if not 0 <= index < self.source.head.count:
            raise IndexError(f"record {index} of {self.source.head.count}")
        return &self.spans[index]

    cdef tuple _record(self, const Span *span):
        cdef bytes_at data = self.source.data
        return (
            self.source.head.base_offset + span.offset_delta,
            time_of(&self.source.head, span),
            _part(data, span.key, span.key_bytes),
            _part(data, span.value, span.value_bytes),
            headers_of(data, span) if span.header_count else (),
        )

    def offset(self, Py_ssize_t index):
        """Offset of a record."""
        return self.source.head.base_offset + self._span(index).offset_delta

    def offsets(self):
        """Offsets of all records."""
        cdef int index
        cdef int64_t base = self.source.head.base_offset
        return [base + self.spans[index].offset_delta for index in range(self.source.head.count)]

    def timestamp_ms(self, Py_ssize_t index):
        """Timestamp of a record."""
        return time_of(&self.source.head, self._span(index))

    def key(self, Py_ssize_t index):
        """Key of a record."""
        cdef Span *span = self._span(index)
        return _part(self.source.data, span.key, span.key_bytes)

    def value(self, Py_ssize_t index):
        """Value of a record."""
        cdef Span *span = self._span(index)
        return _part(self.source.data, span.value, span.value_bytes)

    def topic(self, Py_ssize_t index):
        """Topic of a record."""
        cdef int32_t size
        cdef bytes_at topic = topic_of(self.source.data, self._span(index), &size)
        return None if size < 0 else PyBytes_FromStringAndSize(<const char *> topic, size)

    def record(self, Py_ssize_t index):
        """(offset, timestamp_ms, key, value, headers) of a record."""
        return self._record(self._span(index))

    def records(self):
        """All records."""
        cdef int index
        cdef list out = PyList_New(self.source.head.count)
        cdef tuple record
        for index in range(self.source.head.count):
            record = self._record(&self.spans[index])
            Py_INCREF(record)
            PyList_SET_ITEM(out, index, record)
        return out


def decode_batch(buf, Py_ssize_t pos=0, records=None, bint check_crc=True):
    """The batch at `pos` as slices, every record checked."""
    cdef Slices slices = Slices.__new__(Slices)
    open_source(&slices.source, buf, pos, records, check_crc)
    slices.opened = True
    slices.spans = walk(&slices.source)
    return slices
