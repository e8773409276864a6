"""C face of the builder: protocol parsers stage records without making Python objects."""

from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.format cimport Head

cdef enum:
    # The results of `add_raw` other than an index.
    ADD_TIMESTAMP = -1
    ADD_RECORDS = -2
    ADD_HEADERS = -3
    ADD_BYTES = -4
    ADD_MEMORY = -5

cdef struct Slice:
    # Borrowed bytes; a size of -1 is null.
    const unsigned char *at
    Py_ssize_t size

cdef struct RawHeaders:
    # Headers already in the record's own encoding (length, key, length, value, ...), without count.
    const unsigned char *at
    Py_ssize_t size
    int32_t count
    # Whether the first key is "~t": then the topic must be written before it.
    bint shadows_topic

cdef class BatchBuilder:
    cdef unsigned char *data
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef unsigned char *pairs
    cdef Py_ssize_t pairs_used
    cdef Py_ssize_t pairs_room
    cdef unsigned char *scratch
    cdef Py_ssize_t scratch_room
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    cdef int32_t records
    cdef bint tag_topics

    cdef int add_raw(
        self, Slice topic, Slice key, Slice value, const RawHeaders *headers, int64_t timestamp_ms
    ) noexcept nogil
    cdef int _encode_headers(self, object headers, RawHeaders *out) except -1
    cdef int _add(
        self, object topic, object key, object value, object headers, object timestamp_ms
    ) except -1
    cdef bytes seal_plain(self, int64_t base_offset, int32_t leader_epoch)
    cdef bytes _seal(self, Head *head)

cdef void seal_batch(unsigned char *p, Py_ssize_t size, const Head *head) noexcept nogil
