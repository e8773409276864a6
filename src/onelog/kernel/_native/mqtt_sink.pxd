"""Bytes on their way to a socket, in C: a bytes object that grows, PUBLISH packets in it. Inlined.

Rules: nobody else has the object until `sink_close` cuts it to size and returns it, so nothing is
copied twice. The owner of a sink closes it or drops it.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint16_t
from libc.string cimport memcpy

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.format cimport ol_put16, write_uvarint

cdef extern from "Python.h":
    PyObject *sink_object "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    unsigned char *sink_text "(unsigned char *)PyBytes_AS_STRING"(PyObject *) noexcept
    int sink_resize "_PyBytes_Resize"(PyObject **, Py_ssize_t) except -1
    void sink_release "Py_XDECREF"(PyObject *) noexcept

cdef enum:
    SINK_BYTES_MIN = 256
    REMAINING_MAX = 268435455
    # A topic alias as a property; a topic that is no longer than that needs none.
    ALIAS_BYTES = 3

cdef struct Sink:
    PyObject *data
    Py_ssize_t used
    Py_ssize_t room

cdef struct Packet:
    # A record in the form of PUBLISH packets; the bytes are borrowed.
    Slice topic
    Slice value
    Slice properties
    Slice publisher
    int qos
    bint retained
    # The alias of the topic, 0 for none; with an alias the topic may be empty.
    int alias


cdef inline int sink_grow(Sink *sink, Py_ssize_t size, Py_ssize_t hint) except -1:
    cdef Py_ssize_t room = sink.room + max(max(sink.room, size), min(hint, 16 * sink.room))
    if sink.data is NULL:
        # Most often a first packet stays the only one, and then nothing has to be cut off.
        room = max(size, <Py_ssize_t> SINK_BYTES_MIN) if hint == 0 else size
        sink.data = sink_object(NULL, room)
    else:
        try:
            sink_resize(&sink.data, room)
        except BaseException:
            sink.used = sink.room = 0  # the object is gone
            raise
    sink.room = room
    return 0


cdef inline unsigned char *sink_space(Sink *sink, Py_ssize_t size, Py_ssize_t hint) except NULL:
    """Where to write the next `size` bytes; up to `hint` bytes may follow."""
    if size > sink.room - sink.used:
        sink_grow(sink, size, hint)
    return sink_text(sink.data) + sink.used


cdef inline bytes sink_close(Sink *sink):
    """The written bytes as an object."""
    cdef bytes out
    if sink.data is NULL:
        return b""
    try:
        if sink.room != sink.used:
            sink_resize(&sink.data, sink.used)
        out = <bytes> sink.data
    finally:
        sink_drop(sink)
    return out


cdef inline void sink_drop(Sink *sink) noexcept:
    cdef PyObject *data = sink.data
    sink.data = NULL
    sink.used = sink.room = 0
    sink_release(data)


cdef inline int length_bytes(Py_ssize_t value) noexcept nogil:
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


cdef inline Py_ssize_t publish_length(
    bint v5, const Packet *packet, Slice identifiers, int flags
) noexcept nogil:
    """The remaining length of the packet that `write_publish` makes."""
    cdef Py_ssize_t properties = (
        identifiers.size + packet.properties.size + (ALIAS_BYTES if packet.alias else 0)
    )
    return (
        2 + packet.topic.size + packet.value.size + (2 if flags & 6 else 0)
        + (length_bytes(properties) + properties if v5 else 0)
    )


cdef inline int write_publish(
    Sink *sink, bint v5, const Packet *packet, Slice identifiers, int flags, int packet_id,
    Py_ssize_t length, Py_ssize_t hint,
) except -1:
    """A PUBLISH packet; `length` is its `publish_length` and at most `REMAINING_MAX`."""
    cdef Py_ssize_t properties
    cdef unsigned char *start = sink_space(sink, length + 5, hint)
    cdef unsigned char *p = start
    p[0] = <unsigned char> (0x30 | flags)
    p = write_uvarint(p + 1, length)
    ol_put16(p, <uint16_t> packet.topic.size)
    memcpy(p + 2, packet.topic.at, packet.topic.size)
    p += 2 + packet.topic.size
    if flags & 6:
        ol_put16(p, <uint16_t> packet_id)
        p += 2
    if v5:
        properties = identifiers.size + packet.properties.size
        if packet.alias:
            p = write_uvarint(p, properties + ALIAS_BYTES)
            p[0] = 0x23
            ol_put16(p + 1, <uint16_t> packet.alias)
            p += ALIAS_BYTES
        else:
            p = write_uvarint(p, properties)
        if properties:
            p = write_slice(write_slice(p, identifiers), packet.properties)
    p = write_slice(p, packet.value)
    sink.used += p - start
    return 0


cdef inline unsigned char *write_slice(unsigned char *p, Slice data) noexcept nogil:
    if data.size > 0:
        memcpy(p, data.at, data.size)
    return p + data.size
