"""The batches that a view shows, compiled.

Rules: a batch whose records all match is returned by its position. Of a mixed batch only the
matching records are written again, with the same offsets and without a producer; for one exact
topic such a batch ends with its last match, as the view does. Records in a stream of one topic do
not carry their topic: for a filter they are written again with it. The interpreter's lock is free
during the walk over records.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from onelog.kernel._native.build cimport seal_batch
from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.filters cimport TopicFilter
from onelog.kernel._native.format cimport (
    BAD_CRC,
    BAD_INFLATED,
    BATCH_BYTES_MAX,
    BATCH_TAIL,
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    HEADERS_PER_RECORD_MAX,
    INFLATED_BYTES_MAX,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Head,
    Span,
    bytes_at,
    read_head,
    read_span,
    time_of,
    topic_of,
)
from onelog.kernel._native.kafka_tag cimport copy_record, has_topic, tag_record, tagged_bytes
from onelog.kernel._native.record_walk cimport Walk, begin_walk, next_record

from onelog.base.errors import InvalidRequest, MessageTooLarge
from onelog.kernel.corruption import corrupt

cdef enum:
    LOOK = 0
    ALL_MATCH = 1
    NONE_MATCHES = 2

cdef enum:
    # Errors that are not those of the batch.
    NO_MEMORY = -1
    TOO_LARGE = -2

cdef enum:
    # Bytes of records that are written with their topic in one call, unless one alone has more.
    NAMED_BYTES_MAX = 16 * 1024 * 1024

cdef struct Aborted:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset

cdef struct Piece:
    # Bytes of the data, or of `made` if the batch was written again.
    int64_t base_offset
    Py_ssize_t start
    Py_ssize_t end
    bint is_made

cdef struct Run:
    # Matching records that lie side by side.
    Py_ssize_t start
    Py_ssize_t end

cdef struct Kept:
    # The matching records of one batch.
    Py_ssize_t runs
    Py_ssize_t size
    int32_t count
    int64_t last_offset
    int64_t latest

cdef struct Look:
    bytes_at data
    Py_ssize_t size
    bytes_at inflated
    Py_ssize_t inflated_bytes
    int64_t start_offset
    int known
    bytes_at topic  # what records are to be written with; NULL: they go out as they are
    Py_ssize_t topic_bytes
    Aborted *aborted
    Py_ssize_t aborted_count
    Py_ssize_t position
    int64_t reached
    int64_t cut_at  # the first offset that there was no more room for, or -1
    int record
    Piece *pieces
    Py_ssize_t piece_count
    Py_ssize_t piece_room
    Run *runs
    Py_ssize_t run_room
    unsigned char *made
    Py_ssize_t made_bytes
    Py_ssize_t made_room


cdef inline bint _grow(void **at, Py_ssize_t *room, Py_ssize_t needed, size_t each) noexcept nogil:
    cdef Py_ssize_t larger = room[0]
    cdef void *moved
    if needed <= larger:
        return True
    larger = max(2 * larger, needed, 64)
    moved = realloc(at[0], larger * each)
    if moved is NULL:
        return False
    at[0] = moved
    room[0] = larger
    return True


cdef inline bint _is_hidden(const Look *look, const Head *head) noexcept nogil:
    cdef Py_ssize_t number
    if head.attributes & CONTROL:
        return True
    if head.attributes & TRANSACTIONAL:
        for number in range(look.aborted_count):
            if (
                look.aborted[number].producer_id == head.producer_id
                and look.aborted[number].first_offset <= head.base_offset
                and head.base_offset <= look.aborted[number].last_offset
            ):
                return True
    return False


cdef inline bint _is_whole(const Look *look, const Head *head) noexcept nogil:
    """Whether a batch goes out as it is, without a look at its records."""
    return look.known == ALL_MATCH and look.topic is NULL and (
        look.start_offset <= head.base_offset or head.count == <int64_t> head.last_delta + 1
    )


cdef int _keep(
    Look *look, TopicFilter wanted, const Head *head, bytes_at data, bytes_at end, Kept *kept
) noexcept nogil:
    """Check every record and note which match."""
    cdef bytes_at topic
    cdef Span span
    cdef Walk walk
    cdef int32_t size = 0
    cdef int code = begin_walk(&walk, head, data, end)
    memset(kept, 0, sizeof(Kept))
    if code:
        return code
    while walk.index < head.count:
        code = next_record(&walk, head, &span)
        if code:
            look.record = walk.index
            return code
        if look.known == LOOK:
            topic = topic_of(data, &span, &size)
            if size < 0 or not wanted.match(topic, size):
                continue
        if kept.count == 0 or time_of(head, &span) > kept.latest:
            kept.latest = time_of(head, &span)
        kept.count += 1
        kept.last_offset = head.base_offset + span.offset_delta
        kept.size += span.end - span.start
        if kept.runs and look.runs[kept.runs - 1].end == span.start:
            look.runs[kept.runs - 1].end = span.end
            continue
        if not _grow(<void **> &look.runs, &look.run_room, kept.runs + 1, sizeof(Run)):
            return NO_MEMORY
        look.runs[kept.runs].start = span.start
        look.runs[kept.runs].end = span.end
        kept.runs += 1
    return 0 if walk.at == end else BATCH_TAIL


cdef int _add_piece(
    Look *look, int64_t base_offset, Py_ssize_t start, Py_ssize_t end, bint is_made
) noexcept nogil:
    cdef Piece *last
    if look.piece_count and not is_made:
        last = &look.pieces[look.piece_count - 1]
        if not last.is_made and last.end == start:
            last.end = end
            return 0
    if not _grow(<void **> &look.pieces, &look.piece_room, look.piece_count + 1, sizeof(Piece)):
        return NO_MEMORY
    last = &look.pieces[look.piece_count]
    last.base_offset = base_offset
    last.start = start
    last.end = end
    last.is_made = is_made
    look.piece_count += 1
    return 0


cdef int _make(
    Look *look, TopicFilter wanted, const Head *old, bytes_at data, const Kept *kept
) noexcept nogil:
    """Write a batch again with only its matching records."""
    cdef Head head = old[0]
    cdef Py_ssize_t size = HEADER_BYTES + kept.size, start = look.made_bytes, number
    cdef unsigned char *p
    if size > BATCH_BYTES_MAX:
        return TOO_LARGE
    if not _grow(<void **> &look.made, &look.made_room, start + size, 1):
        return NO_MEMORY
    p = look.made + start + HEADER_BYTES
    for number in range(kept.runs):
        memcpy(p, data + look.runs[number].start, look.runs[number].end - look.runs[number].start)
        p += look.runs[number].end - look.runs[number].start
    head.attributes &= ~<int16_t> (CODEC_MASK | TRANSACTIONAL)
    if not head.attributes & LOG_APPEND_TIME:
        head.max_timestamp = kept.latest
    head.producer_id = -1
    head.producer_epoch = -1
    head.base_sequence = -1
    head.count = kept.count
    if wanted.exact:
        head.last_delta = <int32_t> (kept.last_offset - head.base_offset)
    seal_batch(look.made + start, size, &head)
    look.made_bytes = start + size
    return _add_piece(look, head.base_offset, start, start + size, True)


# -- records with their topic

cdef inline bint _is_to_name(const Look *look, bytes_at data, const Span *span) noexcept nogil:
    """Whether a record lacks its topic and has room for it."""
    return (
        not has_topic(data, span, look.topic, look.topic_bytes)
        and span.header_count < HEADERS_PER_RECORD_MAX
        and HEADER_BYTES + tagged_bytes(data, span, look.topic_bytes) <= BATCH_BYTES_MAX
    )


cdef int _name(Look *look, const Head *head, bytes_at data, bytes_at end) noexcept nogil:
    """The view of a batch whose records all have the one topic and may lack it."""
    cdef Span span
    cdef Walk walk
    cdef bint is_huge = False
    cdef int to_name = 0, shown = 0
    cdef int code = begin_walk(&walk, head, data, end)
    if code:
        return code
    while walk.index < head.count:
        code = next_record(&walk, head, &span)
        if code:
            look.record = walk.index
            return code
        if head.base_offset + span.offset_delta >= look.start_offset:
            shown += 1
            to_name += _is_to_name(look, data, &span)
            is_huge = is_huge or HEADER_BYTES + span.end - span.start > BATCH_BYTES_MAX
    if walk.at != end:
        return BATCH_TAIL
    if shown == 0:
        return 0
    if to_name == 0 or is_huge:  # what is larger than a batch may be stays as it was compressed
        return _add_piece(
            look, head.base_offset, look.position, look.position + head.size, False
        )
    return _make_named(look, head, data, end)


cdef int _make_named(Look *look, const Head *old, bytes_at data, bytes_at end) noexcept nogil:
    """Write a batch again with the topic, as far as there is room; `reached` is the end."""
    cdef Head head = old[0]
    cdef bytes_at at = data
    cdef Span span
    cdef Py_ssize_t start = look.made_bytes, size = HEADER_BYTES, needed
    cdef bint is_to_name
    cdef int index
    head.count = 0
    for index in range(old.count):
        read_span(data, at, end, &span)
        at = data + span.end
        if head.base_offset + span.offset_delta < look.start_offset:
            continue
        is_to_name = _is_to_name(look, data, &span)
        needed = span.end - span.start
        if is_to_name:
            needed = tagged_bytes(data, &span, look.topic_bytes)
        if head.count and size + needed > NAMED_BYTES_MAX:
            look.cut_at = head.base_offset + span.offset_delta
            break
        if not _grow(<void **> &look.made, &look.made_room, start + size + needed, 1):
            return NO_MEMORY
        if is_to_name:
            tag_record(look.made + start + size, data, &span, look.topic, look.topic_bytes)
        else:
            copy_record(look.made + start + size, data, &span)
        size += needed
        if not old.attributes & LOG_APPEND_TIME and (
            head.count == 0 or time_of(old, &span) > head.max_timestamp
        ):
            head.max_timestamp = time_of(old, &span)
        head.count += 1
        head.last_delta = span.offset_delta
    if look.cut_at < 0:
        head.last_delta = old.last_delta
    head.attributes &= ~<int16_t> (CODEC_MASK | TRANSACTIONAL)
    head.producer_id = -1
    head.producer_epoch = -1
    head.base_sequence = -1
    seal_batch(look.made + start, size, &head)
    look.made_bytes = start + size
    return _add_piece(look, head.base_offset, start, start + size, True)


# -- the pieces of a view

cdef int _see(Look *look, TopicFilter wanted, const Head *head, bytes_at p) noexcept nogil:
    """The view of one batch whose header is checked."""
    cdef Kept kept
    cdef bytes_at data = p + HEADER_BYTES
    cdef bytes_at end = p + head.size
    cdef int code
    if _is_whole(look, head):
        return _add_piece(
            look, head.base_offset, look.position, look.position + head.size, False
        )
    if look.inflated is not NULL:
        data = look.inflated
        end = data + look.inflated_bytes
    if look.topic is not NULL:
        return _name(look, head, data, end)
    code = _keep(look, wanted, head, data, end, &kept)
    if code or kept.count == 0 or kept.last_offset < look.start_offset:
        return code
    # Compaction may have removed records of other topics from the end of a batch. A reader that
    # goes on behind the end of an exact topic would not know that it ended.
    if kept.count == head.count and (
        look.known != LOOK
        or not wanted.exact
        or kept.last_offset == head.base_offset + head.last_delta
    ):
        return _add_piece(
            look, head.base_offset, look.position, look.position + head.size, False
        )
    return _make(look, wanted, head, data, &kept)


cdef int _run(Look *look, TopicFilter wanted) noexcept nogil:
    cdef Head head
    cdef bytes_at p
    cdef int code
    while look.position < look.size:
        p = look.data + look.position
        code = read_head(p, look.size - look.position, &head)
        if code == 0 and crc_of(p + CRC_FROM, head.size - CRC_FROM, 0) != head.crc:
            code = BAD_CRC
        if code:
            return code
        if (
            head.base_offset + head.last_delta >= look.start_offset
            and head.count
            and look.known != NONE_MATCHES
            and not _is_hidden(look, &head)
        ):
            if (
                head.attributes & CODEC_MASK
                and look.inflated is NULL
                and not _is_whole(look, &head)
            ):
                return 0
            code = _see(look, wanted, &head, p)
            if code:
                return code
            if look.cut_at >= 0:
                look.position = look.size
                look.reached = look.cut_at
                return 0
        look.position += head.size
        look.reached = max(look.reached, head.base_offset + head.last_delta + 1)
        if look.inflated is not NULL:
            return 0
    return 0


cdef list _pieces(const Look *look):
    cdef list found = []
    cdef Py_ssize_t number
    cdef Piece *piece
    for number in range(look.piece_count):
        piece = &look.pieces[number]
        if piece.is_made:
            found.append(
                (
                    piece.base_offset, 0, 0,
                    PyBytes_FromStringAndSize(
                        <char *> look.made + piece.start, piece.end - piece.start
                    ),
                )
            )
        else:
            found.append((piece.base_offset, piece.start, piece.end, None))
    return found


cdef int _take_aborted(Look *look, aborted) except -1:
    cdef Py_ssize_t number = 0
    cdef list rows = list(aborted)
    if not rows:
        return 0
    look.aborted = <Aborted *> malloc(len(rows) * sizeof(Aborted))
    if look.aborted is NULL:
        raise MemoryError
    for producer_id, first_offset, last_offset in rows:
        look.aborted[number].producer_id = producer_id
        look.aborted[number].first_offset = first_offset
        look.aborted[number].last_offset = last_offset
        number += 1
    look.aborted_count = number
    return 0


cdef int _raise(const Look *look, int code) except -1:
    if code == NO_MEMORY:
        raise MemoryError
    if code == TOO_LARGE:
        raise MessageTooLarge(f"the kept records need more than {BATCH_BYTES_MAX} bytes")
    raise corrupt(code, look.position, look.record)


def view_batches(
    data,
    Py_ssize_t position,
    TopicFilter topic_filter not None,
    int64_t start_offset,
    aborted=(),
    bytes default_topic=None,
    records=None,
):
    """The batches that a view shows, from `position` on: (pieces, reached, position).

    A piece is (base offset, start, end, None) for stored batches that match as they are, or (base
    offset, 0, 0, batch) for one that was written again. Control batches and those of `aborted`
    (producer id, first offset, last offset) are hidden, and so are batches without a match at or
    after `start_offset`. Everything below `reached` was looked at. It stops before a compressed
    batch: then the caller gives its inflated `records`, and only that batch is looked at.

    `default_topic` is the topic of records that do not carry one. For a filter with wildcards such
    a batch is written again with the topic in each record, some MiB per call: then `position` is
    the end of the data, and the records from `reached` on are to be read again. A record without
    room for one more header stays as it is.
    """
    cdef Look look
    cdef Py_buffer view, inflated
    cdef int code
    memset(&look, 0, sizeof(Look))
    look.start_offset = look.reached = start_offset
    look.position = position
    look.record = -1
    look.cut_at = -1
    if default_topic is not None:
        look.known = ALL_MATCH if topic_filter.matches(default_topic) else NONE_MATCHES
        if look.known == ALL_MATCH and not topic_filter.exact:
            look.topic = <bytes_at> PyBytes_AS_STRING(default_topic)
            look.topic_bytes = PyBytes_GET_SIZE(default_topic)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= position <= view.len:
            raise InvalidRequest(
                f"bytes {position} to {view.len} are outside the buffer of {view.len} bytes"
            )
        _take_aborted(&look, aborted)
        look.data = <bytes_at> view.buf
        look.size = view.len
        if records is None:
            with nogil:
                code = _run(&look, topic_filter)
        else:
            PyObject_GetBuffer(records, &inflated, PyBUF_SIMPLE)
            try:
                if inflated.len > INFLATED_BYTES_MAX:
                    raise corrupt(BAD_INFLATED, position)
                look.inflated = <bytes_at> inflated.buf
                look.inflated_bytes = inflated.len
                with nogil:
                    code = _run(&look, topic_filter)
            finally:
                PyBuffer_Release(&inflated)
        if code:
            _raise(&look, code)
        return _pieces(&look), look.reached, look.position
    finally:
        free(look.aborted)
        free(look.pieces)
        free(look.runs)
        free(look.made)
        PyBuffer_Release(&view)
