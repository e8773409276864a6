"""C face of a delivery: one call's way through the records."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.build cimport Slice
from onelog.kernel._native.mqtt_output cimport MqttOutput
from onelog.kernel._native.mqtt_plan cimport Plan, Target
from onelog.kernel._native.mqtt_sink cimport Packet, Sink

cdef struct Mark:
    # A record of a run: the position of its packet id and the end of its packet, by version.
    int64_t offset
    Py_ssize_t id_at[2]
    Py_ssize_t end[2]

@cython.final
cdef class Delivery:
    cdef list touched
    cdef list fallen
    cdef int32_t partition
    # The topic of the record before, in bytes that outlive the call; NULL: there is none.
    cdef Slice topic
    cdef Plan topic_plan

    # The run: its plan and its QoS. Arrays of two are by version: below 5, and 5.
    cdef Plan plan
    cdef int qos
    # Targets below `shared` share QoS 0 packets: where those go, NULL if there are no such targets;
    # and the target, if there is only one.
    cdef int shared
    cdef Sink *to[2]
    cdef PyObject *alone[2]
    cdef Sink sinks[2]
    # Targets from `shared` to `numbered` differ in packet ids only: they get copies of a model, or
    # are written to directly if there is only one. Later targets have options of their own.
    cdef int numbered
    cdef bint modelled[2]
    cdef const Target *single[2]
    cdef Sink models[2]
    cdef Mark *marks
    cdef int marks_count
    cdef int marks_room
    # How many of the shared targets follow the end, and the messages given so far.
    cdef int sharers
    cdef int64_t given

    cdef int begin(self, Plan plan, int qos) except -1
    cdef int give(self, const Packet *packet, int64_t offset, Py_ssize_t left) except -1
    cdef int end(self) except -1

    cdef int _give_model(self, const Packet *packet, int64_t offset, Py_ssize_t hint) except -1
    cdef int _give_one(
        self, const Target *target, const Packet *packet, int64_t offset, Py_ssize_t hint
    ) except -1
    cdef int _end_shared(self, Plan plan, int group) except -1
    cdef int _end_numbered(self, Plan plan) except -1
    cdef int _copy_model(self, MqttOutput output, int group) except -1
    cdef int _touch(self, MqttOutput output) except -1
