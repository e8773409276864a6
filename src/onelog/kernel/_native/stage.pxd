"""C face of stages and routes."""

from libc.stdint cimport int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.ends cimport PartitionEnd

cdef class Stage:
    cdef public object owner
    # The partition, if a tick may append to it without its owner.
    cdef readonly PartitionEnd end
    cdef readonly BatchBuilder builder
    cdef BatchBuilder spare
    cdef readonly list dirty
    cdef public Py_ssize_t number

    cdef int join(self) except -1
    cpdef BatchBuilder take(self)
    cpdef int give_back(self, BatchBuilder builder) except -1

cdef class StageCall:
    cdef int written(self, Stage stage, int64_t base) except -1

cdef class MqttRoute:
    cdef readonly bytes topic
    cdef readonly Stage stage
    cdef public Py_ssize_t value_bytes_max
