"""MQTT's subscribers that are behind, compiled: the records of a batch at some places go to all.

Rules: as `MqttFanout.deliver` for the records at these places, but nothing is written: the caller
writes when it has gone over more batches.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free

from onelog.kernel._native.format cimport Span
from onelog.kernel._native.mqtt_delivery cimport Delivery
from onelog.kernel._native.mqtt_fanout cimport MqttFanout
from onelog.kernel._native.source cimport Source, close_source, open_source, walk


cdef int _find(const Source *source, const Span *spans, int64_t offset) noexcept nogil:
    """The index of the first record at an offset or behind it."""
    cdef int low = 0, high = source.head.count, middle
    cdef int64_t delta = offset - source.head.base_offset
    if delta <= 0:
        return 0
    if source.head.count == source.head.last_delta + 1:
        return <int> min(delta, <int64_t> high)
    while low < high:
        middle = (low + high) // 2
        if spans[middle].offset_delta < delta:
            low = middle + 1
        else:
            high = middle
    return low


def deliver_places(
    MqttFanout fanout not None, data, list offsets not None, int32_t partition, int64_t now_ms
):
    """Give the records of one plain batch at ascending offsets to the fan-out's subscribers.

    Offsets without a record are left out. Returns the offset of the record that could not be
    delivered, or None; the subscribers that have bytes to write; and those that fell behind, with
    the offset of the first record that they did not get. A damaged batch raises CorruptBatch.
    """
    cdef Source source
    cdef Span *spans
    cdef int64_t offset
    cdef int index
    cdef object failed = None
    cdef Delivery delivery = Delivery.__new__(Delivery)
    delivery.touched = []
    delivery.fallen = []
    delivery.partition = partition
    open_source(&source, data, 0, None, False)
    try:
        spans = walk(&source)
    except BaseException:
        close_source(&source)
        raise
    try:
        for offset in offsets:
            index = _find(&source, spans, offset)
            if index == source.head.count or (
                source.head.base_offset + spans[index].offset_delta != offset
            ):
                continue
            try:
                fanout._record(delivery, &source, &spans[index], now_ms, None)
            except Exception:
                failed = offset  # the next read from there meets it again, alone
                break
        delivery.end()
    finally:
        free(spans)
        close_source(&source)
        fanout.delivered += delivery.given
    return failed, delivery.touched, delivery.fallen
