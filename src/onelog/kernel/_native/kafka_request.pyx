"""Kafka requests, compiled: frames, headers, Produce and Fetch.

Rules: the buffer is borrowed for the call, and positions count from its first byte. Bad bytes raise
ProtocolViolation. Bytes after the fields of a request are ignored, as in Kafka's own broker.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t

from onelog.kernel._native.format cimport PARTITIONS_PER_REQUEST_MAX, bytes_at, ol_get32
from onelog.kernel._native.kafka_wire cimport (
    BAD_TEXT,
    CUT_SHORT,
    Reader,
    skip_tags,
    take_bytes,
    take_count,
    take_i8,
    take_i16,
    take_i32,
    take_i64,
    take_number,
    take_tag,
)
from onelog.kernel._native.named cimport named

from onelog.base.errors import InvalidRequest
from onelog.kernel.types import FetchRequest, ProduceRequest
from onelog.kernel.violation import (
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    bad_frame,
    unknown_version,
    violation,
)

cdef object _ProduceRequest = ProduceRequest
cdef object _FetchRequest = FetchRequest
cdef int _PRODUCE_FIRST = PRODUCE_VERSIONS.start
cdef int _PRODUCE_LAST = PRODUCE_VERSIONS.stop - 1
cdef int _FETCH_FIRST = FETCH_VERSIONS.start
cdef int _FETCH_LAST = FETCH_VERSIONS.stop - 1


cdef inline int must(Reader *reader, int code) except -1:
    if code:
        raise violation(code, reader.at - reader.data)
    return 0


cdef int _open(
    Reader *reader, Py_buffer *view, Py_ssize_t start, Py_ssize_t end, bint flexible
) except -1:
    reader.data = reader.at = reader.end = <bytes_at> view.buf
    reader.nameable = PARTITIONS_PER_REQUEST_MAX
    reader.flexible = flexible
    if not 0 <= start <= end <= view.len:
        raise InvalidRequest(
            f"bytes {start} to {end} are outside the buffer of {view.len} bytes"
        )
    reader.at += start
    reader.end += end
    return 0


cdef object _text(Reader *reader, bint nullable):
    cdef bytes_at before = reader.at
    cdef bytes_at start = NULL
    cdef int64_t size = 0
    must(reader, take_bytes(reader, True, nullable, &start, &size))
    if size < 0:
        return None
    try:
        return PyUnicode_DecodeUTF8(<const char *> start, size, NULL)
    except UnicodeDecodeError:
        raise violation(BAD_TEXT, before - reader.data) from None


def split_frames(buf, Py_ssize_t start, Py_ssize_t frame_bytes_max):
    """The whole frames from `start` as (start, end) after their length, where the rest begins, and
    how many bytes the next frame has with its length: 0 while that is unknown.

    A frame of an impossible length raises. After good frames it is reported as -1, and raises at
    the next call, so that the good ones are served first.
    """
    cdef Py_buffer view
    cdef bytes_at data
    cdef int32_t length
    cdef list frames = []
    cdef Py_ssize_t whole = 0
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= view.len:
            raise InvalidRequest(
                f"bytes {start} to {view.len} are outside the buffer of {view.len} bytes"
            )
        data = <bytes_at> view.buf
        while view.len - start >= 4:
            length = <int32_t> ol_get32(data + start)
            if length < 0 or length > frame_bytes_max:
                if not frames:
                    raise bad_frame(length, start, frame_bytes_max)
                whole = -1
                break
            if length > view.len - start - 4:
                whole = <Py_ssize_t> length + 4
                break
            frames.append((start + 4, start + 4 + length))
            start += 4 + <Py_ssize_t> length
    finally:
        PyBuffer_Release(&view)
    return frames, start, whole


def parse_request_header(buf, Py_ssize_t start, Py_ssize_t end, bytes flexible_from not None):
    """(api key, version, correlation id, client id, position of the body) of the request.

    `flexible_from` holds the first flexible version of each api key; 255: none is.
    """
    cdef Py_buffer view
    cdef Reader reader
    cdef int16_t key = 0, version = 0
    cdef int32_t correlation_id = 0
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _open(&reader, &view, start, end, False)
        must(&reader, take_i16(&reader, &key))
        must(&reader, take_i16(&reader, &version))
        must(&reader, take_i32(&reader, &correlation_id))
        client_id = _text(&reader, True)  # never compact, whatever the version
        if (
            0 <= key < PyBytes_GET_SIZE(flexible_from)
            and version >= (<bytes_at> PyBytes_AS_STRING(flexible_from))[key]
        ):
            reader.flexible = True
            must(&reader, skip_tags(&reader))
        return key, version, correlation_id, client_id, reader.at - reader.data
    finally:
        PyBuffer_Release(&view)


cdef list _produce_partitions(Reader *reader):
    cdef list partitions = []
    cdef int64_t count = 0, size = 0
    cdef int32_t index = 0
    cdef bytes_at records = NULL
    cdef Py_ssize_t at
    must(reader, take_count(reader, 6 if reader.flexible else 8, &count))
    while count:
        count -= 1
        must(reader, take_i32(reader, &index))
        must(reader, take_bytes(reader, False, True, &records, &size))
        must(reader, skip_tags(reader))
        at = records - reader.data
        partitions.append((index, at, -1 if size < 0 else at + size))
    return partitions


def parse_produce(buf, Py_ssize_t start, Py_ssize_t end, int version):
    """The Produce request whose body is `buf[start:end]`."""
    cdef Py_buffer view
    cdef Reader reader
    cdef int16_t acks = 0
    cdef int32_t timeout_ms = 0
    cdef int64_t count = 0
    cdef list topics = []
    if not _PRODUCE_FIRST <= version <= _PRODUCE_LAST:
        raise unknown_version("Produce", version, PRODUCE_VERSIONS)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _open(&reader, &view, start, end, version >= 9)
        transactional_id = _text(&reader, True)
        must(&reader, take_i16(&reader, &acks))
        must(&reader, take_i32(&reader, &timeout_ms))
        must(&reader, take_count(&reader, 3 if reader.flexible else 6, &count))
        while count:
            count -= 1
            name = _text(&reader, False)
            partitions = _produce_partitions(&reader)
            must(&reader, skip_tags(&reader))
            topics.append((name, partitions))
        must(&reader, skip_tags(&reader))
        return named(_ProduceRequest, (transactional_id, acks, timeout_ms, topics))
    finally:
        PyBuffer_Release(&view)


cdef object _topic(Reader *reader, int version):
    if version < 13:
        return _text(reader, False)
    if reader.end - reader.at < 16:
        raise violation(CUT_SHORT, reader.at - reader.data)
    name = PyBytes_FromStringAndSize(<const char *> reader.at, 16)
    reader.at += 16
    return name


cdef list _fetch_partitions(Reader *reader, int version):
    cdef list partitions = []
    cdef int64_t count = 0, offset = 0, log_start = -1
    cdef int32_t index = 0, leader_epoch = -1, fetched_epoch = -1, max_bytes = 0
    must(reader, take_count(reader, 16, &count))
    while count:
        count -= 1
        must(reader, take_i32(reader, &index))
        if version >= 9:
            must(reader, take_i32(reader, &leader_epoch))
        must(reader, take_i64(reader, &offset))
        if version >= 12:
            must(reader, take_i32(reader, &fetched_epoch))
        if version >= 5:
            must(reader, take_i64(reader, &log_start))
        must(reader, take_i32(reader, &max_bytes))
        must(reader, skip_tags(reader))
        partitions.append((index, leader_epoch, offset, fetched_epoch, log_start, max_bytes))
    return partitions


cdef list _forgotten(Reader *reader, int version):
    cdef list topics = []
    cdef list indexes
    cdef int64_t count = 0, inner = 0
    cdef int32_t index = 0
    must(reader, take_count(reader, 3 if reader.flexible else 6, &count))
    while count:
        count -= 1
        topic = _topic(reader, version)
        must(reader, take_count(reader, 4, &inner))
        indexes = []
        while inner:
            inner -= 1
            must(reader, take_i32(reader, &index))
            indexes.append(index)
        must(reader, skip_tags(reader))
        topics.append((topic, indexes))
    return topics


cdef int _replica_tags(Reader *reader, int32_t *replica_id) except -1:
    """The tags at the end of a Fetch; tag 1 holds the replica's id and epoch."""
    cdef uint64_t count = 0
    cdef int64_t tag = -1, epoch = 0
    cdef bytes_at start = NULL
    cdef Reader inner
    must(reader, take_number(reader, &count))
    while count:
        count -= 1
        must(reader, take_tag(reader, &tag, &start))
        if tag == 1:
            inner = reader[0]
            inner.at = start
            inner.end = reader.at
            must(&inner, take_i32(&inner, replica_id))
            must(&inner, take_i64(&inner, &epoch))
            must(&inner, skip_tags(&inner))
    return 0


def parse_fetch(buf, Py_ssize_t start, Py_ssize_t end, int version):
    """The Fetch request whose body is `buf[start:end]`."""
    cdef Py_buffer view
    cdef Reader reader
    cdef int32_t replica_id = -1, max_wait_ms = 0, min_bytes = 0, max_bytes = 0
    cdef int32_t session_id = 0, session_epoch = -1
    cdef int isolation = 0
    cdef int64_t count = 0
    cdef list topics = [], forgotten = []
    if not _FETCH_FIRST <= version <= _FETCH_LAST:
        raise unknown_version("Fetch", version, FETCH_VERSIONS)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _open(&reader, &view, start, end, version >= 12)
        if version < 15:
            must(&reader, take_i32(&reader, &replica_id))
        must(&reader, take_i32(&reader, &max_wait_ms))
        must(&reader, take_i32(&reader, &min_bytes))
        must(&reader, take_i32(&reader, &max_bytes))
        must(&reader, take_i8(&reader, &isolation))
        if version >= 7:
            must(&reader, take_i32(&reader, &session_id))
            must(&reader, take_i32(&reader, &session_epoch))
        must(&reader, take_count(&reader, 3 if reader.flexible else 6, &count))
        while count:
            count -= 1
            name = _topic(&reader, version)
            partitions = _fetch_partitions(&reader, version)
            must(&reader, skip_tags(&reader))
            topics.append((name, partitions))
        if version >= 7:
            forgotten = _forgotten(&reader, version)
        rack_id = _text(&reader, False) if version >= 11 else ""
        if version >= 15:
            _replica_tags(&reader, &replica_id)
        else:
            must(&reader, skip_tags(&reader))
        return named(
            _FetchRequest,
            (
                replica_id, max_wait_ms, min_bytes, max_bytes, isolation,
                session_id, session_epoch, rack_id, topics, forgotten,
            ),
        )
    finally:
        PyBuffer_Release(&view)
