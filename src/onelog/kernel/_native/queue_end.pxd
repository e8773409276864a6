"""C face of queues' ends."""

from libc.stdint cimport int64_t

cdef class FlightCursor:
    # As in the twin.
    cdef public int64_t count
    cdef public object on_change
    cdef public bint is_marked
    cdef public tuple flight_key
    # First offset and count of each run; those from `head` to `end` are in flight.
    cdef int64_t *runs
    cdef Py_ssize_t head
    cdef Py_ssize_t end
    cdef Py_ssize_t room

    cdef int fly(self, int64_t first, int64_t count) except -1
    cdef bint land(self, int64_t first, int64_t count) except -1

cdef class LineEnd:
    # As in the twin.
    cdef public int64_t source
    cdef public int64_t taken
    cdef public bint is_mixed

cdef class ReadyEnd:
    # As in the twin.
    cdef public Py_ssize_t size
    cdef public list lines

cdef class ConsumerEnd:
    # As in the twin.
    cdef public bint no_ack
    cdef public bint is_plain

    cdef int64_t quick_room(self) except? -1
    cdef int64_t send(self, QueueEnd queue, int64_t place, int64_t count, object data) except -1

cdef class QueueEnd:
    # As in the twin.
    cdef public object _ready
    cdef public object cursor
    cdef public list _keys
    cdef public list _line
    cdef public bint _pumping
    cdef public bint is_deleted
    cdef public int64_t published
    cdef public int64_t delivered
    cdef public int64_t acked
    cdef public int64_t unacked

    cdef int64_t pass_quickly(self, int64_t place, int64_t count, object data) except -1
    cdef bint settle_quickly(self, int64_t place, int64_t count) except -1

cdef class QueueFeed:
    # Topic to target, as `topic_runs` knows them; always the same dict.
    cdef dict topics
    cdef object resolve
    cdef object stumbled
    cdef object open_batches
    cdef object take_run
    cdef object hand_out

    cdef int64_t route(self, object source, object data, int64_t number, object fixed) except? -1
