"""A record with its topic in front of its headers. Inlined into each module that writes one."""

from libc.stdint cimport int32_t
from libc.string cimport memcmp, memcpy

from onelog.kernel._native.format cimport Span, bytes_at, topic_of, varint_bytes, write_varint


cdef inline bint has_topic(
    bytes_at data, const Span *span, bytes_at topic, Py_ssize_t topic_bytes
) noexcept nogil:
    """Whether readers already find this topic in a record."""
    cdef int32_t size = 0
    cdef bytes_at found = topic_of(data, span, &size)
    return size == topic_bytes and memcmp(found, topic, size) == 0


cdef inline bytes_at body_of(bytes_at data, const Span *span) noexcept nogil:
    """First byte of a record after its length."""
    cdef bytes_at at = data + span.start
    while at[0] & 0x80:
        at += 1
    return at + 1


cdef inline bytes_at headers_at(bytes_at data, const Span *span) noexcept nogil:
    """The position of a record's number of headers."""
    return data + span.value + max(span.value_bytes, 0)


cdef inline Py_ssize_t tagged_body(
    bytes_at data, const Span *span, Py_ssize_t topic_bytes
) noexcept nogil:
    """Bytes of a record's body with the topic before its headers."""
    return (
        headers_at(data, span) - body_of(data, span)
        + varint_bytes(span.header_count + 1) + 3 + varint_bytes(topic_bytes) + topic_bytes
        + span.end - span.headers
    )


cdef inline Py_ssize_t tagged_bytes(
    bytes_at data, const Span *span, Py_ssize_t topic_bytes
) noexcept nogil:
    cdef Py_ssize_t body = tagged_body(data, span, topic_bytes)
    return varint_bytes(body) + body


cdef inline unsigned char *tag_record(
    unsigned char *p, bytes_at data, const Span *span, bytes_at topic, Py_ssize_t topic_bytes
) noexcept nogil:
    cdef bytes_at at = body_of(data, span)
    cdef bytes_at rest = data + span.headers
    cdef Py_ssize_t before = headers_at(data, span) - at
    p = write_varint(p, tagged_body(data, span, topic_bytes))
    memcpy(p, at, before)
    p = write_varint(p + before, span.header_count + 1)
    p = write_varint(p, 2)
    p[0] = c"~"
    p[1] = c"t"
    p = write_varint(p + 2, topic_bytes)
    memcpy(p, topic, topic_bytes)
    p += topic_bytes
    memcpy(p, rest, data + span.end - rest)
    return p + (data + span.end - rest)


cdef inline unsigned char *copy_record(
    unsigned char *p, bytes_at data, const Span *span
) noexcept nogil:
    memcpy(p, data + span.start, span.end - span.start)
    return p + (span.end - span.start)
