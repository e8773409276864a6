"""C face of a subscriber's way out."""

from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.format cimport bytes_at
from onelog.kernel._native.mqtt_flight cimport Flight
from onelog.kernel._native.mqtt_sink cimport Sink
from onelog.kernel._native.outbox cimport Outbox

cdef class MqttOutput:
    cdef public object owner
    cdef public int version
    cdef public int64_t window
    cdef public Py_ssize_t packet_bytes_max
    cdef public bint live
    cdef public bint touched
    # Its writer; None: the owner takes the bytes. If it is the `write` of a socket of ours,
    # `outbox` is that socket.
    cdef object call
    cdef Outbox outbox
    # Whether its owner has to know of each delivery, because it keeps the state.
    cdef public bint kept
    # Topics that may have an alias, 0 for none (MQTT5 3.1.2.11.5); set it before subscribing.
    cdef public int alias_maximum
    cdef dict aliases
    cdef list chunks
    # The open end of the waiting bytes: bytes of this subscriber alone.
    cdef Sink sink
    cdef Flight flight

    cdef int write(self, bytes chunk) except -1
    cdef int next_packet(self, int32_t partition, int64_t offset, int qos) except -1
    cdef bint settle_packet(self, int packet_id) noexcept
    cdef int free_ids(self) noexcept
    cdef int find_alias(self, bytes topic) except -1
    cdef int free_alias(self, Py_ssize_t topic_bytes) except -1
    cdef int share(self, bytes chunk) except -1
    cdef unsigned char *block(self, Py_ssize_t size) except NULL
    cdef int _append(self, bytes chunk) except -1

cdef bytes puback_packets(bytes_at p, Py_ssize_t count)
