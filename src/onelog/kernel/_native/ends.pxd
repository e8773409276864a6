"""C face of a partition's ends."""

from libc.stdint cimport int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.file_end cimport LogEnd

cdef class VisibleEnd:
    # As in the twin.
    cdef public int64_t high_watermark
    cdef public int64_t gap_start
    cdef public int64_t gap_end
    cdef public tuple feeds
    cdef public object unseen
    cdef public object waiters
    cdef public object stable_waiters
    cdef public object producers
    cdef public object fed_topics
    cdef public bint feeding
    cdef public bint topics_wanted

    cdef bint is_idle(self) except -1
    cdef int show_built(self, int64_t base, int64_t end, bytes data, object topics) except -1

cdef class PartitionEnd:
    # As in the twin.
    cdef public int64_t end_offset
    cdef public int64_t records_appended
    cdef public int64_t unsnapshotted_bytes
    cdef public int64_t leader_epoch
    cdef public object refusal
    cdef public bint at_once
    cdef public bint is_noted
    cdef public bint stamps
    cdef public VisibleEnd visible
    cdef public LogEnd log_end

    cdef int64_t put(self, BatchBuilder builder, bint index_topics) except -2
