"""AMQP's way out, compiled: records of a batch to runs for queues, and to basic.deliver frames.

The rules are those of the interpreted twin.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from onelog.kernel._native.format cimport (
    BAD_HEADERS,
    BAD_KEY,
    BAD_RECORD_LENGTH,
    BAD_VALUE,
    BAD_VARINT,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    Head,
    Span,
    bytes_at,
    ol_put16,
    ol_put32,
    ol_put64,
    read_field,
    read_head,
    read_span,
    read_varint,
    topic_of,
)

from onelog.kernel._native.amqp_wire import encode_headers
from onelog.kernel.corruption import corrupt

cdef enum:
    RUN_MAX = 512
    TOPICS_SEEN = 8
    SPECIAL = CODEC_MASK | CONTROL | TRANSACTIONAL
    METHOD = 1
    HEADER = 2
    BODY = 3
    END = 0xCE
    BASIC = 60
    EXPIRES = 1
    MORE_KEYS = 2


cdef int _marks(bytes_at data, const Span *span) noexcept nogil:
    """The marks of a checked record: facts in its headers that a queue has to look at."""
    cdef bytes_at at = data + span.headers
    cdef bytes_at end = data + span.end
    cdef int32_t size = 0
    cdef int32_t number
    cdef int found = 0
    for number in range(span.header_count):
        read_field(&at, end, 0, BAD_HEADERS, &size)
        if size == 3 and at[0] == c"~":
            if at[1] == c"e" and at[2] == c"x":
                found |= EXPIRES
            elif (at[1] == c"b" and at[2] == c"c") or (at[1] == c"n" and at[2] == c"q"):
                found |= MORE_KEYS
        at += size
        read_field(&at, end, -1, BAD_HEADERS, &size)
        if size > 0:
            at += size
    return found


cdef inline int _read_light(bytes_at data, bytes_at at, bytes_at limit, Span *span) noexcept nogil:
    """As `read_span`, up to the headers, which are not read."""
    cdef int64_t number
    cdef bytes_at end
    cdef int code
    if read_varint(&at, limit, &number):
        return BAD_VARINT
    if number < RECORD_BYTES_MIN - 1 or number > limit - at:
        return BAD_RECORD_LENGTH
    end = at + number
    span.end = <uint32_t> (end - data)
    at += 1
    if read_varint(&at, end, &span.timestamp_delta) or read_varint(&at, end, &number):
        return BAD_VARINT
    span.offset_delta = <int32_t> number if 0 <= number <= 0x7FFFFFFF else -1
    code = read_field(&at, end, -1, BAD_KEY, &span.key_bytes)
    if code:
        return code
    span.key = <uint32_t> (at - data)
    if span.key_bytes > 0:
        at += span.key_bytes
    code = read_field(&at, end, -1, BAD_VALUE, &span.value_bytes)
    if code:
        return code
    if span.value_bytes > 0:
        at += span.value_bytes
    span.headers = <uint32_t> (at - data)
    return 0


cdef struct Headers:
    # The headers of the record before: most records of a topic have the same, and are not read
    # again.
    bytes_at at
    Py_ssize_t size
    int marks
    bytes_at topic
    int32_t topic_size


cdef int _look(
    bytes_at data, bytes_at record, bytes_at limit, const Span *light, Headers *last
) noexcept nogil:
    """Read the headers into `last`, where they stay for the next record."""
    cdef Span span
    cdef bytes_at at = data + light.headers
    cdef Py_ssize_t size = light.end - light.headers
    cdef int code
    if size == last.size and memcmp(at, last.at, size) == 0:
        return 0
    code = read_span(data, record, limit, &span)
    if code:
        return code
    last.at, last.size = at, size
    last.marks = _marks(data, &span) if span.header_count else 0
    last.topic = topic_of(data, &span, &last.topic_size)
    if last.topic == data + span.key:
        last.topic = NULL  # no topic header: the key is the topic
    return 0


def topic_runs(data, fixed, dict known not None, resolve):
    """Runs of records for the same targets: (target, topic, first offset, count, marks), and the
    offset of the first batch that is not plain, or the end.

    `known` maps topics to targets; `resolve` finds and remembers a missing one. A target of False
    is no queue. Records with a target of None, and records with marks, come one by one.
    """
    cdef int64_t end = -1
    rows = find_runs(data, fixed, known, resolve, &end)
    return rows, end


cdef list find_runs(object data, object fixed, dict known, object resolve, int64_t *end_found):
    """As `topic_runs`."""
    cdef Py_buffer view
    cdef bytes_at at, stop, record, limit, body
    cdef Head head
    cdef Span span
    cdef Headers headers
    cdef list rows = [], topics = [], targets = []
    cdef object target = False, new = False, topic = None, topic_of_run = None
    cdef int64_t first = 0, count = 0, offset
    cdef int marks, code, slot, current = -1, next_slot = 0
    cdef int32_t number, size = 0
    cdef bytes_at seen[TOPICS_SEEN]
    cdef int32_t sizes[TOPICS_SEEN]
    cdef bytes_at found
    cdef PyObject *hit
    cdef int64_t end = -1
    headers.at, headers.size, headers.marks, headers.topic = NULL, -1, 0, NULL
    if fixed is not None:
        topic = fixed
        hit = PyDict_GetItem(known, topic)
        new = <object> hit if hit is not NULL else resolve(topic)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <bytes_at> view.buf
        stop = at + view.len
        while at < stop:
            code = read_head(at, stop - at, &head)
            if code:
                raise corrupt(code, at - <bytes_at> view.buf)
            if head.attributes & SPECIAL:
                end = head.base_offset
                break
            body = record = at + HEADER_BYTES
            limit = at + head.size
            for number in range(head.count):
                code = _read_light(body, record, limit, &span)
                if not code:
                    code = _look(body, record, limit, &span, &headers)
                if code:
                    raise corrupt(code, at - <bytes_at> view.buf, number)
                record = body + span.end
                offset = head.base_offset + span.offset_delta
                marks = headers.marks
                if fixed is None:
                    found, size = body + span.key, span.key_bytes
                    if headers.topic is not NULL:
                        found, size = headers.topic, headers.topic_size
                    if size < 0:
                        continue
                    if current < 0 or size != sizes[current] or memcmp(found, seen[current], size):
                        for slot in range(<int> len(topics)):
                            if size == sizes[slot] and memcmp(found, seen[slot], size) == 0:
                                current, topic, new = slot, topics[slot], targets[slot]
                                break
                        else:
                            topic = PyBytes_FromStringAndSize(<const char *> found, size)
                            hit = PyDict_GetItem(known, topic)
                            new = <object> hit if hit is not NULL else resolve(topic)
                            current, next_slot = next_slot, (next_slot + 1) % TOPICS_SEEN
                            seen[current], sizes[current] = found, size
                            if current < len(topics):
                                topics[current], targets[current] = topic, new
                            else:
                                topics.append(topic)
                                targets.append(new)
                if new is False and not marks & MORE_KEYS:
                    continue
                if (
                    count and new is target and not marks and new is not None
                    and offset == first + count
                ):
                    count += 1
                    continue
                if count:
                    rows.append((target, topic_of_run, first, count, 0))
                    count = 0
                if marks or new is None:
                    rows.append((new, topic, offset, 1, marks))
                    continue
                target, topic_of_run, first, count = new, topic, offset, 1
            end = head.base_offset + head.last_delta + 1
            at = limit
        if count:
            rows.append((target, topic_of_run, first, count, 0))
        end_found[0] = end
        return rows
    finally:
        PyBuffer_Release(&view)


cdef struct Sent:
    bytes_at body
    Py_ssize_t size
    bytes_at names
    Py_ssize_t names_size
    bytes_at properties
    Py_ssize_t properties_size


cdef inline unsigned char *_put_frame(
    unsigned char *p, int kind, int channel, Py_ssize_t size
) noexcept nogil:
    p[0] = <unsigned char> kind
    ol_put16(p + 1, channel)
    ol_put32(p + 3, <uint32_t> size)
    return p + 7


cdef enum:
    # About how much an envelope takes beside its bytes: objects, and its slot in the dict.
    ENVELOPE_OVERHEAD = 256


cdef class AmqpEnvelopes:
    """Names and properties of deliveries by the record's topic and headers, for
    `encode_deliveries`.

    The number of entries is bounded in bytes, including `ENVELOPE_OVERHEAD` for each.
    """

    def __init__(self, Py_ssize_t bytes_max):
        self.known = {}
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def __len__(self):
        return len(self.known)

    def add(self, bytes topic not None, headers, bytes names not None, bytes properties not None):
        """Records of a topic with these headers are delivered with these names and properties."""
        cdef bytes key = len(topic).to_bytes(4, "little") + topic + encode_headers(headers)
        cdef Py_ssize_t size = len(key) + len(names) + len(properties) + ENVELOPE_OVERHEAD
        if key in self.known or self.held_bytes + size > self.bytes_max:
            # The old size of an entry that is added again is not known: begin anew.
            self.known.clear()
            self.held_bytes = 0
        if size <= self.bytes_max:
            self.known[key] = (names, properties)
            self.held_bytes += size


cdef object _key(bytes_at data, const Span *span, Py_ssize_t headers):
    cdef object key = PyBytes_FromStringAndSize(NULL, 4 + span.key_bytes + headers)
    cdef unsigned char *p = <unsigned char *> PyBytes_AS_STRING(key)
    p[0] = <unsigned char> span.key_bytes
    p[1] = <unsigned char> (span.key_bytes >> 8)
    p[2] = <unsigned char> (span.key_bytes >> 16)
    p[3] = <unsigned char> (span.key_bytes >> 24)
    memcpy(p + 4, data + span.key, span.key_bytes)
    memcpy(p + 4 + span.key_bytes, data + span.headers, headers)
    return key


cdef bytes_at _seek(
    bytes_at *at, bytes_at stop, int64_t wanted, Head *head, Span *span
) noexcept nogil:
    """The record at an offset, read, with `at` at its plain batch; NULL: it is missing."""
    cdef bytes_at record, body, limit
    cdef int64_t size
    cdef int32_t number
    while at[0] < stop:
        if read_head(at[0], stop - at[0], head):
            return NULL
        if wanted <= head.base_offset + head.last_delta:
            break
        at[0] += head.size
    else:
        return NULL
    if wanted < head.base_offset or head.attributes & SPECIAL:
        return NULL
    body = record = at[0] + HEADER_BYTES
    limit = at[0] + head.size
    for number in range(head.count):
        if head.base_offset + number < wanted and head.count == head.last_delta + 1:
            # Dense: the records before it are only skipped.
            if read_varint(&record, limit, &size) or size < 0 or size > limit - record:
                return NULL
            record += size
            continue
        if read_span(body, record, limit, span):
            return NULL
        if head.base_offset + span.offset_delta == wanted:
            return record
        record = body + span.end
    return NULL


def encode_deliveries(
    data,
    int64_t first,
    int64_t count,
    int channel,
    bytes consumer_tag not None,
    uint64_t delivery_tag,
    Py_ssize_t frame_bytes_max,
    AmqpEnvelopes envelopes not None,
    Py_ssize_t bytes_max,
):
    """The frames of basic.deliver for records that follow each other, and how many records those
    are.

    It ends before a record that is missing, is not plain or has no known envelope, and after the
    record with which the frames reach the limit of bytes.
    """
    cdef Py_ssize_t sent = 0
    frames = encode_run(
        data, first, count, channel, consumer_tag, delivery_tag, frame_bytes_max, envelopes,
        bytes_max, &sent,
    )
    return frames, sent


cdef bytes encode_run(
    object data,
    int64_t first,
    int64_t count,
    int channel,
    bytes consumer_tag,
    uint64_t delivery_tag,
    Py_ssize_t frame_bytes_max,
    AmqpEnvelopes envelopes,
    Py_ssize_t bytes_max,
    Py_ssize_t *sent_count,
):
    cdef Py_buffer view
    cdef bytes_at at, stop, record, body, limit
    cdef Head head
    cdef Span span
    cdef Sent sent[RUN_MAX]
    cdef Py_ssize_t total = 0, done = 0, headers, last_headers = -1, room, size, number
    cdef Py_ssize_t part, place, tag_size = PyBytes_GET_SIZE(consumer_tag)
    cdef bytes_at last_key = NULL
    cdef bytes_at last_raw = NULL
    cdef int32_t last_key_size = -1
    cdef list kept = []
    cdef tuple envelope = None
    cdef bytes names, properties
    cdef PyObject *hit
    cdef bytes out
    cdef unsigned char *p
    count = min(count, <int64_t> RUN_MAX)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <bytes_at> view.buf
        stop = at + view.len
        record = _seek(&at, stop, first, &head, &span)
        if record is NULL:
            return b""
        while done < count:
            body = at + HEADER_BYTES
            headers = span.end - span.headers
            if span.key_bytes < 0:
                break
            if (
                last_key is NULL or span.key_bytes != last_key_size or headers != last_headers
                or memcmp(body + span.key, last_key, last_key_size) != 0
                or memcmp(body + span.headers, last_raw, headers) != 0
            ):
                hit = PyDict_GetItem(envelopes.known, _key(body, &span, headers))
                if hit is NULL:
                    break
                envelope = <tuple> <object> hit
                kept.append(envelope)
                names, properties = <bytes> envelope[0], <bytes> envelope[1]
                last_key, last_key_size = body + span.key, span.key_bytes
                last_raw, last_headers = body + span.headers, headers
            size = max(span.value_bytes, 0)
            sent[done].body = body + span.value
            sent[done].size = size
            sent[done].names = <bytes_at> PyBytes_AS_STRING(names)
            sent[done].names_size = PyBytes_GET_SIZE(names)
            sent[done].properties = <bytes_at> PyBytes_AS_STRING(properties)
            sent[done].properties_size = PyBytes_GET_SIZE(properties)
            room = frame_bytes_max - 8 if frame_bytes_max else max(size, 1)
            total += (
                8 + 4 + 1 + tag_size + 8 + 1 + sent[done].names_size
                + 8 + 12 + sent[done].properties_size
                + 8 * ((size + room - 1) // room) + size
            )
            done += 1
            if total >= bytes_max or done == count:
                break
            # On to the next record, in this batch or the next one.
            record = body + span.end
            limit = at + head.size
            if record == limit:
                at = limit
                if at >= stop or read_head(at, stop - at, &head) or head.attributes & SPECIAL:
                    break
                record = at + HEADER_BYTES
                limit = at + head.size
                if head.count == 0:
                    break
            if read_span(at + HEADER_BYTES, record, limit, &span):
                break
            if head.base_offset + span.offset_delta != first + done:
                break
        out = PyBytes_FromStringAndSize(NULL, total)
        p = <unsigned char *> PyBytes_AS_STRING(out)
        for number in range(done):
            p = _put_frame(
                p, METHOD, channel, 4 + 1 + tag_size + 8 + 1 + sent[number].names_size
            )
            p[0], p[1], p[2], p[3] = 0, BASIC, 0, 60
            p[4] = <unsigned char> tag_size
            memcpy(p + 5, PyBytes_AS_STRING(consumer_tag), tag_size)
            p += 5 + tag_size
            ol_put64(p, delivery_tag + number)
            p[8] = 0
            memcpy(p + 9, sent[number].names, sent[number].names_size)
            p += 9 + sent[number].names_size
            p[0] = END
            p = _put_frame(p + 1, HEADER, channel, 12 + sent[number].properties_size)
            p[0], p[1], p[2], p[3] = 0, BASIC, 0, 0
            ol_put64(p + 4, sent[number].size)
            memcpy(p + 12, sent[number].properties, sent[number].properties_size)
            p += 12 + sent[number].properties_size
            p[0] = END
            p += 1
            room = frame_bytes_max - 8 if frame_bytes_max else max(sent[number].size, 1)
            place = 0
            while place < sent[number].size:
                part = min(room, sent[number].size - place)
                p = _put_frame(p, BODY, channel, part)
                memcpy(p, sent[number].body + place, part)
                p[part] = END
                p += part + 1
                place += part
        sent_count[0] = done
        return out
    finally:
        PyBuffer_Release(&view)
