"""A batch written again with fewer records, compiled: for compaction.

Rules: offsets and times never change; the old batch is only read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from onelog.kernel._native.build cimport seal_batch
from onelog.kernel._native.format cimport (
    BAD_TIMESTAMP,
    BATCH_BYTES_MAX,
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Head,
    Span,
    bytes_at,
    time_of,
    varint_bytes,
    write_varint,
)
from onelog.kernel._native.source cimport Source, close_source, fail, open_source, walk

from onelog.base.errors import InvalidRequest, MessageTooLarge


cdef inline bytes_at _after_varint(bytes_at p) noexcept nogil:
    """Step over a varint that was checked before."""
    while p[0] & 0x80:
        p += 1
    return p + 1


cdef inline bint _delta(int64_t time, int64_t base, int64_t *out) noexcept nogil:
    """time - base. Returns False if that overflows; `base` is not negative here."""
    cdef int64_t low = 0x7FFFFFFFFFFFFFFF
    low = -low - 1
    if time < low + base:
        return False
    out[0] = time - base
    return True


def keep_records(
    buf, Py_ssize_t pos, keep, records=None, int64_t delete_horizon_ms=-1
):
    """The batch at `pos` with only the kept records, uncompressed; no offset moves.

    A `delete_horizon_ms` becomes the base timestamp and sets the attribute that says so, as Kafka
    does. The max timestamp is that of the kept records (of the old batch if none is kept or the
    broker stamped them).
    """
    cdef Source source
    cdef Span *spans = NULL
    cdef bytes mask
    open_source(&source, buf, pos, records, False)
    try:
        spans = walk(&source)
        if len(keep) != source.head.count:
            raise InvalidRequest(
                f"the mask has {len(keep)} entries for {source.head.count} records"
            )
        mask = bytes([1 if wanted else 0 for wanted in keep])
        if len(mask) != source.head.count:
            raise InvalidRequest("the mask changed while it was read")
        return _keep(&source, spans, mask, delete_horizon_ms)
    finally:
        free(spans)
        close_source(&source)


cdef bytes _keep(Source *source, const Span *spans, bytes mask, int64_t horizon):
    cdef Head head = source.head
    cdef const char *keep = PyBytes_AS_STRING(mask)
    cdef Py_ssize_t size = HEADER_BYTES
    cdef int64_t latest = 0, delta = 0
    cdef int32_t kept = 0
    cdef int index
    cdef bytes out
    cdef unsigned char *start
    cdef unsigned char *p
    for index in range(source.head.count):
        if not keep[index]:
            continue
        if kept == 0 or time_of(&source.head, &spans[index]) > latest:
            latest = time_of(&source.head, &spans[index])
        kept += 1
        size += spans[index].end - spans[index].start + (12 if horizon >= 0 else 0)
        if horizon >= 0 and not _delta(
            source.head.base_timestamp + spans[index].timestamp_delta, horizon, &delta
        ):
            fail(source, BAD_TIMESTAMP, index)
    start = <unsigned char *> malloc(size)
    if start is NULL:
        raise MemoryError
    p = start + HEADER_BYTES
    for index in range(source.head.count):
        if keep[index]:
            p = _copy(p, source, &spans[index], horizon)
    size = p - start
    head.attributes &= ~<int16_t> CODEC_MASK
    if kept and not head.attributes & LOG_APPEND_TIME:
        head.max_timestamp = latest
    if horizon >= 0:
        head.attributes |= DELETE_HORIZON
        head.base_timestamp = horizon
    head.count = kept
    try:
        if size > BATCH_BYTES_MAX:
            raise MessageTooLarge(f"the kept records need more than {BATCH_BYTES_MAX} bytes")
        seal_batch(start, size, &head)
        return PyBytes_FromStringAndSize(<char *> start, size)
    finally:
        free(start)


cdef unsigned char *_copy(
    unsigned char *p, const Source *source, const Span *span, int64_t horizon
) noexcept nogil:
    """One record as it is, or with its timestamp counted from `horizon`."""
    cdef bytes_at at = source.data + span.start
    cdef bytes_at end = source.data + span.end
    cdef bytes_at rest
    cdef int64_t delta = 0
    if horizon < 0:
        memcpy(p, at, end - at)
        return p + (end - at)
    at = _after_varint(at)
    rest = _after_varint(at + 1)
    _delta(source.head.base_timestamp + span.timestamp_delta, horizon, &delta)
    p = write_varint(p, 1 + varint_bytes(delta) + (end - rest))
    p[0] = at[0]
    p = write_varint(p + 1, delta)
    memcpy(p, rest, end - rest)
    return p + (end - rest)
