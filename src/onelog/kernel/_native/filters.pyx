"""Topic filters, compiled: the rules of `+`, `#` and `$`, and records chosen by them.

Rules (MQTT5 4.7): `+` is one level, `#` is the last level and stands for the parent and all below;
neither matches a first level that begins with `$`. An empty topic matches nothing.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport int32_t, int64_t, uint16_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

from onelog.kernel._native.format cimport (
    BAD_COUNT,
    BAD_RECORD_LENGTH,
    BAD_VARINT,
    BATCH_TAIL,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX,
    TOPIC_LEVELS_MAX,
    Head,
    Span,
    bytes_at,
    check_deltas,
    read_head,
    read_span,
    read_varint,
    time_of,
    topic_of,
)
from onelog.kernel._native.source cimport headers_of

from onelog.base.errors import InvalidName
from onelog.kernel.corruption import corrupt

cdef enum:
    NOT_SIZED = -1
    TOO_DEEP = -2
    NOT_ALONE = -3
    NOT_LAST = -4


cdef int split_levels(const unsigned char *text, Py_ssize_t size, Level *levels) noexcept nogil:
    """Split a filter into an array of 64 levels. Returns how many, or the fault."""
    cdef Py_ssize_t start = 0, at
    cdef int depth = 0, fault = 0
    cdef bint wild = False
    if size < 1 or size > TOPIC_BYTES_MAX:
        return NOT_SIZED
    for at in range(size + 1):
        if at < size and text[at] != c"/":
            if text[at] == c"+" or text[at] == c"#":
                wild = True
            continue
        if depth == TOPIC_LEVELS_MAX:
            return TOO_DEEP
        levels[depth].at = <uint16_t> start
        levels[depth].size = <uint16_t> (at - start)
        levels[depth].kind = LEVEL_TEXT
        if wild:
            if at - start > 1:
                fault = fault or NOT_ALONE
            elif text[start] == c"+":
                levels[depth].kind = LEVEL_PLUS
            else:
                levels[depth].kind = LEVEL_REST
                if at != size:
                    fault = fault or NOT_LAST
        depth += 1
        start = at + 1
        wild = False
    return fault or depth


cdef int refuse_filter(bytes text, int code) except -1:
    if code == NOT_SIZED:
        raise InvalidName(f"a filter has 1 to {TOPIC_BYTES_MAX} bytes, not {len(text)}")
    if code == TOO_DEEP:
        raise InvalidName(
            f"a filter has at most {TOPIC_LEVELS_MAX} levels, not {text.count(b'/') + 1}"
        )
    if code == NOT_ALONE:
        raise InvalidName(f"filter {text!r}: a wildcard stands alone in its level")
    raise InvalidName(f"filter {text!r}: '#' is the last level")


cdef class TopicFilter:
    """A compiled filter, for many topics."""

    def __init__(self, bytes filter not None):
        cdef int at, depth
        cdef Level levels[TOPIC_LEVELS_MAX]
        cdef void *kept
        depth = split_levels(
            <bytes_at> PyBytes_AS_STRING(filter), PyBytes_GET_SIZE(filter), levels
        )
        if depth < 0:
            refuse_filter(filter, depth)
        kept = realloc(self.levels, depth * sizeof(Level))
        if kept is NULL:
            raise MemoryError
        self.levels = <Level *> kept
        memcpy(self.levels, levels, depth * sizeof(Level))
        self.depth = depth
        self.filter = filter
        self.text = <bytes_at> PyBytes_AS_STRING(filter)
        self.text_bytes = PyBytes_GET_SIZE(filter)
        self.exact = True
        for at in range(self.depth):
            if self.levels[at].kind != LEVEL_TEXT:
                self.exact = False

    def __cinit__(self, *_, **__):
        # A filter whose __init__ failed or never ran matches nothing, but is safe to use.
        self.filter = b""
        self.text = <bytes_at> b""
        self.text_bytes = 0
        self.exact = True
        self.depth = 0

    def __dealloc__(self):
        free(self.levels)

    cdef bint match(self, const unsigned char *topic, Py_ssize_t size) noexcept nogil:
        cdef bytes_at end = topic + size
        cdef bytes_at stop
        cdef Level *level
        cdef int at
        if self.exact:
            return size == self.text_bytes and memcmp(topic, self.text, size) == 0
        if size == 0 or (topic[0] == c"$" and self.levels[0].kind != LEVEL_TEXT):
            return False
        for at in range(self.depth):
            level = &self.levels[at]
            if level.kind == LEVEL_REST:
                return True
            if topic is NULL:
                return False
            stop = <bytes_at> memchr(topic, c"/", end - topic)
            if stop is NULL:
                stop = end
            if level.kind == LEVEL_TEXT and (
                stop - topic != level.size or memcmp(topic, self.text + level.at, level.size) != 0
            ):
                return False
            topic = stop + 1 if stop < end else NULL
        return topic is NULL

    def matches(self, bytes topic not None):
        """Whether this filter matches `topic`."""
        return self.match(<bytes_at> PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))


cdef inline object _part(bytes_at data, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *> data, size)


cdef struct Search:
    int64_t start_offset
    int64_t upto
    Py_ssize_t limit
    Py_ssize_t position


cdef int64_t _search(
    Search *search, const Head *head, bytes_at data, TopicFilter wanted, bytes default_topic,
    list found,
) except? -1:
    """The matching records of one plain batch. Returns the offset to go on from at the limit."""
    cdef bytes_at end = data + head.size - HEADER_BYTES
    cdef bytes_at at = data
    cdef bytes_at topic
    cdef Span span
    cdef int32_t last = -1, size
    cdef int64_t offset
    cdef int index, code
    if <Py_ssize_t> head.count * RECORD_BYTES_MIN > end - data:
        raise corrupt(BAD_COUNT, search.position)
    for index in range(head.count):
        code = read_span(data, at, end, &span)
        if code == 0:
            code = check_deltas(head, &span, last)
        if code:
            raise corrupt(code, search.position, index)
        last = span.offset_delta
        at = data + span.end
        offset = head.base_offset + span.offset_delta
        if offset < search.start_offset or offset >= search.upto:
            continue
        if default_topic is None:
            topic = topic_of(data, &span, &size)
            if wanted is not None and (size < 0 or not wanted.match(topic, size)):
                continue
        else:
            topic = NULL
            size = 0
        found.append(
            (
                _part(topic, size) if default_topic is None else default_topic,
                offset,
                time_of(head, &span),
                _part(data + span.key, span.key_bytes),
                _part(data + span.value, span.value_bytes),
                headers_of(data, &span) if span.header_count else (),
            )
        )
        if len(found) == search.limit:
            return offset + 1
    if at != end:
        raise corrupt(BATCH_TAIL, search.position)
    return -2


def select_records(
    data,
    TopicFilter topic_filter,
    int64_t start_offset,
    int64_t upto,
    Py_ssize_t limit,
    bytes default_topic=None,
):
    """Records in [start_offset, upto) whose topic matches, at most `limit`, and the offset to go on
    from.

    A filter of None takes every record. `default_topic` is the topic of every record. It stops
    before a compressed or control batch, which the caller handles.
    """
    cdef Py_buffer view
    cdef Head head
    cdef Search search
    cdef int code
    cdef int64_t going_on = start_offset, after
    cdef list found = []
    cdef bint hopeless = (
        default_topic is not None
        and topic_filter is not None
        and not topic_filter.matches(default_topic)
    )
    cdef bytes_at p
    if limit <= 0:
        return found, going_on
    search.start_offset = start_offset
    search.upto = upto
    search.limit = limit
    search.position = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while search.position < view.len:
            p = <bytes_at> view.buf + search.position
            code = read_head(p, view.len - search.position, &head)
            if code:
                raise corrupt(code, search.position)
            if head.base_offset >= upto:
                return found, max(going_on, upto)
            if head.base_offset + head.last_delta >= start_offset:
                if head.attributes & (CODEC_MASK | CONTROL):
                    return found, max(going_on, head.base_offset)
                if not hopeless:
                    after = _search(
                        &search, &head, p + HEADER_BYTES, topic_filter, default_topic, found
                    )
                    if after >= 0:
                        return found, after
                going_on = max(going_on, min(head.base_offset + head.last_delta + 1, upto))
            search.position += head.size
        return found, going_on
    finally:
        PyBuffer_Release(&view)


cdef int _skip(bytes_at *at, bytes_at end, int64_t count) noexcept nogil:
    """Skip records by their lengths alone."""
    cdef int64_t size
    while count:
        if read_varint(at, end, &size):
            return BAD_VARINT
        if size < RECORD_BYTES_MIN - 1 or size > end - at[0]:
            return BAD_RECORD_LENGTH
        at[0] += size
        count -= 1
    return 0


def pick_records(data, list offsets not None, bytes default_topic=None):
    """The records at ascending offsets of the one plain batch in `data`; missing ones are left out.

    The CRC of the batch was checked: records in front are skipped by their lengths, records behind
    the last offset are not looked at.
    """
    cdef Py_buffer view
    cdef Head head
    cdef Span span
    cdef bytes_at start, at, end, topic
    cdef int64_t wanted, delta
    cdef int32_t size = 0
    cdef int index = 0, code
    cdef bint dense
    cdef list found = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        code = read_head(<bytes_at> view.buf, view.len, &head)
        if code:
            raise corrupt(code, 0)
        start = at = <bytes_at> view.buf + HEADER_BYTES
        end = <bytes_at> view.buf + head.size
        dense = <int64_t> head.count == <int64_t> head.last_delta + 1
        for wanted in offsets:
            delta = wanted - head.base_offset
            if dense and index < delta < head.count:
                code = _skip(&at, end, delta - index)
                if code:
                    raise corrupt(code, 0, index)
                index = <int> delta
            while index < head.count:
                code = read_span(start, at, end, &span)
                if code:
                    raise corrupt(code, 0, index)
                if span.offset_delta > delta:
                    break
                at = start + span.end
                index += 1
                if span.offset_delta < delta:
                    continue
                topic = topic_of(start, &span, &size)
                found.append(
                    (
                        _part(topic, size) if default_topic is None else default_topic,
                        wanted,
                        time_of(&head, &span),
                        _part(start + span.key, span.key_bytes),
                        _part(start + span.value, span.value_bytes),
                        headers_of(start, &span) if span.header_count else (),
                    )
                )
                break
        return found
    finally:
        PyBuffer_Release(&view)
