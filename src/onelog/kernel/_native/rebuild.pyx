"""Batches from columns, compiled: the way back from Arrow buffers to record batches.

Rules: a frame gives the header of a batch, the rows give its records. No byte is written that was
not counted before, whatever the buffers hold. The CRC of each batch must be that of its frame.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.ref cimport Py_DECREF, PyObject, Py_XDECREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from onelog.kernel._native.build cimport Slice, seal_batch
from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport (
    BAD_CRC,
    BAD_LENGTH,
    BATCH_BYTES_MAX,
    CRC_FROM,
    HEADER_BYTES,
    HEADERS_PER_RECORD_MAX,
    RECORDS_PER_BATCH_MAX,
    Head,
    bytes_at,
    ol_get32,
    ol_le32,
    read_head,
    varint_bytes,
    write_varint,
)

from onelog.base.errors import InvalidRequest
from onelog.kernel.corruption import corrupt

cdef extern from "Python.h":
    # Borrowed pointers: a resize wants the only reference to its object.
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size)
    int _PyBytes_Resize(PyObject **made, Py_ssize_t size)

cdef enum:
    # Repeated from kernel/types.py and kernel/corruption.py.
    FRAME_BYTES = 64
    PLACE_ROWS = 0
    BAD_ROWS = 24
    RECORD_ROOM = 48  # what a record takes beside its fields, at most
    HEADER_ROOM = 10


cdef struct Items:
    # A column of bytes, borrowed: validity bits or NULL, 32 bit offsets, data.
    bytes_at bits
    bytes_at ends
    bytes_at data
    Py_ssize_t size


cdef struct Rows:
    Py_ssize_t count
    bytes_at offsets
    bytes_at timestamps
    bytes_at lists
    Py_ssize_t headers
    Items keys
    Items values
    Items names
    Items contents
    Py_ssize_t first


cdef struct Output:
    unsigned char *start
    unsigned char *at
    unsigned char *end
    bytes_at raw
    bytes_at raw_end


cdef struct Frame:
    Head head
    uint32_t first_row
    int place


cdef inline bint item_at(const Items *column, Py_ssize_t row, Slice *out) noexcept nogil:
    """Borrow an item. Returns False when its offsets lie outside of the data."""
    cdef int32_t first = <int32_t> ol_le32(column.ends + 4 * row)
    cdef int32_t end = <int32_t> ol_le32(column.ends + 4 * row + 4)
    out.at = NULL
    out.size = -1
    if column.bits is not NULL and not column.bits[row >> 3] >> (row & 7) & 1:
        return True
    out.at = column.data + first
    out.size = end - first
    return 0 <= first <= end <= column.size


cdef inline Py_ssize_t sized(Py_ssize_t size) noexcept nogil:
    """Bytes of a field with its length in front."""
    return 1 if size < 0 else varint_bytes(size) + size


cdef inline unsigned char *write_field(unsigned char *p, Slice field) noexcept nogil:
    p = write_varint(p, field.size)
    if field.size > 0:
        memcpy(p, field.at, field.size)
        p += field.size
    return p


cdef inline uint64_t _le64(bytes_at p) noexcept nogil:
    return <uint64_t> ol_le32(p) | <uint64_t> ol_le32(p + 4) << 32


cdef inline void _read_frame(bytes_at p, Frame *frame) noexcept nogil:
    frame.head.base_offset = <int64_t> _le64(p)
    frame.head.base_timestamp = <int64_t> _le64(p + 8)
    frame.head.max_timestamp = <int64_t> _le64(p + 16)
    frame.head.producer_id = <int64_t> _le64(p + 24)
    frame.head.last_delta = <int32_t> ol_le32(p + 32)
    frame.head.count = <int32_t> ol_le32(p + 36)
    frame.head.leader_epoch = <int32_t> ol_le32(p + 40)
    frame.head.base_sequence = <int32_t> ol_le32(p + 44)
    frame.head.crc = ol_le32(p + 48)
    frame.first_row = ol_le32(p + 52)
    frame.head.attributes = <int16_t> (p[56] | p[57] << 8)
    frame.head.producer_epoch = <int16_t> (p[58] | p[59] << 8)
    frame.place = p[60]


cdef int _record(
    const Frame *frame, const Rows *rows, Py_ssize_t row, Output *out
) noexcept nogil:
    """One record behind those that are written. Returns 0 or the fault."""
    cdef Slice key, value, name, content
    cdef Py_ssize_t header, body
    cdef Py_ssize_t first = <int32_t> ol_le32(rows.lists + 4 * row)
    cdef Py_ssize_t last = <int32_t> ol_le32(rows.lists + 4 * row + 4)
    cdef uint64_t time = _le64(rows.timestamps + 8 * row) - <uint64_t> frame.head.base_timestamp
    cdef uint64_t delta = _le64(rows.offsets + 8 * row) - <uint64_t> frame.head.base_offset
    if delta > <uint64_t> frame.head.last_delta:
        return BAD_ROWS
    if first < 0 or last < first or last > rows.headers or last - first > HEADERS_PER_RECORD_MAX:
        return BAD_ROWS
    if not item_at(&rows.keys, row, &key) or not item_at(&rows.values, row, &value):
        return BAD_ROWS
    body = (
        1 + varint_bytes(<int64_t> time) + varint_bytes(<int64_t> delta)
        + sized(key.size) + sized(value.size) + varint_bytes(last - first)
    )
    for header in range(first, last):
        if not item_at(&rows.names, header, &name) or not item_at(&rows.contents, header, &content):
            return BAD_ROWS
        body += sized(name.size) + sized(content.size)
    if varint_bytes(body) + body > out.end - out.at:
        return BAD_ROWS
    out.at = write_varint(out.at, body)
    out.at[0] = 0
    out.at = write_varint(out.at + 1, <int64_t> time)
    out.at = write_varint(out.at, <int64_t> delta)
    out.at = write_field(out.at, key)
    out.at = write_field(out.at, value)
    out.at = write_varint(out.at, last - first)
    for header in range(first, last):
        item_at(&rows.names, header, &name)
        item_at(&rows.contents, header, &content)
        out.at = write_field(write_field(out.at, name), content)
    return 0


cdef int _from_rows(Frame *frame, const Rows *rows, Output *out, bint check) noexcept nogil:
    cdef unsigned char *start = out.at
    cdef Py_ssize_t first = <Py_ssize_t> frame.first_row - rows.first
    cdef Py_ssize_t row
    cdef int code
    if (
        frame.head.last_delta < 0
        or frame.head.count < 0
        or frame.head.count > RECORDS_PER_BATCH_MAX
        or first < 0
        or first + frame.head.count > rows.count
        or out.end - out.at < HEADER_BYTES
    ):
        return BAD_ROWS
    out.at += HEADER_BYTES
    for row in range(first, first + frame.head.count):
        code = _record(frame, rows, row, out)
        if code:
            return code
    if out.at - start > BATCH_BYTES_MAX:
        return BAD_LENGTH
    seal_batch(start, out.at - start, &frame.head)
    if check and ol_get32(start + 17) != frame.head.crc:
        return BAD_CRC
    return 0


cdef int _from_raw(const Frame *frame, Output *out) noexcept nogil:
    """The next raw batch, which must be the one of the frame."""
    cdef Head head
    cdef int code = read_head(out.raw, out.raw_end - out.raw, &head)
    if code:
        return code
    if (
        head.base_offset != frame.head.base_offset
        or head.leader_epoch != frame.head.leader_epoch  # both lie outside of the CRC
        or head.crc != frame.head.crc
    ):
        return BAD_ROWS
    if crc_of(out.raw + CRC_FROM, head.size - CRC_FROM, 0) != head.crc:
        return BAD_CRC
    if head.size > out.end - out.at:
        return BAD_ROWS
    memcpy(out.at, out.raw, head.size)
    out.at += head.size
    out.raw += head.size
    return 0


cdef int open_items(
    const unsigned char[::1] bits,
    const unsigned char[::1] ends,
    const unsigned char[::1] data,
    Py_ssize_t rows,
    Items *out,
) except -1:
    """Borrow the buffers of a column that has so many rows."""
    if bits.shape[0] and bits.shape[0] < (rows + 7) // 8:
        raise InvalidRequest(f"a column of {rows} rows has {bits.shape[0]} bytes of validity bits")
    if ends.shape[0] < 4 * (rows + 1):
        raise InvalidRequest(f"a column of {rows} rows has {ends.shape[0]} bytes of offsets")
    out.bits = &bits[0] if bits.shape[0] else NULL
    out.ends = &ends[0]
    out.data = &data[0] if data.shape[0] else NULL
    out.size = data.shape[0]
    return 0


cdef int _open_rows(object columns, Py_ssize_t first, Rows *rows, list held) except -1:
    """Borrow the buffers of columns; `held` keeps them."""
    cdef const unsigned char[::1] part
    count, offsets, timestamps, keys, values, _topics, headers = columns
    rows.count = count
    rows.first = first
    rows.headers = 0
    for buf in (offsets, timestamps, *keys, *values, *headers):
        held.append(memoryview(buf).cast("B"))
    if len(held[0]) < 8 * count or len(held[1]) < 8 * count or len(held[8]) < 4 * (count + 1):
        raise InvalidRequest(f"a column of {count} rows is too short")
    part = held[0]
    rows.offsets = &part[0] if count else NULL
    part = held[1]
    rows.timestamps = &part[0] if count else NULL
    open_items(held[2], held[3], held[4], count, &rows.keys)
    open_items(held[5], held[6], held[7], count, &rows.values)
    part = held[8]
    rows.lists = &part[0]
    rows.headers = max(0, <int32_t> ol_le32(&part[0] + 4 * rows.count))
    open_items(b"", held[9], held[10], rows.headers, &rows.names)
    open_items(held[11], held[12], held[13], rows.headers, &rows.contents)
    return 0


def rebuild_batches(frames, columns, Py_ssize_t first_row, raw, bint check):
    """The batches of `frames`, from rows of which `first_row` is the first, and from raw ones.

    Raises CorruptBatch when rows and frames do not fit, or when the CRC of a batch is another one
    (of a rebuilt batch only if `check`).
    """
    cdef const unsigned char[::1] heads = memoryview(frames).cast("B")
    cdef const unsigned char[::1] kept = memoryview(raw).cast("B")
    cdef Py_ssize_t count = heads.shape[0] // FRAME_BYTES
    cdef Py_ssize_t room
    cdef Py_ssize_t index = 0
    cdef Rows rows
    cdef Output out
    cdef Frame frame
    cdef int code = 0
    cdef list held = []
    cdef PyObject *made
    if heads.shape[0] % FRAME_BYTES:
        raise InvalidRequest(f"frames of {heads.shape[0]} bytes are not whole")
    _open_rows(columns, first_row, &rows, held)
    room = (
        count * HEADER_BYTES + kept.shape[0] + rows.count * RECORD_ROOM
        + rows.headers * HEADER_ROOM
        + rows.keys.size + rows.values.size + rows.names.size + rows.contents.size
    )
    made = new_bytes(NULL, room)
    if made is NULL:
        raise MemoryError
    out.start = out.at = <unsigned char *> PyBytes_AS_STRING(<object> made)
    out.end = out.start + room
    out.raw = &kept[0] if kept.shape[0] else NULL
    out.raw_end = out.raw + kept.shape[0]
    with nogil:
        for index in range(count):
            _read_frame(&heads[index * FRAME_BYTES], &frame)
            if frame.place == PLACE_ROWS:
                code = _from_rows(&frame, &rows, &out, check)
            else:
                code = _from_raw(&frame, &out)
            if code:
                break
    if code == 0 and out.raw != out.raw_end:
        index, code = count, BAD_ROWS
    if code:
        Py_XDECREF(made)
        raise corrupt(code, index)
    if _PyBytes_Resize(&made, out.at - out.start):
        raise MemoryError
    found = <object> made
    Py_DECREF(found)  # the cast took a reference of its own
    return found
