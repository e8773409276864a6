"""Records that are written through a view get their topic, compiled."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int64_t
from libc.stdlib cimport free

from onelog.kernel._native.build cimport seal_batch
from onelog.kernel._native.format cimport (
    BAD_HEADERS,
    BATCH_BYTES_MAX,
    CODEC_MASK,
    HEADER_BYTES,
    HEADERS_PER_RECORD_MAX,
    Head,
    Span,
    bytes_at,
)
from onelog.kernel._native.source cimport Source, close_source, fail, open_source, walk

from onelog.base.errors import MessageTooLarge


def tag_batch(data, bytes topic not None, int64_t producer_id, records=None):
    """The batch at the start of `data`, uncompressed, with this topic in every record.

    A record whose key is the topic carries it already. `producer_id` replaces the batch's;
    `records` holds its inflated records, if it is compressed.
    """
    cdef Source source
    cdef Span *spans = NULL
    cdef Head head
    cdef bytes_at tag = <bytes_at> PyBytes_AS_STRING(topic)
    cdef Py_ssize_t size = HEADER_BYTES, tag_bytes = PyBytes_GET_SIZE(topic)
    cdef unsigned char *p
    cdef bytes out
    cdef int index
    open_source(&source, data, 0, records, False)
    try:
        spans = walk(&source)
        head = source.head
        for index in range(head.count):
            if has_topic(source.data, &spans[index], tag, tag_bytes):
                size += spans[index].end - spans[index].start
                continue
            if spans[index].header_count >= HEADERS_PER_RECORD_MAX:
                fail(&source, BAD_HEADERS, index)
            size += tagged_bytes(source.data, &spans[index], tag_bytes)
        if size > BATCH_BYTES_MAX:
            raise MessageTooLarge(f"the tagged records need more than {BATCH_BYTES_MAX} bytes")
        out = PyBytes_FromStringAndSize(NULL, size)
        p = <unsigned char *> PyBytes_AS_STRING(out) + HEADER_BYTES
        for index in range(head.count):
            if has_topic(source.data, &spans[index], tag, tag_bytes):
                p = copy_record(p, source.data, &spans[index])
            else:
                p = tag_record(p, source.data, &spans[index], tag, tag_bytes)
        head.attributes &= ~<int16_t> CODEC_MASK
        head.producer_id = producer_id
        seal_batch(<unsigned char *> PyBytes_AS_STRING(out), size, &head)
        return out
    finally:
        free(spans)
        close_source(&source)
