"""C face of the sources of live feeds."""

from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.mqtt_fanout cimport MqttFanout
from onelog.kernel._native.queue_end cimport QueueFeed

cdef class FeedSource:
    # As in the twin.
    cdef public int32_t number
    cdef public int64_t position
    cdef public object stream
    cdef public object live
    cdef public list held_back
    cdef public tuple held
    cdef public bint busy
    cdef public bint missed
    cdef public object clock
    cdef public MqttFanout fanout
    cdef public Unconcerned unconcerned
    cdef public int64_t unconcerned_since
    cdef public QueueFeed queue_feed
    cdef public int64_t concerned_since

    cdef int take(self, object data, int64_t first, int64_t end) except -1
    cdef bint _queues_as_before(self) except -1
    cdef int _feed_queues(self, object data, int64_t end) except -1
    cdef int _hand_out(self, object data, int64_t end) except -1

cdef class Unconcerned:
    cdef public int64_t turn
