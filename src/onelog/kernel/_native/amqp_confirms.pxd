"""C face of AMQP's publishes that wait to be confirmed."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from onelog.kernel._native.amqp_channel cimport AmqpCounters, AmqpPeer
from onelog.kernel._native.stage cimport Stage, StageCall

cdef class ByteCount:
    # As in the twin.
    cdef public int64_t size_bytes
    cdef public int64_t _bytes_max
    cdef public object _pauses
    cdef public object _why

    cpdef int add(self, int64_t size_bytes) except -1

@cython.freelist(256)
cdef class PublishRun:
    # As in the twin.
    cdef public object publishing
    cdef public int64_t count
    cdef public int outcome
    cdef public object came_as
    cdef public int64_t size_bytes
    cdef public object results
    cdef public Py_ssize_t index
    cdef public object stage_runs

cdef class Confirms:
    cdef list runs
    cdef public uint64_t first_tag
    cdef public int64_t unconfirmed

    cpdef bytes take(self, int channel)

cdef class StageRuns(StageCall):
    cdef readonly list results
    # Where the tick of the kernel wrote the staged records; None: `results` knows.
    cdef readonly Stage stage
    cdef readonly int64_t base
    cdef readonly list runs
    cdef readonly Py_ssize_t index
    cdef PublishPass turn

    cpdef finish(self, Py_ssize_t count, error)

cdef class PublishPass:
    cdef object call_soon
    cdef object tick_soon
    cdef dict refused
    cdef object tell_slowly
    cdef object tell_bound
    cdef list taken
    # The stage that the last run waits for, the rows that wait for it, and the call among them.
    cdef Stage stage
    cdef list rows
    cdef StageRuns waiting
    # Whether staged publishes have to be counted in quotas.
    cdef public bint is_metered

    cpdef int took(self, PublishRun run) except -1
    cdef int wait(self, Stage stage, PublishRun run) except -1

cdef class PublishingEnd:
    # As in the twin.
    cdef public AmqpPeer connection
    cdef public ByteCount unwritten
    cdef public PublishPass turn
    cdef public int number
    cdef public bint confirms
    cdef public bint _closed
    cdef public Confirms _confirms
    cdef public int64_t published
    cdef public int64_t _unwritten
    cdef public list _waiters

    cdef bint stage_quickly(
        self, int64_t count, Stage stage, bytes data, Py_ssize_t start, Py_ssize_t end
    ) except -1
    cdef int confirm_quickly(self) except -1
