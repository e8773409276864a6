"""C face of stages and routes."""

from onelog.kernel._native.build cimport BatchBuilder

cdef class Stage:
    cdef public object owner
    cdef readonly BatchBuilder builder
    cdef BatchBuilder spare
    cdef readonly list dirty
    cdef public Py_ssize_t number

    cdef int join(self) except -1

cdef class MqttRoute:
    cdef readonly bytes topic
    cdef readonly Stage stage
    cdef public Py_ssize_t value_bytes_max
