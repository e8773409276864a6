"""AMQP's publishes that wait to be confirmed, compiled: from their stage to basic.ack.

Rules: the twin is the specification. Runs of publishes that the kernel staged wait together, one
call for each stage and tick. All runs that became visible in a pass of the loop are confirmed
together, when their queues have them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t

from onelog.kernel._native.amqp_channel cimport AmqpPeer
from onelog.kernel._native.format cimport ol_put16, ol_put32, ol_put64
from onelog.kernel._native.stage cimport Stage

cdef enum:
    ACK = 1
    METHOD = 1
    ACK_METHOD = 0x003C0050
    NACK_METHOD = 0x003C0078
    PAYLOAD_BYTES = 13
    FRAME_BYTES = 21
    END = 0xCE


cdef class ByteCount:
    """Bytes of a peer that wait, and the bound past which it is not read."""

    def __init__(self, pauses, int64_t bytes_max, why):
        self._pauses = pauses
        self._bytes_max = bytes_max
        self._why = why

    cpdef int add(self, int64_t size_bytes) except -1:
        """So many more bytes wait; a negative number is taken away."""
        self.size_bytes += size_bytes
        if self.size_bytes > self._bytes_max:
            self._pauses.pause(self._why)
        elif self.size_bytes <= self._bytes_max // 2 and self._pauses.reasons:
            self._pauses.resume(self._why)
        return 0


cdef class PublishRun:
    """Publishes of a channel that are written together, and their outcome."""

    def __init__(self, publishing, int64_t count, came_as, int64_t size_bytes, results=None):
        self.publishing = publishing
        self.count = count
        self.came_as = came_as
        self.size_bytes = size_bytes
        self.results = results

    def finish(self, count, error):
        """The messages are visible, or failed with this error."""
        if error is None:
            (<PublishingEnd?> self.publishing).turn.took(self)
        else:
            self.publishing.failed(self, error)


cdef class Confirms:
    """Publishes that are not confirmed yet."""

    def __init__(self):
        self.runs = []
        self.first_tag = 1

    def add(self, PublishRun run not None):
        """Add publishes that are being written."""
        self.runs.append(run)
        self.unconfirmed += run.count

    def replace(self, run, list others not None):
        """A run is written in parts; the parts have as many messages as the run."""
        at = self.runs.index(run)
        self.runs[at : at + 1] = others

    def clear(self):
        """Forget everything: no confirm is sent any more."""
        self.runs.clear()
        self.unconfirmed = 0

    cpdef bytes take(self, int channel):
        """The confirms for known outcomes, from the oldest publish on."""
        cdef Py_ssize_t at = 0, known = len(self.runs)
        cdef PublishRun run
        cdef int64_t count
        cdef int outcome
        cdef bytes found = b"", frame
        cdef unsigned char *p
        while at < known:
            outcome, count = (<PublishRun> self.runs[at]).outcome, 0
            if not outcome:
                break
            while at < known:
                run = <PublishRun> self.runs[at]
                if run.outcome != outcome:
                    break
                count += run.count
                at += 1
            self.first_tag += <uint64_t> count
            self.unconfirmed -= count
            frame = PyBytes_FromStringAndSize(NULL, FRAME_BYTES)
            p = <unsigned char *> PyBytes_AS_STRING(frame)
            p[0] = METHOD
            ol_put16(p + 1, channel)
            ol_put32(p + 3, PAYLOAD_BYTES)
            ol_put32(p + 7, ACK_METHOD if outcome == ACK else NACK_METHOD)
            ol_put64(p + 11, self.first_tag - 1)
            p[19] = count > 1
            p[20] = END
            found = frame if not found else found + frame
        if at:
            del self.runs[:at]
        return found


cdef class StageRuns:
    """The call of all runs that wait for what is staged in one partition."""

    cdef int written(self, Stage stage, int64_t base) except -1:
        self.stage = stage
        self.base = base
        self.finish(1, None)
        return 0

    cpdef finish(self, Py_ssize_t count, error):
        """The messages are visible, or failed with this error."""
        cdef PublishRun run
        cdef list runs = self.runs
        failure = None
        self.runs = []  # they refer to us
        if self.turn.waiting is self:
            self.turn.stage = self.turn.rows = self.turn.waiting = None
        if error is None:
            for run in runs:
                self.turn.took(run)
            return
        for run in runs:
            try:
                run.publishing.failed(run, error)
            except Exception as raised:  # the other channels hear of it
                failure = raised
        if failure is not None:
            raise failure


cdef class PublishPass:
    """The publishes of all channels that wait together."""

    def __init__(self, call_soon, tick_soon, dict refused not None, tell_slowly):
        self.call_soon = call_soon
        self.tick_soon = tick_soon
        self.refused = refused
        self.tell_slowly = tell_slowly
        self.tell_bound = self.tell
        self.taken = []

    cpdef int took(self, PublishRun run) except -1:
        """Publishes are visible. When their queues have them, they are confirmed."""
        if not self.taken:
            self.call_soon(self.tell_bound)
        self.taken.append(run)
        return 0

    cdef int wait(self, Stage stage, PublishRun run) except -1:
        """Let a run wait for what was just staged."""
        cdef StageRuns waiting = self.waiting
        run.index = stage.builder.records - 1
        if self.stage is not stage or stage.owner.rows is not self.rows or not self.rows:
            waiting = StageRuns.__new__(StageRuns)
            waiting.results = [None]
            waiting.runs = []
            waiting.turn = self
            waiting.index = run.index
            stage.owner.rows.append((waiting, 0, run.index))
            self.tick_soon()
            self.stage, self.rows, self.waiting = stage, stage.owner.rows, waiting
        run.stage_runs = waiting
        waiting.runs.append(run)
        return 0

    def tell(self):
        """Confirm what became visible in this pass."""
        cdef list taken = self.taken
        cdef dict concerned = {}
        cdef PublishRun run
        cdef PublishingEnd publishing
        self.taken = []
        if self.refused:
            self.tell_slowly(taken)
            return
        for run in taken:
            run.outcome = ACK
            publishing = <PublishingEnd> run.publishing
            publishing._unwritten -= 1
            publishing.unwritten.add(-run.size_bytes)
            if not publishing._unwritten and publishing._waiters:
                publishing.tell_waiters()
            concerned[publishing] = None
        for publishing in concerned:
            publishing.confirm_quickly()


cdef class PublishingEnd:
    """The publishes of one channel."""

    cdef bint stage_quickly(
        self, int64_t count, Stage stage, bytes data, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """The kernel has staged publishes of this channel. Returns False: take the long way."""
        cdef PublishRun run
        cdef AmqpPeer peer = self.connection
        if self.turn.is_metered or self._closed:
            return False
        if peer.seat is not None and peer.seat.paces_publish:
            return False
        run = PublishRun.__new__(PublishRun)
        run.publishing = self
        run.count = count
        run.came_as = (data, start, end)
        run.size_bytes = end - start
        if self.confirms:
            self._confirms.runs.append(run)
            self._confirms.unconfirmed += count
        self.published += count
        peer.counters.published += count
        self._unwritten += 1
        self.unwritten.add(run.size_bytes)
        self.turn.wait(stage, run)
        return True

    cdef int confirm_quickly(self) except -1:
        """Send confirms for known outcomes."""
        cdef uint64_t before = self._confirms.first_tag
        cdef AmqpPeer peer = self.connection
        cdef bytes frames
        if not self.confirms or self._closed:
            return 0
        frames = self._confirms.take(self.number)
        if frames:
            peer.counters.confirmed += <int64_t> (self._confirms.first_tag - before)
            if peer.is_open:
                peer.send_frames(frames)
            else:
                peer.write_one(frames)
        return 0
