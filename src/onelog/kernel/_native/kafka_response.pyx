"""Answers to Produce and Fetch, compiled: whole frames; fetched records stay where they are."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from onelog.kernel._native.format cimport ol_put16, ol_put32, ol_put64, write_uvarint

from onelog.base.errors import LimitExceeded
from onelog.kernel.types import RECORDS_COPIED_MAX
from onelog.kernel.violation import FETCH_VERSIONS, PRODUCE_VERSIONS, unknown_version

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef int _PRODUCE_FIRST = PRODUCE_VERSIONS.start
cdef int _PRODUCE_LAST = PRODUCE_VERSIONS.stop - 1
cdef int _FETCH_FIRST = FETCH_VERSIONS.start
cdef int _FETCH_LAST = FETCH_VERSIONS.stop - 1
cdef Py_ssize_t _COPIED_MAX = RECORDS_COPIED_MAX
cdef Py_ssize_t _FRAME_BYTES_MAX = 0x7FFFFFFF

cdef enum:
    _TEXT_BYTES_MAX = 0x7FFF
    _FIRST_BYTES = 512

cdef struct Out:
    # The frame's own bytes: in `first` while they fit, then in memory that `done_with` frees.
    unsigned char *data
    Py_ssize_t size
    Py_ssize_t room
    bint flexible
    unsigned char first[_FIRST_BYTES]


cdef void _begin(Out *out, bint flexible) noexcept:
    out.data = out.first
    out.size = 4  # the frame's length, known at the end
    out.room = _FIRST_BYTES
    out.flexible = flexible


cdef void _done_with(Out *out) noexcept:
    if out.data is not out.first:
        free(out.data)


cdef unsigned char *_grow(Out *out, Py_ssize_t more) except NULL:
    """Where to write the next `more` bytes, which count as written."""
    cdef unsigned char *data
    cdef Py_ssize_t room
    if out.size + more > out.room:
        room = (out.size + more) * 2
        if out.data is out.first:
            data = <unsigned char *> malloc(room)
            if data is not NULL:
                memcpy(data, out.first, out.size)
        else:
            data = <unsigned char *> realloc(out.data, room)
        if data is NULL:
            raise MemoryError
        out.data = data
        out.room = room
    data = out.data + out.size
    out.size += more
    return data


cdef int _i16(Out *out, int16_t value) except -1:
    ol_put16(_grow(out, 2), value)
    return 0


cdef int _i32(Out *out, int32_t value) except -1:
    ol_put32(_grow(out, 4), value)
    return 0


cdef int _i64(Out *out, int64_t value) except -1:
    ol_put64(_grow(out, 8), value)
    return 0


cdef int _length(Out *out, Py_ssize_t size, bint short_size) except -1:
    """A length or count, fixed or compact; -1 is null."""
    cdef unsigned char *p
    if out.flexible:
        p = _grow(out, 10)
        out.size += write_uvarint(p, size + 1) - p - 10
    elif short_size:
        _i16(out, <int16_t> size)
    else:
        _i32(out, <int32_t> size)
    return 0


cdef int _text(Out *out, text) except -1:
    cdef Py_ssize_t size = -1
    cdef const char *data = NULL
    if text is not None:
        data = PyUnicode_AsUTF8AndSize(text, &size)
        if size > _TEXT_BYTES_MAX:
            raise LimitExceeded(f"a string of {size} bytes is longer than {_TEXT_BYTES_MAX}")
    _length(out, size, True)
    if size > 0:
        memcpy(_grow(out, size), data, size)
    return 0


cdef int _no_tags(Out *out) except -1:
    if out.flexible:
        _grow(out, 1)[0] = 0
    return 0


cdef int _set_frame_length(Out *out, Py_ssize_t size) except -1:
    if size > _FRAME_BYTES_MAX:
        raise LimitExceeded(f"an answer of {size} bytes does not fit a frame")
    ol_put32(out.data, <int32_t> size)
    return 0


def encode_produce_response(
    int32_t correlation_id, int version, topics, int32_t throttle_ms=0
):
    """The frame that answers a Produce request."""
    cdef Out out
    cdef int32_t index
    cdef int16_t error_code
    cdef int64_t base_offset, append_time, log_start
    if not _PRODUCE_FIRST <= version <= _PRODUCE_LAST:
        raise unknown_version("Produce", version, PRODUCE_VERSIONS)
    _begin(&out, version >= 9)
    try:
        _i32(&out, correlation_id)
        _no_tags(&out)
        _length(&out, len(topics), False)
        for name, partitions in topics:
            _text(&out, name)
            _length(&out, len(partitions), False)
            for (
                index, error_code, base_offset, append_time, log_start, message, blamed
            ) in partitions:
                _i32(&out, index)
                _i16(&out, error_code)
                _i64(&out, base_offset)
                _i64(&out, append_time)
                if version >= 5:
                    _i64(&out, log_start)
                if version >= 8:
                    _length(&out, len(blamed), False)
                    for record, why in blamed:
                        _i32(&out, record)
                        _text(&out, why)
                        _no_tags(&out)
                    _text(&out, message)
                _no_tags(&out)
            _no_tags(&out)
        _i32(&out, throttle_ms)
        _no_tags(&out)
        _set_frame_length(&out, out.size - 4)
        return PyBytes_FromStringAndSize(<char *> out.data, out.size)
    finally:
        _done_with(&out)


cdef Py_ssize_t _bytes_of(part) except -1:
    cdef Py_buffer view
    cdef Py_ssize_t size
    PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
    size = view.len
    PyBuffer_Release(&view)
    return size


cdef int _copy(Out *out, part) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
    try:
        if view.len:
            memcpy(_grow(out, view.len), view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef class _Cuts:
    """The caller's buffers, each with the position in our own bytes before which it goes."""

    cdef list parts
    cdef list positions
    cdef Py_ssize_t size

    def __cinit__(self):
        self.parts = []
        self.positions = []
        self.size = 0

    cdef int add(self, Out *out, part) except -1:
        cdef Py_ssize_t size = _bytes_of(part)
        if size <= _COPIED_MAX:
            _copy(out, part)
        else:
            self.parts.append(part)
            self.positions.append(out.size)
            self.size += size
        return 0

    cdef list pieces(self, Out *out):
        cdef list pieces = []
        cdef Py_ssize_t start = 0, end
        for position, part in zip(self.positions, self.parts):
            end = position
            if end > start:
                pieces.append(PyBytes_FromStringAndSize(<char *> out.data + start, end - start))
            pieces.append(part)
            start = end
        if out.size > start:
            pieces.append(PyBytes_FromStringAndSize(<char *> out.data + start, out.size - start))
        return pieces


cdef int _records(Out *out, _Cuts cuts, records) except -1:
    cdef Py_ssize_t size = 0
    if records is None:
        _length(out, -1, False)
    elif isinstance(records, (list, tuple)):
        for part in records:
            size += _bytes_of(part)
        _length(out, size, False)
        for part in records:
            cuts.add(out, part)
    else:
        _length(out, _bytes_of(records), False)
        cuts.add(out, records)
    return 0


cdef int _aborted(Out *out, aborted) except -1:
    cdef int64_t producer_id, first_offset
    if aborted is None:
        _length(out, -1, False)
        return 0
    _length(out, len(aborted), False)
    for producer_id, first_offset in aborted:
        _i64(out, producer_id)
        _i64(out, first_offset)
        _no_tags(out)
    return 0


cdef int _fetched_topic(Out *out, _Cuts cuts, partitions, int version) except -1:
    cdef int32_t index, replica
    cdef int16_t error_code
    cdef int64_t high_watermark, last_stable, log_start
    _length(out, len(partitions), False)
    for (
        index, error_code, high_watermark, last_stable, log_start, aborted, replica, records
    ) in partitions:
        _i32(out, index)
        _i16(out, error_code)
        _i64(out, high_watermark)
        _i64(out, last_stable)
        if version >= 5:
            _i64(out, log_start)
        _aborted(out, aborted)
        if version >= 11:
            _i32(out, replica)
        _records(out, cuts, records)
        _no_tags(out)
    _no_tags(out)
    return 0


def encode_fetch_response(
    int32_t correlation_id,
    int version,
    int32_t throttle_ms,
    int16_t error_code,
    int32_t session_id,
    topics,
):
    """The frame that answers a Fetch request, in pieces to write one after the other.

    Records are the caller's own buffers, except small ones, which are copied.
    """
    cdef Out out
    cdef _Cuts cuts = _Cuts()
    if not _FETCH_FIRST <= version <= _FETCH_LAST:
        raise unknown_version("Fetch", version, FETCH_VERSIONS)
    _begin(&out, version >= 12)
    try:
        _i32(&out, correlation_id)
        _no_tags(&out)
        _i32(&out, throttle_ms)
        if version >= 7:
            _i16(&out, error_code)
            _i32(&out, session_id)
        _length(&out, len(topics), False)
        for topic, partitions in topics:
            if isinstance(topic, bytes):
                memcpy(
                    _grow(&out, PyBytes_GET_SIZE(topic)),
                    PyBytes_AS_STRING(topic),
                    PyBytes_GET_SIZE(topic),
                )
            else:
                _text(&out, topic)
            _fetched_topic(&out, cuts, partitions, version)
        _no_tags(&out)
        _set_frame_length(&out, out.size - 4 + cuts.size)
        return cuts.pieces(&out)
    finally:
        _done_with(&out)
