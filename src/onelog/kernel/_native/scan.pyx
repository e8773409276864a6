"""Batches as wholes, compiled: scan, check, find, fit, patch; records are not looked into."""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint32_t
from libc.string cimport memcpy

from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport (
    BAD_CRC,
    BAD_ORDER,
    CRC_FROM,
    PREFIX_BYTES,
    Head,
    bytes_at,
    ol_put32,
    ol_put64,
    read_head,
)
from onelog.kernel._native.named cimport named

from onelog.base.errors import InvalidRequest
from onelog.kernel.corruption import corrupt, explain
from onelog.kernel.types import BatchInfo

cdef object _BatchInfo = BatchInfo


cdef int _check(bytes_at p, Py_ssize_t left, bint check_crc, Head *head) noexcept nogil:
    cdef int code = read_head(p, left, head)
    if code == 0 and check_crc and crc_of(p + CRC_FROM, head.size - CRC_FROM, 0) != head.crc:
        return BAD_CRC
    return code


cdef object info_of(Py_ssize_t position, const Head *head):
    return named(
        _BatchInfo,
        (
            position, head.size, head.base_offset, head.base_offset + head.last_delta,
            head.leader_epoch, head.attributes, head.base_timestamp, head.max_timestamp,
            head.producer_id, head.producer_epoch, head.base_sequence, head.count,
        ),
    )


cdef int _check_span(Py_buffer *view, Py_ssize_t start, Py_ssize_t end) except -1:
    if not 0 <= start <= end <= view.len:
        raise InvalidRequest(
            f"bytes {start} to {end} are outside the buffer of {view.len} bytes"
        )
    return 0


def scan_batches(buf, Py_ssize_t start=0, bint check_crc=True, Py_ssize_t limit=0):
    """Every batch of `buf[start:]`, which must be whole batches; with `limit`, the first ones."""
    cdef Py_buffer view
    cdef Head head
    cdef int code
    cdef list found = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_span(&view, start, view.len)
        while start < view.len and not 0 < limit <= len(found):
            code = _check(<bytes_at> view.buf + start, view.len - start, check_crc, &head)
            if code:
                raise corrupt(code, start)
            found.append(info_of(start, &head))
            start += head.size
    finally:
        PyBuffer_Release(&view)
    return found


def scan_valid(buf, Py_ssize_t start=0, bint check_crc=True, int64_t expect_offset=-1):
    """The good batches from `start`, where they end, and why ("" at the end of the buffer).

    Base offsets ascend without overlap, from `expect_offset` if that is given.
    """
    cdef Py_buffer view
    cdef Head head
    cdef int code
    cdef list found = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_span(&view, start, view.len)
        while start < view.len:
            code = _check(<bytes_at> view.buf + start, view.len - start, check_crc, &head)
            if code == 0 and head.base_offset < expect_offset:
                code = BAD_ORDER
            if code:
                return found, start, explain(code, start)
            found.append(info_of(start, &head))
            expect_offset = head.base_offset + head.last_delta + 1
            start += head.size
    finally:
        PyBuffer_Release(&view)
    return found, start, ""


def mark_batches(
    buf, Py_ssize_t start, Py_ssize_t least, Py_ssize_t apart, int64_t expect_offset=-1
):
    """Check the batches from `start` on, each CRC too, until `least` bytes of them were good.

    Returns base offsets (i64) and positions (u32) of some, the first one and whatever begins
    `apart` bytes or more behind the last such; the last offset of the first batch; the offset
    behind the last one; where the good ones end, and why ("": there are enough, or no more).
    """
    cdef Py_buffer view
    cdef Head head
    cdef int code = 0
    cdef Py_ssize_t room, stop, at = start, marked = 0, mark_at = start
    cdef int64_t first_last = -1
    cdef bytes offsets, positions
    cdef unsigned char *offset_at
    cdef unsigned char *position_at
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_span(&view, start, view.len)
        if apart < 1 or least < 0 or view.len > UINT32_MAX:
            raise InvalidRequest(f"marks {apart} bytes apart in {view.len} bytes")
        room = (view.len - start) // apart + 1
        offsets = PyBytes_FromStringAndSize(NULL, 8 * room)
        positions = PyBytes_FromStringAndSize(NULL, 4 * room)
        offset_at = <unsigned char *> PyBytes_AS_STRING(offsets)
        position_at = <unsigned char *> PyBytes_AS_STRING(positions)
        stop = min(view.len, start + least)
        with nogil:
            while at < stop:
                code = _check(<bytes_at> view.buf + at, view.len - at, True, &head)
                if code == 0 and head.base_offset < expect_offset:
                    code = BAD_ORDER
                if code:
                    break
                if first_last < 0:
                    first_last = head.base_offset + head.last_delta
                if at >= mark_at:
                    memcpy(offset_at + 8 * marked, &head.base_offset, 8)
                    _put_u32(position_at + 4 * marked, at)
                    marked += 1
                    mark_at = at + apart
                expect_offset = head.base_offset + head.last_delta + 1
                at += head.size
    finally:
        PyBuffer_Release(&view)
    why = explain(code, at) if code else ""
    return offsets[: 8 * marked], positions[: 4 * marked], first_last, expect_offset, at, why


cdef inline void _put_u32(unsigned char *p, Py_ssize_t value) noexcept nogil:
    cdef uint32_t number = <uint32_t> value
    memcpy(p, &number, 4)


def find_batch(buf, Py_ssize_t start, Py_ssize_t end, int64_t offset):
    """Position of the first batch in [start, end) whose last offset is >= `offset`; -1 if none."""
    cdef Py_buffer view
    cdef Head head
    cdef int code
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_span(&view, start, end)
        while start < end:
            code = read_head(<bytes_at> view.buf + start, end - start, &head)
            if code:
                raise corrupt(code, start)
            if head.base_offset + head.last_delta >= offset:
                return start
            start += head.size
    finally:
        PyBuffer_Release(&view)
    return -1


def fit_batches(buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_bytes, int64_t upto):
    """The end of the whole batches from `start` that lie below `upto` and within `max_bytes`.

    At least one batch, if the first lies below `upto`; otherwise `start`.
    """
    cdef Py_buffer view
    cdef Head head
    cdef int code
    cdef Py_ssize_t position = start
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_span(&view, start, end)
        while position < end:
            code = read_head(<bytes_at> view.buf + position, end - position, &head)
            if code:
                raise corrupt(code, position)
            if head.base_offset + head.last_delta >= upto:
                break
            if position > start and position + head.size - start > max_bytes:
                break
            position += head.size
    finally:
        PyBuffer_Release(&view)
    return position


def place_batches(buf, int64_t base_offset, int32_t leader_epoch):
    """Give the batches that fill `buf` the offsets from `base_offset` on, and an epoch.

    Their CRCs stay valid. Returns the batches with the new values.
    """
    cdef Py_buffer view
    cdef Head head
    cdef int code
    cdef unsigned char *p
    cdef Py_ssize_t position = 0
    cdef list placed = []
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    try:
        while position < view.len:
            p = <unsigned char *> view.buf + position
            code = read_head(p, view.len - position, &head)
            if code:
                raise corrupt(code, position)
            ol_put64(p, base_offset)
            ol_put32(p + PREFIX_BYTES, leader_epoch)
            head.base_offset = base_offset
            head.leader_epoch = leader_epoch
            placed.append(info_of(position, &head))
            base_offset += <int64_t> head.last_delta + 1
            position += head.size
    finally:
        PyBuffer_Release(&view)
    return placed
