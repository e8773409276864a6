"""Kafka's wire types in C: a reader that stays inside its request. Inlined into each module.

Rules: a field is taken whole or not at all, so the reader stops at the bad field; a count is
compared with the bytes left before anything is made from it. The codes are those of
`kernel/violation.py`; checks run in the order of the interpreted twin.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t

from onelog.kernel._native.format cimport (
    bytes_at,
    ol_get16,
    ol_get32,
    ol_get64,
    read_uvarint,
)

cdef enum:
    CUT_SHORT = 1
    BAD_SIZE = 2
    BAD_ARRAY = 3
    TOO_MANY = 4
    BAD_TEXT = 5
    BAD_NUMBER = 6
    BAD_TAG = 7

cdef struct Reader:
    bytes_at data
    bytes_at at
    bytes_at end
    int32_t nameable
    bint flexible


cdef inline int take_i8(Reader *reader, int *out) noexcept nogil:
    if reader.end - reader.at < 1:
        return CUT_SHORT
    out[0] = <signed char> reader.at[0]
    reader.at += 1
    return 0


cdef inline int take_i16(Reader *reader, int16_t *out) noexcept nogil:
    if reader.end - reader.at < 2:
        return CUT_SHORT
    out[0] = <int16_t> ol_get16(reader.at)
    reader.at += 2
    return 0


cdef inline int take_i32(Reader *reader, int32_t *out) noexcept nogil:
    if reader.end - reader.at < 4:
        return CUT_SHORT
    out[0] = <int32_t> ol_get32(reader.at)
    reader.at += 4
    return 0


cdef inline int take_i64(Reader *reader, int64_t *out) noexcept nogil:
    if reader.end - reader.at < 8:
        return CUT_SHORT
    out[0] = <int64_t> ol_get64(reader.at)
    reader.at += 8
    return 0


cdef inline int take_number(Reader *reader, uint64_t *out) noexcept nogil:
    return BAD_NUMBER if read_uvarint(&reader.at, reader.end, out) else 0


cdef inline int take_length(Reader *reader, bint short_size, int64_t *out) noexcept nogil:
    """A length or count: i16 or i32, or compact; -1 is null."""
    cdef uint64_t number = 0
    cdef int16_t small = 0
    cdef int32_t large = 0
    cdef int code
    if reader.flexible:
        code = take_number(reader, &number)
        # A number larger than any frame stays too large; it is not cut to 64 bits with a sign.
        out[0] = 0x7FFFFFFF if number > 0x7FFFFFFF else <int64_t> number - 1
    elif short_size:
        code = take_i16(reader, &small)
        out[0] = small
    else:
        code = take_i32(reader, &large)
        out[0] = large
    return code


cdef inline int take_bytes(
    Reader *reader, bint short_size, bint nullable, bytes_at *start, int64_t *size
) noexcept nogil:
    """A string (i16) or bytes (i32): where it starts and its size, -1 for null."""
    cdef bytes_at before = reader.at
    cdef int code = take_length(reader, short_size, size)
    if code:
        return code
    if size[0] < (-1 if nullable else 0) or size[0] > reader.end - reader.at:
        reader.at = before
        return BAD_SIZE
    start[0] = reader.at
    if size[0] > 0:
        reader.at += size[0]
    return 0


cdef inline int take_count(Reader *reader, int element_bytes_min, int64_t *count) noexcept nogil:
    """The count of an array that must not be null."""
    cdef bytes_at before = reader.at
    cdef int code = take_length(reader, False, count)
    if code:
        return code
    if count[0] < 0 or count[0] > (reader.end - reader.at) // element_bytes_min:
        code = BAD_ARRAY
    elif count[0] > reader.nameable:
        code = TOO_MANY
    if code:
        reader.at = before
        return code
    reader.nameable -= <int32_t> count[0]
    return 0


cdef inline int take_tag(Reader *reader, int64_t *tag, bytes_at *start) noexcept nogil:
    """One tagged field, from `start` to where the reader then stands.

    `tag` is the one before it, -1 before the first, and then its own.
    """
    cdef uint64_t size = 0, number = 0
    cdef bytes_at before = reader.at
    cdef int code = take_number(reader, &number)
    if code:
        return code
    if number >> 32 or <int64_t> number <= tag[0]:
        reader.at = before
        return BAD_TAG
    tag[0] = <int64_t> number
    before = reader.at
    code = take_number(reader, &size)
    if code:
        return code
    if size > <uint64_t> (reader.end - reader.at):
        reader.at = before
        return BAD_SIZE
    start[0] = reader.at
    reader.at += size
    return 0


cdef inline int skip_tags(Reader *reader) noexcept nogil:
    """The tagged fields that end a structure of a flexible version."""
    cdef uint64_t count = 0
    cdef int64_t tag = -1
    cdef bytes_at start
    cdef int code
    if not reader.flexible:
        return 0
    code = take_number(reader, &count)
    while code == 0 and count:
        count -= 1
        code = take_tag(reader, &tag, &start)
    return code
