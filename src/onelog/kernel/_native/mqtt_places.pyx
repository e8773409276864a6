"""MQTT's subscribers that are behind, compiled: the records of a batch at some places go to all.

Rules: as `MqttFanout.deliver` for the records at these places, but nothing is written: the caller
writes when it has gone over more batches. All records at the places are checked before the first
one goes out. Of a batch that has every offset, the others are passed over by their lengths, and are
not checked; of one that lost records, all are.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from onelog.kernel._native.format cimport (
    BAD_OFFSET_DELTA,
    BAD_RECORD_LENGTH,
    BAD_VARINT,
    RECORD_BYTES_MIN,
    Span,
    bytes_at,
    check_deltas,
    read_span,
    read_varint,
)
from onelog.kernel._native.mqtt_delivery cimport Delivery
from onelog.kernel._native.mqtt_fanout cimport MqttFanout
from onelog.kernel._native.source cimport Source, close_source, fail, open_source, walk

cdef enum:
    NOBODY = -1  # the offset delta of a place without a record


cdef int _every(Source *source, list offsets, Span *found) except -1:
    """The records at these places of a batch that has every offset."""
    cdef bytes_at at = source.data
    cdef int64_t delta, left, number = 0
    cdef int place = 0, code
    cdef int64_t offset
    for offset in offsets:
        delta = offset - source.head.base_offset
        found[place].offset_delta = NOBODY
        if 0 <= delta < source.head.count:
            if delta < number:
                at, number = source.data, 0
            while number < delta:
                if read_varint(&at, source.end, &left):
                    fail(source, BAD_VARINT, <int> number)
                if left < RECORD_BYTES_MIN - 1 or left > source.end - at:
                    fail(source, BAD_RECORD_LENGTH, <int> number)
                at += left
                number += 1
            code = read_span(source.data, at, source.end, &found[place])
            if code == 0:
                code = check_deltas(&source.head, &found[place], <int32_t> (delta - 1))
            if code == 0 and found[place].offset_delta != delta:
                code = BAD_OFFSET_DELTA
            if code:
                fail(source, code, <int> delta)
        place += 1
    return 0


cdef int _some(Source *source, list offsets, Span *found) except -1:
    """The records at these places of a batch that lost some."""
    cdef Span *spans = walk(source)
    cdef int place = 0, low, high, middle
    cdef int64_t offset, delta
    try:
        for offset in offsets:
            delta = offset - source.head.base_offset
            low, high = 0, source.head.count
            while low < high:
                middle = (low + high) // 2
                if spans[middle].offset_delta < delta:
                    low = middle + 1
                else:
                    high = middle
            found[place].offset_delta = NOBODY
            if low < source.head.count and spans[low].offset_delta == delta:
                found[place] = spans[low]
            place += 1
    finally:
        free(spans)
    return 0


cdef Span *_find(Source *source, list offsets) except NULL:
    """The records at these places, checked; the caller frees the array."""
    cdef Span *found = <Span *> malloc((<size_t> len(offsets) + 1) * sizeof(Span))
    if found is NULL:
        raise MemoryError
    try:
        if source.head.count == source.head.last_delta + 1:
            _every(source, offsets, found)
        else:
            _some(source, offsets, found)
    except BaseException:
        free(found)
        raise
    return found


def deliver_places(
    MqttFanout fanout not None, data, list offsets not None, int32_t partition, int64_t now_ms
):
    """Give the records of one plain batch at ascending offsets to the fan-out's subscribers.

    Offsets without a record are left out. Returns the offset of the record that could not be
    delivered, or None; the subscribers that have bytes to write; and those that fell behind, with
    the offset of the first record that they did not get. Damage that is met raises CorruptBatch
    before anything goes out.
    """
    cdef Source source
    cdef Span *spans
    cdef int64_t offset
    cdef int place = 0
    cdef object failed = None
    cdef Delivery delivery = Delivery.__new__(Delivery)
    delivery.touched = []
    delivery.fallen = []
    delivery.partition = partition
    open_source(&source, data, 0, None, False)
    try:
        spans = _find(&source, offsets)
    except BaseException:
        close_source(&source)
        raise
    try:
        for offset in offsets:
            if spans[place].offset_delta != NOBODY:
                try:
                    fanout._record(delivery, &source, &spans[place], now_ms, None)
                except Exception:
                    failed = offset  # the next read from there meets it again, alone
                    break
            place += 1
        delivery.end()
    finally:
        free(spans)
        close_source(&source)
        fanout.delivered += delivery.given
    return failed, delivery.touched, delivery.fallen
