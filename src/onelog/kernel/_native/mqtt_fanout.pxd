"""C face of MQTT's fan-out."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.format cimport Span
from onelog.kernel._native.mqtt_delivery cimport Delivery
from onelog.kernel._native.mqtt_plan cimport Plan
from onelog.kernel._native.source cimport Source

cdef enum:
    SLOTS = 512

cdef class Known:
    cdef bytes topic
    cdef Plan plan

cdef struct Slot:
    # A known topic by its hash; borrowed, and valid in its generation.
    PyObject *known
    uint64_t generation
    uint32_t hash

cdef class MqttFanout:
    cdef object properties
    cdef object allows
    # Whether a record with the retain header was seen since the owner set it to False.
    cdef public bint retained
    # Outputs whose writer raised, with the error; the reader empties it.
    cdef public list broken
    # The offset that `deliver` has reached.
    cdef int64_t reached
    # Messages given to subscribers, and bytes written for them here.
    cdef readonly int64_t delivered
    cdef readonly int64_t sent_bytes
    cdef object trie
    cdef dict subscriptions
    cdef dict numbers
    cdef int64_t next_number
    cdef dict plans
    cdef dict by_numbers
    cdef uint64_t generation
    cdef Slot slots[SLOTS]

    cdef int _forget(self, bytes topic_filter) except -1
    cdef int _forget_all(self) except -1
    cdef Plan _find(self, Slice topic)
    cdef tuple _allowed(self, tuple numbers, bytes topic)
    cdef Known _plan(self, bytes topic)
    cdef tuple hand_out(
        self, object data, int32_t partition, int64_t start_offset, int64_t now_ms,
        bytes default_topic,
    )
    cdef list _write(self, list touched)
    cdef bint _batch(
        self, Delivery delivery, object data, Py_ssize_t at, int64_t start_offset, int64_t now_ms,
        bytes default_topic, bint begun,
    ) except -1
    cdef int _record(
        self, Delivery delivery, const Source *source, const Span *span, int64_t now_ms,
        bytes default_topic,
    ) except -1
