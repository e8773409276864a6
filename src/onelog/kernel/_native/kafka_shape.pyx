"""The shape of a Kafka request, compiled: whether its lengths and counts fit before it is read.

The interpreted twin has the rules, and the program of a shape.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t

from onelog.kernel._native.format cimport PARTITIONS_PER_REQUEST_MAX, bytes_at
from onelog.kernel._native.kafka_wire cimport (
    CUT_SHORT,
    Reader,
    skip_tags,
    take_bytes,
    take_count,
    take_length,
)

from onelog.base.errors import InvalidRequest
from onelog.kernel.violation import violation


cdef int _array(
    Reader *reader, bytes_at step, bytes_at *after, bint nullable, list tagged
) except -1:
    cdef bytes_at body = step + 3
    cdef bytes_at before = reader.at
    cdef int64_t count = 0
    cdef int code
    after[0] = body + (step[1] << 8 | step[2])
    if nullable:
        code = take_length(reader, False, &count)
        if code or count == -1:
            return code
        reader.at = before
    code = take_count(reader, step[0], &count)
    while code == 0 and count:
        count -= 1
        code = _walk(reader, body, after[0], tagged)
    return code


cdef int _structure(Reader *reader, bytes_at step, bytes_at *after, list tagged) except -1:
    after[0] = step + 2 + (step[0] << 8 | step[1])
    if reader.at == reader.end:
        return CUT_SHORT
    reader.at += 1
    if reader.at[-1] & 0x80:
        return 0
    return _walk(reader, step + 2, after[0], tagged)


cdef int _walk(Reader *reader, bytes_at step, bytes_at stop, list tagged) except -1:
    cdef bytes_at start = NULL
    cdef bytes_at before
    cdef int64_t size = 0
    cdef unsigned char kind
    cdef int code = 0
    while code == 0 and step < stop:
        kind = step[0]
        step += 1
        if kind == c"F":
            if reader.end - reader.at < step[0]:
                return CUT_SHORT
            reader.at += step[0]
            step += 1
        elif kind == c"S":
            code = take_bytes(reader, True, True, &start, &size)
        elif kind == c"B":
            code = take_bytes(reader, False, True, &start, &size)
        elif kind == c"T":
            before = reader.at
            code = skip_tags(reader)
            if reader.at > before + 1:
                tagged.append((before - reader.data, reader.at - reader.data))
        elif kind == c"N":
            code = _structure(reader, step, &step, tagged)
        else:
            code = _array(reader, step, &step, kind == c"A", tagged)
    return code


def check_shape(buf, Py_ssize_t start, Py_ssize_t end, bytes shape not None, bint flexible):
    """Where the fields of `shape` end in `buf[start:end]`, and where there are tagged fields.

    Each of those is (start, end), including its count. Raises ProtocolViolation.
    """
    cdef Py_buffer view
    cdef Reader reader
    cdef bytes_at program = <bytes_at> PyBytes_AS_STRING(shape)
    cdef int code
    cdef list tagged = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len:
            raise InvalidRequest(
                f"bytes {start} to {end} are outside the buffer of {view.len} bytes"
            )
        reader.data = <bytes_at> view.buf
        reader.at = reader.data + start
        reader.end = reader.data + end
        reader.nameable = PARTITIONS_PER_REQUEST_MAX
        reader.flexible = flexible
        code = _walk(&reader, program, program + PyBytes_GET_SIZE(shape), tagged)
        if code:
            raise violation(code, reader.at - reader.data)
        return reader.at - reader.data, tagged
    finally:
        PyBuffer_Release(&view)
