"""C face of MQTT's acknowledgements."""

cimport cython
from libc.stdint cimport int64_t, uint16_t

from onelog.kernel._native.format cimport ol_put16
from onelog.kernel._native.mqtt_output cimport MqttOutput
from onelog.kernel._native.outbox cimport Receiver
from onelog.kernel._native.stage cimport StageCall

cdef enum:
    STAGES_MAX = 65536

cdef class MqttAcks

cdef class MqttPass:
    cdef readonly list dirty
    cdef readonly list acking
    cdef object clock
    cdef object tick_soon
    cdef object reason_of
    cdef readonly Py_ssize_t bytes_max
    cdef readonly int64_t received_bytes
    cdef readonly int64_t received_messages
    cdef readonly int64_t answered_bytes
    cdef int64_t now_ms

    cpdef list take_acks(self)
    cdef int _spread(
        self, MqttAcks acks, list waiting, Py_ssize_t *seen, Py_ssize_t turn
    ) except -1

cdef class MqttAnswers

cdef class StageAcks(StageCall):
    cdef list waiting
    # Of the stage in the pass.
    cdef Py_ssize_t number
    cdef object reason_of

    cpdef finish(self, Py_ssize_t count, error)

@cython.freelist(64)
cdef class MqttAcks:
    cdef MqttAnswers row
    # Packet id and stage number of each.
    cdef unsigned char *packets
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    # Answers instead of them, if it is not None.
    cdef object act
    # Stages that are not written yet.
    cdef Py_ssize_t left
    cdef dict failed

cdef class MqttAnswers(Receiver):
    cdef readonly MqttOutput output
    cdef public object owner
    cdef MqttPass turn
    # Publishes of QoS 1 and 2 that wait for their last answer.
    cdef public Py_ssize_t unanswered
    # Packet id and stage number of staged publishes that are not taken yet.
    cdef unsigned char *acks
    cdef Py_ssize_t acks_used
    cdef Py_ssize_t acks_room
    # Acknowledgements that wait for stages to be written, in the order in which they go out: the
    # first, and the others from `sent` on; None: there are none.
    cdef MqttAcks first
    cdef list behind
    cdef Py_ssize_t sent
    # One that was sent, for the next that wait.
    cdef MqttAcks spare

    cdef int grow_acks(self) except -1
    cdef int join_pass(self) except -1
    cdef bytes _take(self)
    cdef MqttAcks wait(self, Py_ssize_t left)
    cdef int _append(self, MqttAcks acks) except -1
    cdef int _keep_spare(self, MqttAcks acks) except -1
    cdef int send_ready(self) except -1
    cdef int _step(self) except -1
    cdef int _send(self, MqttAcks acks) except -1


cdef inline int need_ack_space(MqttAnswers row) except -1:
    """Have room for one more, before a publish is staged that is to be acknowledged."""
    return row.grow_acks() if row.acks_used + 4 > row.acks_room else 0


cdef inline int note_ack(MqttAnswers row, int packet_id, Py_ssize_t number) except -1:
    """Acknowledge a publish when the stage of this number is written; there is room."""
    cdef unsigned char *to = row.acks + row.acks_used
    if row.acks_used == 0:
        row.join_pass()
    ol_put16(to, <uint16_t> packet_id)
    ol_put16(to + 2, <uint16_t> number)
    row.acks_used += 4
    return 0
