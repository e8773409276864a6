"""C face of plans: the subscribers of a topic."""

from cpython.object cimport PyObject

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.mqtt_output cimport MqttOutput

cdef struct Target:
    # One subscriber with all its matching subscriptions; the plan keeps what it borrows.
    PyObject *output
    Slice identifiers
    Slice no_local
    int qos
    bint retain_as_published

cdef class Subscription:
    cdef MqttOutput output
    cdef int qos
    cdef bytes no_local
    cdef bint retain_as_published
    cdef object identifier

cdef class Plan:
    cdef readonly tuple numbers
    cdef list kept
    cdef Target *targets
    # Plain subscribers of QoS 0, then plain ones of QoS 1 and 2, then those with options of their
    # own.
    cdef int strong_from
    cdef int wishes_from
    cdef int count

cdef Plan make_plan(tuple numbers, dict subscriptions)
