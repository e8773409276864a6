"""Topic index chunks, compiled: sorted (topic hash, relative offset) pairs under a header.

Format, little endian: magic u32, CRC-32C u32 of all that follows, count u32, lowest relative
offset u32 (0xFFFFFFFF if empty), then count pairs (hash u32, relative offset u32), ascending.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport BAD_CHUNK, bytes_at, ol_le32, ol_put_le32

from onelog.base.errors import InvalidRequest
from onelog.kernel.corruption import corrupt

cdef enum:
    CHUNK_HEADER_BYTES = 16

cdef uint32_t CHUNK_MAGIC = 0x31544C4F  # "OLT1"


cdef enum:
    # Fewer items are put in their place one by one.
    RADIX_MIN = 48


cdef void _insertion_sort(uint64_t *items, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t at, back
    cdef uint64_t item
    for at in range(1, count):
        item = items[at]
        back = at
        while back > 0 and items[back - 1] > item:
            items[back] = items[back - 1]
            back -= 1
        items[back] = item


cdef void _radix_sort(
    uint64_t *items, uint64_t *spare, Py_ssize_t count, int first_shift
) noexcept nogil:
    """Sort by bytes, low first; a byte that all items share costs no pass. Result in `items`.

    Bytes below `first_shift` bits are in order already."""
    cdef Py_ssize_t starts[256]
    cdef Py_ssize_t at, sum_, n
    cdef uint64_t *source = items
    cdef uint64_t *target = spare
    cdef uint64_t *swap
    cdef int shift, byte
    for shift in range(first_shift, 64, 8):
        memset(starts, 0, sizeof(starts))
        for at in range(count):
            starts[(source[at] >> shift) & 255] += 1
        if starts[(source[0] >> shift) & 255] == count:
            continue
        sum_ = 0
        for byte in range(256):
            n = starts[byte]
            starts[byte] = sum_
            sum_ += n
        for at in range(count):
            byte = (source[at] >> shift) & 255
            target[starts[byte]] = source[at]
            starts[byte] += 1
        swap = source
        source = target
        target = swap
    if source is not items:
        memcpy(items, source, count * sizeof(uint64_t))


cdef int _check_pairs(Py_ssize_t size) except -1:
    if size % 8:
        raise InvalidRequest(f"{size} bytes are not whole pairs of u32")
    return 0


def meets_topics(entries, wanted) -> bool:
    """Whether a pair may be of a topic whose hash is in `wanted`, a table of bits: bit `hash %
    bits`. The table has a power of two of bytes."""
    cdef Py_buffer view, table
    cdef bytes_at at, end, bits
    cdef uint32_t key, mask
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        _check_pairs(view.len)
        PyObject_GetBuffer(wanted, &table, PyBUF_SIMPLE)
        try:
            if table.len == 0 or table.len & (table.len - 1) or table.len > (1 << 28):
                raise InvalidRequest(f"{table.len} bytes are not a power of two")
            mask = <uint32_t> (table.len * 8 - 1)
            bits = <bytes_at> table.buf
            at = <bytes_at> view.buf
            end = at + view.len
            while at < end:
                key = ol_le32(at) & mask
                if bits[key >> 3] >> (key & 7) & 1:
                    return True
                at += 8
            return False
        finally:
            PyBuffer_Release(&table)
    finally:
        PyBuffer_Release(&view)


def move_topic_entries(entries, int64_t add):
    """The pairs in their order, `add` added to each relative offset."""
    return _moved(entries, add, False)


def pack_topic_entries(list rows not None, Py_ssize_t long_bytes):
    """The pairs of all rows (pairs, add) that are shorter than `long_bytes`, in one piece, each
    moved by its `add`; and the rows that are longer."""
    cdef Py_ssize_t size = 0, at
    cdef list longer = []
    cdef bytes pairs, out
    cdef unsigned char *q
    cdef bytes_at p
    cdef int64_t add, rel
    for pairs, _add in rows:
        _check_pairs(PyBytes_GET_SIZE(pairs))
        if PyBytes_GET_SIZE(pairs) < long_bytes:
            size += PyBytes_GET_SIZE(pairs)
        else:
            longer.append((pairs, _add))
    out = PyBytes_FromStringAndSize(NULL, size)
    q = <unsigned char *> PyBytes_AS_STRING(out)
    for pairs, _add in rows:
        if PyBytes_GET_SIZE(pairs) >= long_bytes:
            continue
        p = <bytes_at> PyBytes_AS_STRING(pairs)
        # Bounded, so that no sum overflows; what is out of bounds does not fit either.
        add = max(-0x100000000, min(<int64_t> _add, 0x100000000))
        for at in range(0, PyBytes_GET_SIZE(pairs), 8):
            rel = <int64_t> ol_le32(p + at + 4) + add
            if rel < 0 or rel > 0xFFFFFFFF:
                raise InvalidRequest(
                    f"relative offset {ol_le32(p + at + 4)} + {_add} does not fit 32 bits"
                )
            memcpy(q, p + at, 4)
            ol_put_le32(q + 4, <uint32_t> rel)
            q += 8
    return out, longer


def sort_topic_entries(entries, int64_t add=0):
    """The pairs sorted by (hash, relative offset), `add` added to each relative offset."""
    return _moved(entries, add, True)


cdef bytes _moved(object entries, int64_t add, bint sorted_too):
    cdef Py_buffer view
    cdef uint64_t *items = NULL
    cdef Py_ssize_t at, count
    cdef bytes_at p
    cdef unsigned char *q
    cdef int64_t rel, before = -1
    cdef bint ascends = True
    cdef bytes out
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        _check_pairs(view.len)
        count = view.len // 8
        if count == 0:
            return b""
        if not -0xFFFFFFFF <= add <= 0xFFFFFFFF:
            raise InvalidRequest(
                f"relative offset {ol_le32(<bytes_at> view.buf + 4)} + {add}"
                " does not fit 32 bits"
            )
        items = <uint64_t *> malloc(2 * view.len)
        if items is NULL:
            raise MemoryError
        p = <bytes_at> view.buf
        for at in range(count):
            rel = <int64_t> ol_le32(p + 8 * at + 4) + add
            if rel < 0 or rel > 0xFFFFFFFF:
                raise InvalidRequest(
                    f"relative offset {rel - add} + {add} does not fit 32 bits"
                )
            ascends &= rel >= before
            before = rel
            items[at] = (<uint64_t> ol_le32(p + 8 * at) << 32) | <uint64_t> rel
        if sorted_too and count < RADIX_MIN:
            _insertion_sort(items, count)
        elif sorted_too:
            # As batches have them: then only the hashes are sorted.
            _radix_sort(items, items + count, count, 32 if ascends else 0)
        out = PyBytes_FromStringAndSize(NULL, view.len)
        q = <unsigned char *> PyBytes_AS_STRING(out)
        for at in range(count):
            ol_put_le32(q + 8 * at, <uint32_t> (items[at] >> 32))
            ol_put_le32(q + 8 * at + 4, <uint32_t> items[at])
        return out
    finally:
        free(items)
        PyBuffer_Release(&view)


def make_topic_chunk(sorted_entries):
    """Sorted pairs as a chunk that can be appended to an index file."""
    cdef Py_buffer view
    cdef uint32_t lowest = 0xFFFFFFFF
    cdef Py_ssize_t at
    cdef bytes out
    cdef unsigned char *p
    PyObject_GetBuffer(sorted_entries, &view, PyBUF_SIMPLE)
    try:
        _check_pairs(view.len)
        out = PyBytes_FromStringAndSize(NULL, CHUNK_HEADER_BYTES + view.len)
        p = <unsigned char *> PyBytes_AS_STRING(out)
        for at in range(view.len // 8):
            lowest = min(lowest, ol_le32(<bytes_at> view.buf + 8 * at + 4))
        ol_put_le32(p, CHUNK_MAGIC)
        ol_put_le32(p + 8, <uint32_t> (view.len // 8))
        ol_put_le32(p + 12, lowest)
        if view.len:
            memcpy(p + CHUNK_HEADER_BYTES, view.buf, view.len)
        ol_put_le32(p + 4, crc_of(p + 8, CHUNK_HEADER_BYTES - 8 + view.len, 0))
        return out
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t _chunk_bytes(bytes_at p, Py_ssize_t left) noexcept nogil:
    """Size of the chunk at `p`; -1 if there is none."""
    cdef uint64_t count
    if left < CHUNK_HEADER_BYTES or ol_le32(p) != CHUNK_MAGIC:
        return -1
    count = ol_le32(p + 8)
    if count * 8 > <uint64_t> (left - CHUNK_HEADER_BYTES):
        return -1
    return CHUNK_HEADER_BYTES + <Py_ssize_t> count * 8


cdef int _check_end(Py_buffer *view, Py_ssize_t end) except -1:
    if not 0 <= end <= view.len:
        raise InvalidRequest(f"bytes 0 to {end} are outside the buffer of {view.len} bytes")
    return 0


def check_topic_chunks(buf, Py_ssize_t end):
    """Bytes at the start of `buf[:end]` that are intact chunks."""
    cdef Py_buffer view
    cdef Py_ssize_t position = 0, size
    cdef bytes_at p
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_end(&view, end)
        while position < end:
            p = <bytes_at> view.buf + position
            size = _chunk_bytes(p, end - position)
            if size < 0 or crc_of(p + 8, size - 8, 0) != ol_le32(p + 4):
                break
            position += size
    finally:
        PyBuffer_Release(&view)
    return position


cdef Py_ssize_t _lower_bound(
    bytes_at pairs, Py_ssize_t count, uint32_t key, uint32_t rel
) noexcept nogil:
    """First pair that is not below (key, rel)."""
    cdef Py_ssize_t low = 0, middle
    cdef uint32_t found
    while low < count:
        middle = low + ((count - low) >> 1)
        found = ol_le32(pairs + 8 * middle)
        if found < key or (found == key and ol_le32(pairs + 8 * middle + 4) < rel):
            low = middle + 1
        else:
            count = middle
    return low


def lookup_topic_chunks(buf, Py_ssize_t end, uint32_t hash, rel_min, Py_ssize_t limit):
    """The lowest `limit` relative offsets >= `rel_min` under `hash`, ascending, each once."""
    cdef Py_buffer view
    cdef Py_ssize_t position = 0, size, count, at, taken
    cdef bytes_at p
    cdef uint32_t rel, last = 0, lowest
    cdef bint ascending = True
    cdef list found = []
    cdef object start = max(rel_min, 0)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check_end(&view, end)
        lowest = 0 if start > 0xFFFFFFFF else start
        if start > 0xFFFFFFFF:
            limit = 0
        while position < end:
            p = <bytes_at> view.buf + position
            size = _chunk_bytes(p, end - position)
            if size < 0:
                raise corrupt(BAD_CHUNK, position)
            position += size
            # Enough is found, in order, and this chunk begins above it: nothing in it can be lower.
            if limit <= 0 or (ascending and len(found) >= limit and ol_le32(p + 12) > last):
                continue
            count = (size - CHUNK_HEADER_BYTES) // 8
            p += CHUNK_HEADER_BYTES
            at = _lower_bound(p, count, hash, lowest)
            taken = 0
            while at < count and taken < limit and ol_le32(p + 8 * at) == hash:
                rel = ol_le32(p + 8 * at + 4)
                if found:
                    if rel == last and (ascending or taken):
                        at += 1
                        continue
                    if rel < last:
                        ascending = False
                found.append(rel)
                last = rel
                taken += 1
                at += 1
    finally:
        PyBuffer_Release(&view)
    if not ascending:
        found = sorted(set(found))
    return found[:limit] if len(found) > limit else found
