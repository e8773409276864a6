"""The builder of batches, compiled.

Rules: a refused record leaves the builder as it was. The first record's timestamp is the batch's
base. A topic that is not the record's key is written as the first header `~t`. Between batches at
most `KEEP_BYTES` stay allocated.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from onelog.kernel._native.crc cimport crc_of
from onelog.kernel._native.format cimport (
    BATCH_BYTES_MAX,
    CRC_FROM,
    HEADER_BYTES,
    HEADERS_PER_RECORD_MAX,
    PREFIX_BYTES,
    RECORDS_PER_BATCH_MAX,
    Head,
    bytes_at,
    ol_put16,
    ol_put32,
    ol_put64,
    ol_put_le32,
    varint_bytes,
    write_varint,
)

from onelog.base.errors import InvalidRequest, LimitExceeded, MessageTooLarge

cdef enum:
    ADD_OFFSETS = -6

cdef Py_ssize_t KEEP_BYTES = 1 << 20
cdef int64_t TIMESTAMP_MAX = (<int64_t> 1 << 62) - 1


cdef inline Py_ssize_t _sized(Py_ssize_t size) noexcept nogil:
    """Bytes of a field with its length in front."""
    return 1 if size < 0 else varint_bytes(size) + size


cdef inline unsigned char *_write(unsigned char *p, Slice field) noexcept nogil:
    p = write_varint(p, field.size)
    if field.size > 0:
        memcpy(p, field.at, field.size)
        p += field.size
    return p


cdef inline bint _grow(unsigned char **data, Py_ssize_t *room, Py_ssize_t needed) noexcept nogil:
    cdef Py_ssize_t size = max(room[0], 256)
    cdef void *moved
    if needed <= room[0]:
        return True
    while size < needed:
        size += size // 2 if size > (1 << 22) else size
    moved = realloc(data[0], size)
    if moved is NULL:
        return False
    data[0] = <unsigned char *> moved
    room[0] = size
    return True


cdef void seal_batch(unsigned char *p, Py_ssize_t size, const Head *head) noexcept nogil:
    """Write the header in front of records that are in place, CRC last."""
    ol_put64(p, head.base_offset)
    ol_put32(p + 8, <uint32_t> (size - PREFIX_BYTES))
    ol_put32(p + 12, head.leader_epoch)
    p[16] = 2
    ol_put16(p + 21, head.attributes)
    ol_put32(p + 23, head.last_delta)
    ol_put64(p + 27, head.base_timestamp)
    ol_put64(p + 35, head.max_timestamp)
    ol_put64(p + 43, head.producer_id)
    ol_put16(p + 51, head.producer_epoch)
    ol_put32(p + 53, head.base_sequence)
    ol_put32(p + 57, head.count)
    ol_put32(p + 17, crc_of(p + CRC_FROM, size - CRC_FROM, 0))


cdef int _refuse(int code, object timestamp_ms) except -1:
    if code == ADD_TIMESTAMP:
        raise InvalidRequest(f"timestamp {timestamp_ms} is not between -1 and 2**62-1 ms")
    if code == ADD_RECORDS:
        raise LimitExceeded(f"a batch holds at most {RECORDS_PER_BATCH_MAX} records")
    if code == ADD_HEADERS:
        raise LimitExceeded(f"a record has at most {HEADERS_PER_RECORD_MAX} headers")
    if code == ADD_BYTES:
        raise MessageTooLarge(f"a batch holds at most {BATCH_BYTES_MAX} bytes")
    raise MemoryError


cdef inline bint _borrow(object data, Slice *out) noexcept:
    """Borrow from bytes or None. Returns False for anything else."""
    if data is None:
        out.at = NULL
        out.size = -1
        return True
    if PyBytes_CheckExact(data):
        out.at = <bytes_at> PyBytes_AS_STRING(data)
        out.size = PyBytes_GET_SIZE(data)
        return True
    return False


cdef struct Items:
    # A column of bytes, borrowed: validity bits or NULL, 32 bit offsets, data.
    bytes_at bits
    bytes_at ends
    bytes_at data
    Py_ssize_t size


cdef inline bint _item(const Items *column, Py_ssize_t row, Slice *out) noexcept nogil:
    """Borrow an item. Returns False when its offsets lie outside of the data."""
    cdef int32_t[2] ends
    out.at = NULL
    out.size = -1
    if column.ends is NULL:
        return True
    if column.bits is not NULL and not column.bits[row >> 3] >> (row & 7) & 1:
        return True
    memcpy(ends, column.ends + 4 * row, 8)
    if ends[0] < 0 or ends[1] < ends[0] or ends[1] > column.size:
        return False
    out.at = column.data + ends[0]
    out.size = ends[1] - ends[0]
    return True


cdef int _open_items(
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


cdef class BatchBuilder:
    """Stages messages and seals them as one batch."""

    def __cinit__(self, bint tag_topics):
        self.tag_topics = tag_topics

    def __dealloc__(self):
        free(self.data)
        free(self.pairs)
        free(self.scratch)

    @property
    def count(self):
        """Messages staged."""
        return self.records

    @property
    def size_bytes(self):
        """Bytes of the batch that `seal` would make."""
        return HEADER_BYTES + self.used

    @property
    def max_timestamp_ms(self):
        """The highest timestamp staged."""
        return self.max_timestamp

    cdef int add_raw(
        self, Slice topic, Slice key, Slice value, const RawHeaders *headers, int64_t timestamp_ms
    ) noexcept nogil:
        """Stage one message from borrowed bytes: its index, or one of the ADD_ codes."""
        cdef bint tag = False
        cdef int64_t base = self.base_timestamp if self.records else timestamp_ms
        cdef Py_ssize_t body
        cdef unsigned char *p
        if timestamp_ms < -1 or timestamp_ms > TIMESTAMP_MAX:
            return ADD_TIMESTAMP
        if self.records >= RECORDS_PER_BATCH_MAX:
            return ADD_RECORDS
        if self.tag_topics and topic.size >= 0:
            tag = (
                headers.shadows_topic
                or key.size != topic.size
                or (key.at != topic.at and memcmp(key.at, topic.at, key.size) != 0)
            )
        if headers.count + tag > HEADERS_PER_RECORD_MAX:
            return ADD_HEADERS
        # Each length is at most what a buffer can hold; refuse large ones before adding them up.
        if (
            topic.size > BATCH_BYTES_MAX or key.size > BATCH_BYTES_MAX
            or value.size > BATCH_BYTES_MAX or headers.size > BATCH_BYTES_MAX
        ):
            return ADD_BYTES
        body = (
            1 + varint_bytes(timestamp_ms - base) + varint_bytes(self.records)
            + _sized(key.size) + _sized(value.size)
            + varint_bytes(headers.count + tag) + headers.size
        )
        if tag:
            body += 3 + _sized(topic.size)
        if HEADER_BYTES + self.used + varint_bytes(body) + body > BATCH_BYTES_MAX:
            return ADD_BYTES
        if not _grow(&self.data, &self.room, self.used + body + 10):
            return ADD_MEMORY
        if self.tag_topics and topic.size >= 0:
            if not _grow(&self.pairs, &self.pairs_room, self.pairs_used + 8):
                return ADD_MEMORY
            p = self.pairs + self.pairs_used
            ol_put_le32(p, crc_of(topic.at, topic.size, 0))
            ol_put_le32(p + 4, self.records)
            self.pairs_used += 8
        p = write_varint(self.data + self.used, body)
        p[0] = 0
        p = write_varint(p + 1, timestamp_ms - base)
        p = write_varint(p, self.records)
        p = _write(p, key)
        p = _write(p, value)
        p = write_varint(p, headers.count + tag)
        if tag:
            p[0] = 4
            p[1] = c"~"
            p[2] = c"t"
            p = _write(p + 3, topic)
        if headers.size > 0:
            memcpy(p, headers.at, headers.size)
            p += headers.size
        self.used = p - self.data
        if self.records == 0 or timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        self.base_timestamp = base
        self.records += 1
        return self.records - 1

    cdef int _encode_headers(self, object headers, RawHeaders *out) except -1:
        """Write headers in the record's encoding into the scratch buffer."""
        cdef Slice name, content
        cdef Py_ssize_t used = 0
        cdef unsigned char *p
        cdef object first, second
        out.count = 0
        out.shadows_topic = False
        if len(headers) > HEADERS_PER_RECORD_MAX:
            _refuse(ADD_HEADERS, None)
        for first, second in headers:
            if not PyBytes_CheckExact(first):
                first = bytes(first)
            if second is not None and not PyBytes_CheckExact(second):
                second = bytes(second)
            _borrow(first, &name)
            _borrow(second, &content)
            if used + name.size + max(content.size, 0) > BATCH_BYTES_MAX:
                _refuse(ADD_BYTES, None)
            # The sequence may have more items than its length says: count what is written.
            if out.count >= HEADERS_PER_RECORD_MAX:
                _refuse(ADD_HEADERS, None)
            if not _grow(
                &self.scratch, &self.scratch_room, used + name.size + max(content.size, 0) + 20
            ):
                raise MemoryError
            if out.count == 0:
                out.shadows_topic = name.size == 2 and memcmp(name.at, b"~t", 2) == 0
            p = _write(_write(self.scratch + used, name), content)
            used = p - self.scratch
            out.count += 1
        out.at = self.scratch
        out.size = used
        return 0

    cdef int _add(
        self, object topic, object key, object value, object headers, object timestamp_ms
    ) except -1:
        cdef Slice t, k, v
        cdef RawHeaders h
        cdef int index
        cdef int64_t stamp = 0
        cdef Py_buffer key_view, value_view
        cdef bint key_held = False, value_held = False
        try:
            stamp = timestamp_ms
        except OverflowError:
            _refuse(ADD_TIMESTAMP, timestamp_ms)
        if topic is not None and not PyBytes_CheckExact(topic):
            topic = bytes(topic)
        _borrow(topic, &t)
        try:
            if not _borrow(key, &k):
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                key_held = True
                k.at = <bytes_at> key_view.buf
                k.size = key_view.len
            if not _borrow(value, &v):
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                value_held = True
                v.at = <bytes_at> value_view.buf
                v.size = value_view.len
            # Last: it may run Python code, and the scratch buffer must not move after it.
            h.at = NULL
            h.size = 0
            h.count = 0
            h.shadows_topic = False
            if not (PyTuple_CheckExact(headers) and PyTuple_GET_SIZE(headers) == 0):
                self._encode_headers(headers, &h)
            index = self.add_raw(t, k, v, &h, stamp)
        finally:
            if key_held:
                PyBuffer_Release(&key_view)
            if value_held:
                PyBuffer_Release(&value_view)
        if index < 0:
            _refuse(index, timestamp_ms)
        return index

    def add(self, topic, key, value, headers, timestamp_ms):
        """Stage one message. Returns its index in the batch."""
        return self._add(topic, key, value, headers, timestamp_ms)

    def extend(self, messages):
        """Stage many messages, or none of them."""
        cdef Py_ssize_t used = self.used, pairs_used = self.pairs_used
        cdef int32_t records = self.records
        cdef int64_t base_timestamp = self.base_timestamp, max_timestamp = self.max_timestamp
        cdef object message, topic, key, value, headers, timestamp_ms
        try:
            for message in messages:
                topic, key, value, headers, timestamp_ms = message
                self._add(topic, key, value, headers, timestamp_ms)
        except BaseException:
            self.used = used
            self.pairs_used = pairs_used
            self.records = records
            self.base_timestamp = base_timestamp
            self.max_timestamp = max_timestamp
            raise

    def extend_columns(self, keys, values, Py_ssize_t first, Py_ssize_t end, int64_t timestamp_ms):
        """Stage the rows [first, end) of columns, or none of them; `keys` may be None."""
        cdef Py_ssize_t used = self.used, row
        cdef int32_t records = self.records
        cdef int64_t base_timestamp = self.base_timestamp, max_timestamp = self.max_timestamp
        cdef Items key_items, value_items
        cdef Slice topic, key, value
        cdef RawHeaders headers
        cdef int index = 0
        if not 0 <= first <= end:
            raise InvalidRequest(f"rows {first} to {end} are no rows of a column")
        key_items.ends = NULL
        if keys is not None:
            keys = [memoryview(part).cast("B") for part in keys]  # they live as long as the items
            _open_items(keys[0], keys[1], keys[2], end, &key_items)
        values = [memoryview(part).cast("B") for part in values]
        _open_items(values[0], values[1], values[2], end, &value_items)
        topic.at = NULL
        topic.size = -1
        headers.at = NULL
        headers.size = 0
        headers.count = 0
        headers.shadows_topic = False
        with nogil:
            for row in range(first, end):
                if not _item(&key_items, row, &key) or not _item(&value_items, row, &value):
                    index = ADD_OFFSETS
                    break
                index = self.add_raw(topic, key, value, &headers, timestamp_ms)
                if index < 0:
                    break
        if index < 0:
            self.used = used
            self.records = records
            self.base_timestamp = base_timestamp
            self.max_timestamp = max_timestamp
            if index == ADD_OFFSETS:
                raise InvalidRequest(f"the offsets of row {row} lie outside of its column's data")
            _refuse(index, timestamp_ms)

    def topics(self):
        """u32 pairs (topic hash, index), little endian, of the staged messages with a topic."""
        return PyBytes_FromStringAndSize(<char *> self.pairs, self.pairs_used)

    def seal(
        self,
        int64_t base_offset,
        int32_t leader_epoch=0,
        int16_t attributes=0,
        int64_t producer_id=-1,
        int16_t producer_epoch=-1,
        int32_t base_sequence=-1,
    ):
        """Seal the staged messages as one batch. The builder is empty again."""
        cdef Head head
        head.base_offset = base_offset
        head.leader_epoch = leader_epoch
        head.attributes = attributes
        head.producer_id = producer_id
        head.producer_epoch = producer_epoch
        head.base_sequence = base_sequence
        return self._seal(&head)

    cdef bytes seal_plain(self, int64_t base_offset, int32_t leader_epoch):
        """Seal a batch that no producer numbers."""
        cdef Head head
        head.base_offset = base_offset
        head.leader_epoch = leader_epoch
        head.attributes = 0
        head.producer_id = -1
        head.producer_epoch = -1
        head.base_sequence = -1
        return self._seal(&head)

    cdef bytes _seal(self, Head *head):
        cdef bytes out
        cdef unsigned char *p
        if self.records == 0:
            raise InvalidRequest("nothing is staged: a batch needs a message")
        if head.base_offset < 0:
            raise InvalidRequest(f"base offset {head.base_offset} is negative")
        out = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + self.used)
        p = <unsigned char *> PyBytes_AS_STRING(out)
        memcpy(p + HEADER_BYTES, self.data, self.used)
        head.last_delta = self.records - 1
        head.base_timestamp = self.base_timestamp
        head.max_timestamp = self.max_timestamp
        head.count = self.records
        seal_batch(p, HEADER_BYTES + self.used, head)
        self.used = self.pairs_used = 0
        self.records = 0
        self.base_timestamp = self.max_timestamp = 0
        _shrink(&self.data, &self.room)
        _shrink(&self.pairs, &self.pairs_room)
        _shrink(&self.scratch, &self.scratch_room)
        return out


cdef void _shrink(unsigned char **data, Py_ssize_t *room) noexcept nogil:
    cdef void *moved
    if room[0] > KEEP_BYTES:
        moved = realloc(data[0], KEEP_BYTES)
        if moved is not NULL:
            data[0] = <unsigned char *> moved
            room[0] = KEEP_BYTES
