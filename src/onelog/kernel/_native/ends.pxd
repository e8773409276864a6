"""C face of a partition's ends."""

cimport cython
from libc.stdint cimport int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.file_end cimport FileEnd, LogEnd
from onelog.kernel._native.sync_threads cimport SyncEnd, SyncTicket

cdef class Pending:
    # The offset of the first and of the last record, and the place among waiters for the last one.
    cdef int64_t base
    cdef int64_t last
    cdef object sequence

    cdef int answer(self, object error) except -1

cdef class VisibleEnd:
    # As in the twin.
    cdef public int64_t high_watermark
    cdef public int64_t gap_start
    cdef public int64_t gap_end
    cdef public tuple feeds
    cdef public object unseen
    cdef public int64_t unseen_bytes
    cdef public object budget
    cdef public dict late
    cdef public object waiters
    cdef public object stable_waiters
    cdef public object producers
    cdef public object fed_topics
    cdef public bint feeding
    cdef public bint topics_wanted
    # Writes that are not visible yet, in the order of the log; the first `answered` have had their
    # answer. None: there never were any.
    cdef list pending
    cdef Py_ssize_t answered

    cdef bint is_idle(self) except -1
    cdef int show_built(self, int64_t base, int64_t end, bytes data, object topics) except -1
    cdef int hold_built(self, int64_t end, bytes data, object topics) except -1
    cdef int await_visible(self, Pending row) except -1
    cdef Pending _next_pending(self)
    cdef int advance_now(self, int64_t end) except -1
    cdef int _feed_now(self) except -1
    cdef int _give_now(self, object data, object topics) except -1

cdef class PartitionEnd:
    # As in the twin.
    cdef public int64_t end_offset
    cdef public int64_t durable
    cdef public int64_t records_appended
    cdef public int64_t unsnapshotted_bytes
    cdef public int64_t leader_epoch
    cdef public int64_t syncs
    cdef public object refusal
    cdef public object stopped
    cdef public object jobs
    cdef public object shared
    cdef public str place
    cdef public bint at_once
    cdef public bint by_sync
    cdef public bint is_noted
    cdef public bint stamps
    cdef public bint syncing
    cdef public bint has_begun
    cdef public VisibleEnd visible
    cdef public LogEnd log_end

    cdef int64_t put(self, BatchBuilder builder, bint index_topics) except -2
    cdef int sync_now(self) except -1
    cdef bint _fly(self) except -1
    cdef object _only_file(self)
    cdef int _landed(self) except -1

@cython.freelist(64)
cdef class Flight(SyncEnd):
    cdef PartitionEnd partition
    cdef readonly LogEnd log
    cdef FileEnd segment
    cdef public int64_t end
    cdef int64_t size_bytes

    cpdef settle(self, object ticket)
