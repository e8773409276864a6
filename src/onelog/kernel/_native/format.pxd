"""The batch format in C: byte order, varints, the header, one record. Inlined into each module.

Rules: no byte is read before it is known to be there; lengths are compared with what is left and
never added to a pointer first. The codes are those of `kernel/corruption.py`; checks run in the
order of the interpreted twin.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define OL_BE64(x) (x)
    #define OL_BE32(x) (x)
    #define OL_BE16(x) (x)
    #define OL_LE32(x) __builtin_bswap32(x)
    #define OL_LE64(x) __builtin_bswap64(x)
    #elif defined(_MSC_VER)
    #include <stdlib.h>
    #define OL_BE64(x) _byteswap_uint64(x)
    #define OL_BE32(x) _byteswap_ulong(x)
    #define OL_BE16(x) _byteswap_ushort(x)
    #define OL_LE32(x) (x)
    #define OL_LE64(x) (x)
    #else
    #define OL_BE64(x) __builtin_bswap64(x)
    #define OL_BE32(x) __builtin_bswap32(x)
    #define OL_BE16(x) __builtin_bswap16(x)
    #define OL_LE32(x) (x)
    #define OL_LE64(x) (x)
    #endif
    static inline uint64_t ol_get64(const unsigned char *p)
        { uint64_t x; memcpy(&x, p, 8); return OL_BE64(x); }
    static inline uint32_t ol_get32(const unsigned char *p)
        { uint32_t x; memcpy(&x, p, 4); return OL_BE32(x); }
    static inline uint16_t ol_get16(const unsigned char *p)
        { uint16_t x; memcpy(&x, p, 2); return OL_BE16(x); }
    static inline void ol_put64(unsigned char *p, uint64_t x) { x = OL_BE64(x); memcpy(p, &x, 8); }
    static inline void ol_put32(unsigned char *p, uint32_t x) { x = OL_BE32(x); memcpy(p, &x, 4); }
    static inline void ol_put16(unsigned char *p, uint16_t x) { x = OL_BE16(x); memcpy(p, &x, 2); }
    static inline uint32_t ol_le32(const unsigned char *p)
        { uint32_t x; memcpy(&x, p, 4); return OL_LE32(x); }
    static inline void ol_put_le32(unsigned char *p, uint32_t x)
        { x = OL_LE32(x); memcpy(p, &x, 4); }
    static inline void ol_put_le64(unsigned char *p, uint64_t x)
        { x = OL_LE64(x); memcpy(p, &x, 8); }
    """
    uint64_t ol_get64(const unsigned char *p) noexcept nogil
    uint32_t ol_get32(const unsigned char *p) noexcept nogil
    uint16_t ol_get16(const unsigned char *p) noexcept nogil
    void ol_put64(unsigned char *p, uint64_t x) noexcept nogil
    void ol_put32(unsigned char *p, uint32_t x) noexcept nogil
    void ol_put16(unsigned char *p, uint16_t x) noexcept nogil
    uint32_t ol_le32(const unsigned char *p) noexcept nogil
    void ol_put_le32(unsigned char *p, uint32_t x) noexcept nogil
    void ol_put_le64(unsigned char *p, uint64_t x) noexcept nogil

cdef enum:
    SHORT_HEADER = 1
    BAD_MAGIC = 2
    BAD_LENGTH = 3
    SHORT_BATCH = 4
    BAD_BASE_OFFSET = 5
    BAD_LAST_DELTA = 6
    BAD_COUNT = 7
    BAD_CRC = 8
    BAD_ORDER = 9
    BAD_VARINT = 10
    BAD_RECORD_LENGTH = 11
    BAD_OFFSET_DELTA = 12
    BAD_TIMESTAMP = 13
    BAD_KEY = 14
    BAD_VALUE = 15
    BAD_HEADERS = 16
    RECORD_TAIL = 17
    BATCH_TAIL = 18
    BAD_INFLATED = 19
    BAD_CHUNK = 20
    NOT_DENSE = 21
    SECOND_BATCH = 22
    NO_KEY = 23

# Repeated from types.py and base/limits.py, because C needs them at compile time; the contract
# tests compare both implementations at each of these bounds.
cdef enum:
    HEADER_BYTES = 61
    PREFIX_BYTES = 12
    CRC_FROM = 21
    RECORD_BYTES_MIN = 7
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    DELETE_HORIZON = 64
    BATCH_BYTES_MAX = 64 * 1024 * 1024
    INFLATED_BYTES_MAX = 128 * 1024 * 1024
    RECORDS_PER_BATCH_MAX = 1000000
    HEADERS_PER_RECORD_MAX = 1000
    TOPIC_BYTES_MAX = 1024
    TOPIC_LEVELS_MAX = 64
    PARTITIONS_PER_REQUEST_MAX = 100000

ctypedef const unsigned char *bytes_at

cdef struct Head:
    Py_ssize_t size
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t leader_epoch
    uint32_t crc
    int32_t last_delta
    int32_t base_sequence
    int32_t count
    int16_t attributes
    int16_t producer_epoch

cdef struct Span:
    # Positions count from the first record's byte: batches are far below 4 GiB.
    int64_t timestamp_delta
    uint32_t start
    uint32_t end
    uint32_t key
    uint32_t value
    uint32_t headers
    int32_t key_bytes
    int32_t value_bytes
    int32_t header_count
    int32_t offset_delta


cdef inline int read_uvarint(bytes_at *at, bytes_at end, uint64_t *out) noexcept nogil:
    cdef bytes_at p = at[0]
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef unsigned char byte
    while p < end and shift < 70:
        byte = p[0]
        p += 1
        if shift == 63 and (byte & 0x7F) > 1:
            return BAD_VARINT
        value |= (<uint64_t> (byte & 0x7F)) << shift
        if byte < 0x80:
            at[0] = p
            out[0] = value
            return 0
        shift += 7
    return BAD_VARINT


cdef inline int read_varint(bytes_at *at, bytes_at end, int64_t *out) noexcept nogil:
    cdef uint64_t value
    cdef bytes_at p = at[0]
    if p < end and p[0] < 0x80:
        value = p[0]
        at[0] = p + 1
    elif end - p >= 2 and p[1] < 0x80:
        value = (p[0] & 0x7F) | (<uint64_t> p[1] << 7)
        at[0] = p + 2
    elif read_uvarint(at, end, &value):
        return BAD_VARINT
    out[0] = <int64_t> (value >> 1) ^ -(<int64_t> (value & 1))
    return 0


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


cdef inline int varint_bytes(int64_t value) noexcept nogil:
    cdef uint64_t left = zigzag(value)
    cdef int size = 1
    while left > 0x7F:
        left >>= 7
        size += 1
    return size


cdef inline unsigned char *write_uvarint(unsigned char *p, uint64_t value) noexcept nogil:
    while value > 0x7F:
        p[0] = <unsigned char> (value & 0x7F | 0x80)
        p += 1
        value >>= 7
    p[0] = <unsigned char> value
    return p + 1


cdef inline unsigned char *write_varint(unsigned char *p, int64_t value) noexcept nogil:
    return write_uvarint(p, zigzag(value))


cdef inline int read_head(bytes_at p, Py_ssize_t left, Head *head) noexcept nogil:
    """Everything but the CRC."""
    cdef int64_t offset_max = 0x7FFFFFFFFFFFFFFE
    if left < HEADER_BYTES:
        return SHORT_HEADER
    if p[16] != 2:
        return BAD_MAGIC
    head.size = <Py_ssize_t> <int32_t> ol_get32(p + 8) + PREFIX_BYTES
    if head.size < HEADER_BYTES or head.size > BATCH_BYTES_MAX:
        return BAD_LENGTH
    if head.size > left:
        return SHORT_BATCH
    head.base_offset = <int64_t> ol_get64(p)
    head.leader_epoch = <int32_t> ol_get32(p + 12)
    head.crc = ol_get32(p + 17)
    head.attributes = <int16_t> ol_get16(p + 21)
    head.last_delta = <int32_t> ol_get32(p + 23)
    head.base_timestamp = <int64_t> ol_get64(p + 27)
    head.max_timestamp = <int64_t> ol_get64(p + 35)
    head.producer_id = <int64_t> ol_get64(p + 43)
    head.producer_epoch = <int16_t> ol_get16(p + 51)
    head.base_sequence = <int32_t> ol_get32(p + 53)
    head.count = <int32_t> ol_get32(p + 57)
    if head.last_delta < 0:
        return BAD_LAST_DELTA
    if head.base_offset < 0 or head.base_offset > offset_max - head.last_delta:
        return BAD_BASE_OFFSET
    if (
        head.count < 0
        or head.count > RECORDS_PER_BATCH_MAX
        or <int64_t> head.count > <int64_t> head.last_delta + 1
    ):
        return BAD_COUNT
    return 0


cdef inline int read_field(
    bytes_at *at, bytes_at end, int lowest, int code, int32_t *size
) noexcept nogil:
    """A length, checked against what is left; `at` is then at the field's first byte."""
    cdef int64_t value
    if read_varint(at, end, &value):
        return BAD_VARINT
    if value < lowest or value > end - at[0]:
        return code
    size[0] = <int32_t> value
    return 0


cdef inline int read_headers(bytes_at *at, bytes_at end, bytes_at data, Span *span) noexcept nogil:
    cdef int64_t count
    cdef int32_t size
    cdef int code
    if read_varint(at, end, &count):
        return BAD_VARINT
    if count < 0 or count > HEADERS_PER_RECORD_MAX or count > (end - at[0]) // 2:
        return BAD_HEADERS
    span.headers = <uint32_t> (at[0] - data)
    span.header_count = <int32_t> count
    while count:
        count -= 1
        code = read_field(at, end, 0, BAD_HEADERS, &size)
        if code:
            return code
        at[0] += size
        code = read_field(at, end, -1, BAD_HEADERS, &size)
        if code:
            return code
        if size > 0:
            at[0] += size
    return 0


cdef inline int read_span(bytes_at data, bytes_at at, bytes_at limit, Span *span) noexcept nogil:
    """The record at `at`, checked except for its place in the batch (`check_deltas`)."""
    cdef int64_t number
    cdef bytes_at end
    cdef int code
    span.start = <uint32_t> (at - data)
    if read_varint(&at, limit, &number):
        return BAD_VARINT
    if number < RECORD_BYTES_MIN - 1 or number > limit - at:
        return BAD_RECORD_LENGTH
    end = at + number
    span.end = <uint32_t> (end - data)
    at += 1  # attributes: unused by the format
    if read_varint(&at, end, &span.timestamp_delta):
        return BAD_VARINT
    if read_varint(&at, end, &number):
        return BAD_VARINT
    # Too large for a delta in any case: keep it wrong rather than cut it to 32 bits.
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
    span.value = <uint32_t> (at - data)
    if span.value_bytes > 0:
        at += span.value_bytes
    if at < end and at[0] == 0:  # no headers: the common case
        at += 1
        span.headers = <uint32_t> (at - data)
        span.header_count = 0
    else:
        code = read_headers(&at, end, data, span)
        if code:
            return code
    if at != end:
        return RECORD_TAIL
    return 0


cdef inline int check_deltas(const Head *head, const Span *span, int32_t last) noexcept nogil:
    cdef int64_t top = 0x7FFFFFFFFFFFFFFF
    cdef int64_t low = -top - 1
    if span.offset_delta <= last or span.offset_delta > head.last_delta:
        return BAD_OFFSET_DELTA
    if span.timestamp_delta > 0:
        if head.base_timestamp > top - span.timestamp_delta:
            return BAD_TIMESTAMP
    elif head.base_timestamp < low - span.timestamp_delta:
        return BAD_TIMESTAMP
    return 0


cdef inline int64_t time_of(const Head *head, const Span *span) noexcept nogil:
    if head.attributes & LOG_APPEND_TIME:
        return head.max_timestamp
    return head.base_timestamp + span.timestamp_delta


cdef inline bytes_at topic_of(bytes_at data, const Span *span, int32_t *size) noexcept nogil:
    """The topic of a checked record; a size of -1: it has none."""
    cdef bytes_at at
    cdef bytes_at end
    cdef int32_t name = 0
    if span.header_count:
        at = data + span.headers
        end = data + span.end
        read_field(&at, end, 0, BAD_HEADERS, &name)
        if name == 2 and at[0] == c"~" and at[1] == c"t":
            at += 2
            read_field(&at, end, -1, BAD_HEADERS, &name)
            size[0] = name
            return at
    size[0] = span.key_bytes
    return data + span.key
