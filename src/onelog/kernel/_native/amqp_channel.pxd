"""C face of AMQP's connections, channels and what they hold."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from onelog.kernel._native.amqp_delivery cimport AmqpEnvelopes
from onelog.kernel._native.queue_end cimport ConsumerEnd, QueueEnd

cdef class AmqpCounters:
    # As in the twin.
    cdef public int64_t sent_bytes
    cdef public int64_t received_bytes
    cdef public int64_t published
    cdef public int64_t confirmed

cdef class AmqpPeer:
    # As in the twin.
    cdef public AmqpCounters counters
    cdef public object _transport
    cdef public bint _writing
    cdef public bint is_open
    cdef public int64_t sent_bytes
    cdef public int64_t received_bytes
    cdef public Py_ssize_t frame_bytes_max
    cdef public int64_t unacked_max
    cdef public AmqpEnvelopes envelopes
    cdef public object loop_time
    cdef public dict channels
    cdef public object seat

    cdef int send_frames(self, bytes data) except -1
    cdef bint take_ack(self, int channel, uint64_t tag, bint multiple) except -1

cdef class ChannelEnd:
    # As in the twin.
    cdef public int number
    cdef public object consuming
    cdef public object publishing
    cdef public object transaction
    cdef public object _publish
    cdef public object _waiting
    cdef public bint _busy
    cdef public bint _closing

    cdef bint is_idle(self) except -1

cdef class HeldEnd:
    # As in the twin.
    cdef public list runs
    cdef public list tags
    cdef public int64_t size

@cython.freelist(256)
cdef class UnsettledRun:
    # As in the twin.
    cdef public uint64_t tag
    cdef public int64_t count
    cdef public object queue
    cdef public int64_t place
    cdef public object consumer
    cdef public double since

cdef class ConsumingEnd:
    # As in the twin.
    cdef public AmqpPeer connection
    cdef public HeldEnd _held
    cdef public int number
    cdef public uint64_t next_tag
    cdef public int64_t _channel_prefetch
    cdef public int64_t _counted
    cdef public int64_t _aside
    cdef public bint _is_flowing
    cdef public object _turns
    cdef public object _late

    cdef bint ack_quickly(self, uint64_t tag, bint multiple) except -1
    cdef bint _holds(self, uint64_t tag) except -1
    cdef bint _settle(self, UnsettledRun run, int64_t count) except -1

cdef class AmqpConsumerEnd(ConsumerEnd):
    # As in the twin.
    cdef public ConsumingEnd owner
    cdef public object queue
    cdef public bytes wire_tag
    cdef public int64_t prefetch
    cdef public int64_t unacked

    cdef int64_t quick_room(self) except? -1
    cdef int64_t send(self, QueueEnd queue, int64_t place, int64_t count, object data) except -1
