"""AMQP 0-9-1 frames, compiled: a whole read at once; publishes, acks and deliveries as units.

The rules are those of the interpreted twin.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from onelog.kernel._native.format cimport bytes_at, ol_get16, ol_get32, ol_get64

from onelog.kernel._native.wire import encode_varint


cdef int read_frame(bytes_at at, bytes_at stop, uint64_t limit, Frame *frame) noexcept nogil:
    """1 for a whole frame (or a fault), 0 for an incomplete one."""
    cdef uint64_t size
    if stop - at < 7:
        return 0
    frame.kind = at[0]
    frame.channel = ol_get16(at + 1)
    size = ol_get32(at + 3)
    if limit and size > limit:
        frame.kind, frame.channel = FAULT, TOO_LARGE
        return 1
    if size >= <uint64_t> (stop - at - 7):
        return 0
    frame.start = at + 7
    frame.end = at + 7 + size
    if frame.end[0] != END:
        frame.kind, frame.channel = FAULT, BAD_END
    elif frame.kind not in (METHOD, HEADER, BODY, HEARTBEAT):
        frame.kind, frame.channel = FAULT, BAD_TYPE
    return 1


cdef object _text(bytes_at at, Py_ssize_t size):
    try:
        return PyUnicode_DecodeUTF8(<const char *> at, size, NULL)
    except UnicodeDecodeError:
        return None


cdef int read_content(
    const Frame *method, bytes_at stop, uint64_t limit, Content *found
) noexcept nogil:
    """1 for a whole publish, 0 when it is none, -1 when the rest has still to come."""
    cdef bytes_at at = method.start + 6
    cdef Frame frame
    cdef uint64_t left, size
    if at >= method.end or at + 1 + at[0] > method.end:
        return 0
    found.names = at
    found.names_end = method.end
    at += 1 + at[0]
    if at >= method.end or at + 1 + at[0] + 1 != method.end:
        return 0
    if not read_frame(method.end + 1, stop, limit, &frame):
        return -1
    if frame.kind != HEADER or frame.channel != method.channel or frame.end - frame.start < 14:
        return 0
    if ol_get16(frame.start) != BASIC:
        return 0
    found.properties = frame.start + 12
    found.properties_end = frame.end
    found.size = left = ol_get64(frame.start + 4)
    found.after = frame.end + 1
    found.body = found.after + 7
    found.frames = 0
    while left:
        if not read_frame(found.after, stop, limit, &frame):
            if found.size > WAIT_BYTES_MAX or found.frames >= WAIT_FRAMES_MAX:
                return 0
            return -1
        if frame.kind != BODY or frame.channel != method.channel:
            return 0
        size = frame.end - frame.start
        if size == 0 or size > left:
            return 0
        left -= size
        found.frames += 1
        found.after = frame.end + 1
    return 1


cdef object publish_event(int channel, const Content *content, bytes_at stop, uint64_t limit):
    """The event of a whole publish; None: its names are not text."""
    cdef bytes_at key = content.names + 1 + content.names[0]
    cdef object exchange = _text(content.names + 1, content.names[0])
    cdef object routing_key = _text(key + 1, key[0])
    cdef object body
    cdef unsigned char *out
    cdef bytes_at at = content.properties_end + 1
    cdef Frame frame
    cdef int number
    if exchange is None or routing_key is None:
        return None
    body = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> content.size)
    out = <unsigned char *> PyBytes_AS_STRING(body)
    for number in range(content.frames):
        read_frame(at, stop, limit, &frame)
        memcpy(out, frame.start, frame.end - frame.start)
        out += frame.end - frame.start
        at = frame.end + 1
    return (
        PUBLISH,
        channel,
        exchange,
        routing_key,
        <int> (content.names_end - 1)[0],
        PyBytes_FromStringAndSize(
            <const char *> content.properties, content.properties_end - content.properties
        ),
        body,
    )


cdef tuple ack_event(const Frame *frame):
    return (
        ACK, frame.channel, <uint64_t> ol_get64(frame.start + 4), bool(frame.start[12] & 1)
    )


def split_amqp(buf, Py_ssize_t frame_bytes_max):
    """The events of the whole frames in a buffer, and how many bytes those frames have.

    (kind, channel, start, end) is a frame by its payload; (PUBLISH, channel, exchange, key, flags,
    properties, body) a whole publish; (ACK, channel, delivery tag, multiple) an acknowledgement;
    (FAULT, what) ends the list.
    """
    cdef Py_buffer view
    cdef bytes_at data, at, stop
    cdef Frame frame
    cdef Content content
    cdef uint64_t limit = <uint64_t> frame_bytes_max
    cdef uint32_t number
    cdef list events = []
    cdef object found
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        data = at = <bytes_at> view.buf
        stop = data + view.len
        while read_frame(at, stop, limit, &frame):
            if frame.kind == FAULT:
                events.append((FAULT, frame.channel))
                break
            if frame.kind == METHOD and frame.end - frame.start >= 4:
                number = ol_get32(frame.start)
                if number == PUBLISH_METHOD:
                    found = None
                    if read_content(&frame, stop, limit, &content) == 1:
                        found = publish_event(frame.channel, &content, stop, limit)
                    if found is not None:
                        events.append(found)
                        at = content.after
                        continue
                elif number == ACK_METHOD and frame.end - frame.start == 13:
                    events.append(ack_event(&frame))
                    at = frame.end + 1
                    continue
            events.append((frame.kind, frame.channel, frame.start - data, frame.end - data))
            at = frame.end + 1
        return events, at - data
    finally:
        PyBuffer_Release(&view)


def encode_headers(headers):
    """Headers in the record's own encoding, without their count."""
    cdef list parts = []
    for name, value in headers:
        parts += (encode_varint(len(name)), name)
        parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


cdef inline unsigned char *_put_frame(
    unsigned char *p, int kind, int channel, uint32_t size
) noexcept nogil:
    p[0] = <unsigned char> kind
    p[1] = <unsigned char> (channel >> 8)
    p[2] = <unsigned char> channel
    p[3] = <unsigned char> (size >> 24)
    p[4] = <unsigned char> (size >> 16)
    p[5] = <unsigned char> (size >> 8)
    p[6] = <unsigned char> size
    return p + 7


cdef inline unsigned char *_put64(unsigned char *p, uint64_t value) noexcept nogil:
    cdef int shift
    for shift in range(8):
        p[shift] = <unsigned char> (value >> (56 - 8 * shift))
    return p + 8


cdef inline unsigned char *_put_name(unsigned char *p, bytes name) noexcept:
    p[0] = <unsigned char> PyBytes_GET_SIZE(name)
    memcpy(p + 1, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    return p + 1 + PyBytes_GET_SIZE(name)


def encode_delivery(
    int channel,
    bytes consumer_tag not None,
    uint64_t delivery_tag,
    bint redelivered,
    bytes exchange not None,
    bytes routing_key not None,
    bytes properties not None,
    body,
    Py_ssize_t frame_bytes_max,
):
    """The frames of basic.deliver with its content; names have at most 255 bytes."""
    cdef Py_buffer view
    cdef Py_ssize_t method, head, room, frames, at, part
    cdef bytes out
    cdef unsigned char *p
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        method = (
            4 + 1 + PyBytes_GET_SIZE(consumer_tag) + 8 + 1
            + 1 + PyBytes_GET_SIZE(exchange) + 1 + PyBytes_GET_SIZE(routing_key)
        )
        head = 12 + PyBytes_GET_SIZE(properties)
        room = frame_bytes_max - 8 if frame_bytes_max else max(view.len, 1)
        frames = (view.len + room - 1) // room
        out = PyBytes_FromStringAndSize(NULL, 8 + method + 8 + head + 8 * frames + view.len)
        p = _put_frame(<unsigned char *> PyBytes_AS_STRING(out), METHOD, channel, method)
        p[0], p[1], p[2], p[3] = 0, 60, 0, 60
        p = _put_name(p + 4, consumer_tag)
        p = _put64(p, delivery_tag)
        p[0] = redelivered
        p = _put_name(p + 1, exchange)
        p = _put_name(p, routing_key)
        p[0] = END
        p = _put_frame(p + 1, HEADER, channel, head)
        p[0], p[1], p[2], p[3] = 0, BASIC, 0, 0
        p = _put64(p + 4, view.len)
        memcpy(p, PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
        p += PyBytes_GET_SIZE(properties)
        p[0] = END
        p += 1
        at = 0
        while at < view.len:
            part = min(room, view.len - at)
            p = _put_frame(p, BODY, channel, part)
            memcpy(p, <unsigned char *> view.buf + at, part)
            p[part] = END
            p += part + 1
            at += part
        return out
    finally:
        PyBuffer_Release(&view)
