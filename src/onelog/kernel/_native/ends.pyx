"""The ends of a partition, compiled: a batch is appended and shown in one call.

Rules: the twin is the specification. A batch is appended here if nothing else has to come first:
the partition accepts it as it is, the batch is visible as soon as it is written, nobody waits, and
no earlier batch waits for its feeds. Otherwise the caller takes the long way, with nothing changed.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.feed cimport FeedSource

from onelog.base.errors import StorageError
from onelog.kernel import types

cdef int64_t SNAPSHOT_BYTES = types.SNAPSHOT_BYTES


cdef class VisibleEnd:
    """The end that readers see, and those who are fed with it."""

    cdef bint is_idle(self) except -1:
        """Whether a batch can be shown without a look at those who wait."""
        return not (
            self.feeding
            or self.gap_start < self.gap_end
            or self.unseen
            or self.waiters.rows
            or self.stable_waiters.rows
        )

    cdef int show_built(self, int64_t base, int64_t end, bytes data, object topics) except -1:
        """Let a batch that was just written be seen; it `is_idle`."""
        cdef object producers = self.producers
        self.high_watermark = end
        if producers.ended:
            producers.settle(end)
        if self.feeds:
            self.feeding = True
            self.fed_topics = topics
            for feed in self.feeds:
                try:
                    if isinstance(feed, FeedSource):
                        (<FeedSource> feed).take(data, base, end)
                    else:
                        feed(data)
                except Exception as error:
                    self.feed_raised(data, error)
            self.feeding = False
            if self.unseen or self.gap_start < self.gap_end:  # a feed appended
                self.feed()
        return 0


cdef class PartitionEnd:
    """The end of a partition that grows."""

    def append_quickly(self, BatchBuilder builder not None, bint index_topics):
        """Append and show the staged records; -1, with nothing done: take the long way."""
        return self.put(builder, index_topics)

    cdef int64_t put(self, BatchBuilder builder, bint index_topics) except -2:
        cdef VisibleEnd visible = self.visible
        cdef int64_t base = self.end_offset
        cdef int32_t count = builder.records
        cdef object topics = None
        cdef bytes data
        if (
            self.log_end is None
            or self.refusal is not None
            or self.stamps
            or not self.at_once
            or not self.is_noted
            or self.unsnapshotted_bytes + builder.used + 1024 >= SNAPSHOT_BYTES
            or not visible.is_idle()
        ):
            return -1
        if index_topics and visible.topics_wanted:
            topics = builder.topics()
        try:
            data = self.log_end.put(builder, self.leader_epoch, index_topics)
        except StorageError as error:
            self.append_failed(error)
            raise
        if data is None:
            return -1
        self.records_appended += count
        self.end_offset = base + count
        self.unsnapshotted_bytes += PyBytes_GET_SIZE(data)
        visible.show_built(base, base + count, data, topics)
        return base
