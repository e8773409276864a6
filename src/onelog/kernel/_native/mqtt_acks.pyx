"""MQTT's acknowledgements, compiled: which stages they wait for, and the order of PUBACKs.

Rules:
- A connection's acknowledgements go out in the order of its publishes (MQTT5 4.6.0-2): those of a
  pass wait for the stages that hold its records, and for those of earlier passes.
- No connection waits for a stage that holds only records of others.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free, realloc

from onelog.kernel._native.format cimport bytes_at, ol_get16
from onelog.kernel._native.mqtt_output cimport MqttOutput, puback_packets
from onelog.kernel._native.outbox cimport Receiver
from onelog.kernel._native.stage cimport Stage

from onelog.base.errors import InvalidRequest
from onelog.kernel._native.mqtt_output import encode_acks

cdef enum:
    ACKS_BYTES_KEPT = 1024
    SENT_KEPT = 64


cdef class MqttPass:
    """What all connections share in one pass of the loop.

    `dirty` is the door's list of stages, `acking` gets the inputs that have acknowledgements to
    wait for; the time is asked for once a pass that writes. `reason_of` gives the reason code of an
    error.
    """

    def __init__(
        self, list dirty not None, clock, tick_soon, Py_ssize_t bytes_max, reason_of=None
    ):
        self.dirty = dirty
        self.reason_of = reason_of
        self.acking = []
        self.clock = clock
        self.tick_soon = tick_soon
        self.bytes_max = bytes_max

    def await_stages(self, list dirty not None):
        """The pass ends: let its acknowledgements wait for the stages that are about to be
        written."""
        cdef Py_ssize_t number = 0
        cdef Stage stage
        if not self.acking:
            return
        for found in self.take_acks():
            if found is not None:
                stage = dirty[number]
                stage.owner.rows.append((found, 0, 0))
            number += 1

    cpdef list take_acks(self):
        """Per dirty stage the acknowledgements that wait for it; None: there are none."""
        cdef list waiting = [None] * len(self.dirty)
        cdef StageAcks alone
        cdef Py_ssize_t *seen
        cdef Py_ssize_t turn = 0
        cdef MqttAnswers row
        if len(waiting) == 1:
            alone = _stage_acks(self, 0)
            for row in self.acking:
                alone.waiting.append(row.wait(1))
            waiting[0] = alone
        elif self.acking:
            seen = <Py_ssize_t *> calloc(len(waiting), sizeof(Py_ssize_t))
            if seen is NULL:
                raise MemoryError
            try:
                for row in self.acking:
                    turn += 1
                    self._spread(row.wait(0), waiting, seen, turn)
            finally:
                free(seen)
        self.acking.clear()
        return waiting

    cdef int _spread(
        self, MqttAcks acks, list waiting, Py_ssize_t *seen, Py_ssize_t turn
    ) except -1:
        """Let acknowledgements wait for each of their stages, once."""
        cdef bytes_at packets = acks.packets
        cdef Py_ssize_t position, number, last = -1
        cdef StageAcks found
        for position in range(2, acks.used, 4):
            number = ol_get16(packets + position)
            if number == last:
                continue
            last = number
            assert number < len(waiting), "it was noted in an earlier pass"
            if seen[number] != turn:
                seen[number] = turn
                acks.left += 1
                if waiting[number] is None:
                    waiting[number] = _stage_acks(self, number)
                found = <StageAcks> waiting[number]
                found.waiting.append(acks)
        return 0


cdef class StageAcks:
    """Acknowledgements of a pass that wait for one stage: the publisher tells them of its end."""

    results = None

    cdef int written(self, Stage stage, int64_t base) except -1:
        self.finish(1, None)
        return 0

    cpdef finish(self, Py_ssize_t count, error):
        """The stage is written, or has failed: send what waits for nothing any more.

        A connection that raises keeps none of the others from theirs; the first error is raised
        then.
        """
        cdef MqttAcks acks
        cdef MqttAnswers row
        cdef object problem = None, reason = None
        if error is not None:
            reason = self.reason_of(error)
        for acks in self.waiting:
            if reason is not None:
                if acks.failed is None:
                    acks.failed = {}
                acks.failed[self.number] = reason
            acks.left -= 1
            if acks.left == 0:
                # Held here: of a connection that is gone, what was sent lets go of the row.
                row = acks.row
                try:
                    row.send_ready()
                except Exception as raised:
                    problem = problem or raised
        if problem is not None:
            raise problem


cdef StageAcks _stage_acks(MqttPass turn, Py_ssize_t number):
    cdef StageAcks made = StageAcks.__new__(StageAcks)
    made.waiting = []
    made.number = number
    made.reason_of = turn.reason_of
    return made


cdef class MqttAcks:
    """Acknowledgements of a connection that go out together, after earlier ones."""

    def __dealloc__(self):
        free(self.packets)


cdef class MqttAnswers(Receiver):
    """The acknowledgements of one connection."""

    def __dealloc__(self):
        free(self.acks)

    cdef int grow_acks(self) except -1:
        cdef Py_ssize_t room = max(2 * self.acks_room, <Py_ssize_t> 64)
        cdef void *moved = realloc(self.acks, room)
        if moved is NULL:
            raise MemoryError
        self.acks = <unsigned char *> moved
        self.acks_room = room
        return 0

    cdef int join_pass(self) except -1:
        """The first of a pass: its end takes the staged records and their waiters together."""
        if self.turn is not None:
            self.turn.acking.append(self)
        return 0

    def await_ack(self, int packet_id, Stage stage not None):
        """Acknowledge, in its turn, a publish that the caller staged and counted."""
        if not 0 <= stage.number < STAGES_MAX:
            raise InvalidRequest(f"a stage of number {stage.number} holds no such publish")
        need_ack_space(self)
        note_ack(self, packet_id, stage.number)

    @property
    def has_acks(self):
        """Whether staged publishes have acknowledgements that wait."""
        return self.acks_used > 0

    cdef MqttAcks wait(self, Py_ssize_t left):
        """Let the noted acknowledgements wait for so many stages, after earlier ones."""
        cdef MqttAcks acks = self.spare
        cdef unsigned char *packets
        cdef Py_ssize_t room
        if acks is None:
            acks = MqttAcks.__new__(MqttAcks)
        else:
            self.spare = None
        # The two change buffers: nothing is allocated for a client that publishes all the time.
        packets, room = acks.packets, acks.room
        acks.packets, acks.used, acks.room = self.acks, self.acks_used, self.acks_room
        self.acks, self.acks_used, self.acks_room = packets, 0, room
        acks.row = self
        acks.left = left
        self._append(acks)
        return acks

    cdef int _keep_spare(self, MqttAcks acks) except -1:
        """Keep what was sent for the next ones, if it is small."""
        acks.row = None
        acks.failed = None
        if acks.room > ACKS_BYTES_KEPT:
            free(acks.packets)
            acks.packets = NULL
            acks.room = 0
        self.spare = acks
        return 0

    cdef int _append(self, MqttAcks acks) except -1:
        if self.first is None:
            self.first = acks
        else:
            if self.behind is None:
                self.behind = []
            self.behind.append(acks)
        return 0

    def answer_next(self, act):
        """Call `act` when all acknowledgements that wait now are sent; at once if none waits."""
        cdef MqttAcks acks
        assert self.acks_used == 0, "what is staged is taken before"
        if self.first is None:
            act()
            return
        acks = MqttAcks.__new__(MqttAcks)
        acks.row = self
        acks.act = act
        self._append(acks)

    cdef int send_ready(self) except -1:
        """Send acknowledgements whose stages are all written, from the oldest on."""
        cdef MqttAcks acks = self.first
        while acks is not None and acks.left == 0:
            self._step()
            self._send(acks)
            acks = self.first
        return 0

    cdef int _step(self) except -1:
        """The first is being sent: the next one becomes the first."""
        if self.behind is None:
            self.first = None
            return 0
        self.first = <MqttAcks> self.behind[self.sent]
        self.sent += 1
        if self.sent == len(self.behind):
            self.behind = None
            self.sent = 0
        elif self.sent >= SENT_KEPT and 2 * self.sent > len(self.behind):
            del self.behind[: self.sent]
            self.sent = 0
        return 0

    cdef int _send(self, MqttAcks acks) except -1:
        cdef bytes out
        if acks.act is not None:
            acks.act()
            return 0
        if acks.failed is not None:
            if self.owner is not None:  # otherwise its connection is gone
                out = PyBytes_FromStringAndSize(<const char *> acks.packets, acks.used)
                self.owner.acknowledge_some(out, acks.failed)
        else:
            self.unanswered -= acks.used // 4
            if self.output.call is not None:
                out = puback_packets(acks.packets, acks.used // 4)
                if self.turn is not None:
                    self.turn.answered_bytes += acks.used  # a PUBACK has four bytes, too
                self.output.write(out)
        self._keep_spare(acks)
        return 0

    def take_acks(self):
        """The acknowledgements that are due, for `answer`."""
        return self._take()

    cdef bytes _take(self):
        cdef bytes out = PyBytes_FromStringAndSize(<const char *> self.acks, self.acks_used)
        self.acks_used = 0
        if self.acks_room > ACKS_BYTES_KEPT:
            free(self.acks)
            self.acks = NULL
            self.acks_room = 0
        return out

    def answer(self, bytes acks not None, dict failed=None):
        """The packets of `encode_acks`, which are sent now: these publishes are answered."""
        cdef bytes out = encode_acks(acks, failed)
        self.unanswered -= PyBytes_GET_SIZE(acks) // 4
        if self.turn is not None:
            self.turn.answered_bytes += PyBytes_GET_SIZE(out)
        return out
