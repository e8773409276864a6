"""Varints, MQTT lengths, strings and topic checks, compiled.

Rules: MQTT strings are UTF-8 without U+0000 and without surrogates (MQTT5 1.5.4-1, 1.5.4-2).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from onelog.kernel._native.format cimport (
    BAD_VARINT,
    bytes_at,
    ol_put16,
    read_uvarint,
    read_varint,
    write_uvarint,
    zigzag,
)

from onelog.base.errors import (
    InvalidRequest,
    LimitExceeded,
    MessageTooLarge,
    ProtocolViolation,
)
from onelog.kernel.corruption import corrupt
from onelog.kernel.types import REMAINING_LENGTH_MAX

cdef uint32_t _REMAINING_MAX = REMAINING_LENGTH_MAX


cdef bytes _uvarint(uint64_t value):
    cdef unsigned char out[10]
    return PyBytes_FromStringAndSize(<char *> out, write_uvarint(out, value) - out)


def encode_uvarint(value):
    """An unsigned number of up to 64 bits, seven bits a byte, low bits first."""
    if not 0 <= value <= 0xFFFFFFFFFFFFFFFF:
        raise InvalidRequest(f"{value} does not fit an unsigned varint of 64 bits")
    return _uvarint(value)


def encode_varint(value):
    """A signed number of 64 bits, zigzag."""
    if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise InvalidRequest(f"{value} does not fit a varint of 64 bits")
    return _uvarint(zigzag(<int64_t> value))


cdef int _check_position(Py_buffer *view, Py_ssize_t position) except -1:
    if not 0 <= position <= view.len:
        raise InvalidRequest(f"position {position} is outside the buffer of {view.len} bytes")
    return 0


def decode_uvarint(buf, Py_ssize_t pos=0):
    """The unsigned number at `pos` and where it ends."""
    cdef Py_buffer view
    cdef uint64_t value = 0
    cdef bytes_at at
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_position(&view, pos)
        at = <bytes_at> view.buf + pos
        if read_uvarint(&at, <bytes_at> view.buf + view.len, &value):
            raise corrupt(BAD_VARINT, pos)
        return value, at - <bytes_at> view.buf
    finally:
        PyBuffer_Release(&view)


def decode_varint(buf, Py_ssize_t pos=0):
    """The zigzag number at `pos` and where it ends."""
    cdef Py_buffer view
    cdef int64_t value = 0
    cdef bytes_at at
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_position(&view, pos)
        at = <bytes_at> view.buf + pos
        if read_varint(&at, <bytes_at> view.buf + view.len, &value):
            raise corrupt(BAD_VARINT, pos)
        return value, at - <bytes_at> view.buf
    finally:
        PyBuffer_Release(&view)


def encode_remaining_length(value):
    """MQTT's variable byte integer, one to four bytes."""
    if value < 0:
        raise InvalidRequest(f"a remaining length cannot be {value}")
    if value > _REMAINING_MAX:
        raise MessageTooLarge(f"{value} bytes do not fit an MQTT packet ({_REMAINING_MAX})")
    return _uvarint(value)


def decode_remaining_length(buf, Py_ssize_t pos=0):
    """MQTT's variable byte integer at `pos` and where it ends; None if bytes are missing."""
    cdef Py_buffer view
    cdef bytes_at p
    cdef uint32_t value = 0
    cdef int index = 0
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_position(&view, pos)
        p = <bytes_at> view.buf
        for index in range(4):
            if pos + index >= view.len:
                return None
            value |= <uint32_t> (p[pos + index] & 0x7F) << (7 * index)
            if p[pos + index] < 0x80:
                return value, pos + index + 1
        raise ProtocolViolation(
            f"the remaining length at byte {pos} has more than four bytes"
        )
    finally:
        PyBuffer_Release(&view)


def encode_utf8_field(data):
    """`data` behind its length as u16, as MQTT and Kafka write strings."""
    cdef Py_buffer view
    cdef bytes out
    cdef unsigned char *p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len > 0xFFFF:
            raise LimitExceeded(
                f"a string of {view.len} bytes does not fit a u16 length (65535)"
            )
        out = PyBytes_FromStringAndSize(NULL, view.len + 2)
        p = <unsigned char *> PyBytes_AS_STRING(out)
        ol_put16(p, <unsigned short> view.len)
        if view.len:
            memcpy(p + 2, view.buf, view.len)
        return out
    finally:
        PyBuffer_Release(&view)


cdef bint utf8_ok(bytes_at p, Py_ssize_t size) noexcept nogil:
    """Valid UTF-8 (shortest form, no surrogate, at most U+10FFFF) without U+0000."""
    cdef bytes_at end = p + size
    cdef uint64_t word
    cdef unsigned char a, b
    cdef int more
    while p < end:
        if end - p >= 8:
            memcpy(&word, p, 8)
            # Eight bytes at once when all are ASCII and none is zero.
            if (word & 0x8080808080808080ULL) == 0 and (
                (word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL
            ) == 0:
                p += 8
                continue
        a = p[0]
        if a == 0:
            return False
        p += 1
        if a < 0x80:
            continue
        if a < 0xC2 or a > 0xF4:
            return False
        more = 1 if a < 0xE0 else 2 if a < 0xF0 else 3
        if end - p < more:
            return False
        b = p[0]
        if (
            (a == 0xE0 and b < 0xA0)
            or (a == 0xED and b > 0x9F)
            or (a == 0xF0 and b < 0x90)
            or (a == 0xF4 and b > 0x8F)
        ):
            return False
        while more:
            if (p[0] & 0xC0) != 0x80:
                return False
            p += 1
            more -= 1
    return True


def check_utf8(data):
    """Whether `data` is a string as MQTT allows it."""
    cdef Py_buffer view
    cdef bint good
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    good = utf8_ok(<bytes_at> view.buf, view.len)
    PyBuffer_Release(&view)
    return good


def check_topic(data):
    """Whether `data` may be a topic that is published to: not empty, no wildcard, good UTF-8."""
    cdef Py_buffer view
    cdef bint good
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    good = (
        view.len > 0
        and memchr(view.buf, c"+", view.len) is NULL
        and memchr(view.buf, c"#", view.len) is NULL
        and utf8_ok(<bytes_at> view.buf, view.len)
    )
    PyBuffer_Release(&view)
    return good
