"""The sources of live feeds, compiled: a batch that became visible goes to its listener.

Rules: the twin is the specification. A batch goes straight on here if nothing else has to come
first: it begins where the source stands, nothing holds the source back, and the listener is MQTT's
fan-out, is not concerned, or feeds queues as before. Python gets every other batch, and whatever
the fan-out leaves.
"""

from libc.stdint cimport int64_t

from onelog.kernel._native.clock cimport read_clock
from onelog.kernel._native.mqtt_fanout cimport MqttFanout
from onelog.kernel._native.queue_end cimport QueueFeed


cdef class Unconcerned:
    """What a listener is not concerned with, until its `turn` changes."""


cdef class FeedSource:
    """One partition that a listener follows."""

    def __init__(self):
        self.unconcerned_since = self.concerned_since = -1

    def __call__(self, data):
        """Batches became visible."""
        self.live.feed(self, data)

    cdef int take(self, object data, int64_t first, int64_t end) except -1:
        """The batch from `first` to `end` became visible."""
        if self.held or self.busy or self.position != first or self.held_back:
            self.live.feed(self, data)
        elif self.unconcerned is not None and self.unconcerned_since == self.unconcerned.turn:
            self.position = end
        elif self.queue_feed is not None and self._queues_as_before():
            self._feed_queues(data, end)
        elif self.fanout is None:
            self.live.feed(self, data)
        else:
            self._hand_out(data, end)
        return 0

    cdef bint _queues_as_before(self) except -1:
        """Whether queues take records of this partition as they took the batch before."""
        return (
            self.unconcerned is not None
            and self.concerned_since == self.unconcerned.turn
            and self.stream.record.fixed_topic is None
        )

    cdef int _feed_queues(self, object data, int64_t end) except -1:
        cdef object failure = None
        self.busy = True
        self.missed = False
        try:
            self.position = self.queue_feed.route(self, data, self.number, None)
        except Exception as error:
            failure = error
        finally:
            self.busy = False
        if failure is not None or self.missed or self.position < end or self.held_back:
            self.live.fed(self, data, failure)
        return 0

    cdef int _hand_out(self, object data, int64_t end) except -1:
        cdef MqttFanout fanout = self.fanout
        cdef object failure = None
        cdef bytes topic = None
        cdef int64_t following
        self.busy = True
        self.missed = False
        try:
            if self.stream.record.fixed_topic is not None:
                topic = self.fixed_topic
            reached, touched, fallen = fanout.hand_out(
                data, self.number, self.position, read_clock(self.clock), topic
            )
            following = reached
            if touched or fallen or fanout.retained or fanout.broken:
                self.live.listener.handed_out(self, data, following, touched, fallen)
            else:
                self.position = following
        except Exception as error:
            failure = error
        finally:
            self.busy = False
        if failure is not None or self.missed or self.position < end or self.held_back:
            self.live.fed(self, data, failure)
        return 0
