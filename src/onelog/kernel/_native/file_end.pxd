"""C face of the end of a log."""

from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.build cimport BatchBuilder

cdef class FileEnd:
    # As in the twin.
    cdef public int64_t base_offset
    cdef public int64_t size_bytes
    cdef public int64_t last_batch_at
    cdef public int64_t max_timestamp_ms
    cdef public int64_t created_ms
    cdef public int64_t reserved_bytes
    cdef public int64_t note_at
    cdef public object indexes
    cdef public object settings
    cdef public object writer
    cdef Py_ssize_t raw_bytes
    # The bounds that these settings have.
    cdef object bounds_of
    cdef int64_t segment_bytes
    cdef int64_t segment_age_ms
    cdef int64_t index_interval_bytes

    cdef int _learn_bounds(self) except -1
    cdef bytes put(
        self,
        BatchBuilder builder,
        int64_t base_offset,
        int32_t leader_epoch,
        bint index_topics,
        int64_t at_ms,
    )

cdef class LogEnd:
    # As in the twin.
    cdef public object lock
    cdef public object stopped
    cdef public bint closed
    cdef public bint frozen
    cdef public int64_t end
    cdef public int64_t unsaved_bytes
    cdef public FileEnd active
    cdef public object clock
    cdef public int64_t durable
    cdef public object maintenance
    cdef public list unsynced
    cdef public bint directory_dirty

    cdef bytes put(self, BatchBuilder builder, int32_t leader_epoch, bint index_topics)
