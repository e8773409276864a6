"""C face of AMQP's way out."""

from libc.stdint cimport int64_t, uint64_t

cdef class AmqpEnvelopes:
    cdef dict known
    cdef readonly Py_ssize_t bytes_max
    cdef readonly Py_ssize_t held_bytes

cdef bytes encode_run(
    object data,
    int64_t first,
    int64_t count,
    int channel,
    bytes consumer_tag,
    uint64_t delivery_tag,
    Py_ssize_t frame_bytes_max,
    AmqpEnvelopes envelopes,
    Py_ssize_t bytes_max,
    Py_ssize_t *sent_count,
)

cdef list find_runs(object data, object fixed, dict known, object resolve, int64_t *end_found)
