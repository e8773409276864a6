"""AMQP's connections and channels, compiled: deliveries that go out, and plain acknowledgements.

Rules: the twin is the specification. Deliveries and acknowledgements go the short way if nothing
else has to come first: nothing on the channel waits, and what is acknowledged are the oldest
messages that it holds, which went out the short way (`queue_end.pyx`).
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from onelog.kernel._native.amqp_delivery cimport encode_run
from onelog.kernel._native.queue_end cimport ConsumerEnd, QueueEnd

cdef enum:
    OFFSET_BITS = 48
    # After so many bytes of deliveries it is checked again whether the peer keeps up.
    RUN_BYTES = 256 * 1024

cdef int64_t OFFSET_MASK = (<int64_t> 1 << OFFSET_BITS) - 1


cdef class AmqpCounters:
    """Numbers that all connections count together."""


cdef class AmqpPeer:
    """One connection."""

    cdef int send_frames(self, bytes data) except -1:
        """Send whole frames; the connection is open."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self._transport is not None:
            self.sent_bytes += size
            self.counters.sent_bytes += size
            self._transport.write(data)
        return 0

    cdef bint take_ack(self, int channel, uint64_t tag, bint multiple) except -1:
        """basic.ack. Returns False, with nothing done: take the long way for what is left."""
        cdef PyObject *found
        cdef ChannelEnd row
        if not self.is_open:
            return False
        found = PyDict_GetItem(self.channels, channel)
        if found is NULL:
            return False
        row = <ChannelEnd?> <object> found
        return row.is_idle() and (<ConsumingEnd?> row.consuming).ack_quickly(tag, multiple)


cdef class ChannelEnd:
    """One channel."""

    @property
    def is_plain(self):
        """Whether no frame waits, so that the next one takes effect at once."""
        return self.is_idle()

    cdef bint is_idle(self) except -1:
        return not (
            self._busy
            or self._closing
            or self.transaction is not None
            or self._publish is not None
            or self._waiting
        )


cdef class HeldEnd:
    """The unacknowledged messages of one channel, the oldest first."""


cdef class UnsettledRun:
    """Messages of one queue that went out together."""

    def __init__(self, uint64_t tag, int64_t count, queue, int64_t place, consumer, double since):
        self.tag = tag
        self.count = count
        self.queue = queue
        self.place = place
        self.consumer = consumer
        self.since = since

    @property
    def places(self):
        """The places of all of them."""
        return range(self.place, self.place + self.count)

    def cut(self, uint64_t tag):
        """Keep the messages before a tag. Returns the rest as a run."""
        cdef int64_t kept = <int64_t> (tag - self.tag)
        rest = UnsettledRun(
            tag, self.count - kept, self.queue, self.place + kept, self.consumer, self.since
        )
        self.count = kept
        return rest


cdef class ConsumingEnd:
    """What one channel consumes."""

    def ack_short(self, uint64_t tag, bint multiple):
        """Settle messages by an acknowledgement. Returns False when the long way has to settle
        what is left of them."""
        return self.ack_quickly(tag, multiple)

    cdef bint ack_quickly(self, uint64_t tag, bint multiple) except -1:
        cdef HeldEnd held = self._held
        cdef UnsettledRun run
        cdef int64_t count, settled
        cdef Py_ssize_t gone = 0
        if not held.runs:
            return False
        run = <UnsettledRun?> held.runs[0]
        if tag < run.tag:
            return False
        if multiple:
            if not self._holds(tag):
                return False  # nothing is settled by a tag that is not held
        elif tag != run.tag:
            return False
        settled = held.size
        try:
            while run.tag <= tag:
                count = min(run.count, <int64_t> (tag - run.tag) + 1)
                if not self._settle(run, count):
                    break
                if run.count == 0:
                    gone += 1
                    if gone == len(held.runs):
                        break
                    run = <UnsettledRun> held.runs[gone]
        finally:
            del held.runs[:gone], held.tags[:gone]
            if held.runs:
                held.tags[0] = (<UnsettledRun> held.runs[0]).tag
        settled -= held.size
        if settled and (
            self._channel_prefetch
            or held.size + self._aside + settled >= self.connection.unacked_max
        ):
            self.may_deliver()
        return not held.runs or (<UnsettledRun> held.runs[0]).tag > tag

    cdef bint _holds(self, uint64_t tag) except -1:
        """Whether a message with this tag is held; the oldest has no higher one."""
        cdef list runs = self._held.runs
        cdef Py_ssize_t low = 0, high = len(runs), middle
        while high - low > 1:
            middle = (low + high) // 2
            if (<UnsettledRun?> runs[middle]).tag <= tag:
                low = middle
            else:
                high = middle
        return tag - (<UnsettledRun> runs[low]).tag < <uint64_t> (<UnsettledRun> runs[low]).count

    cdef bint _settle(self, UnsettledRun run, int64_t count) except -1:
        """Settle the first messages of a run. Returns False, with nothing done: take the long
        way."""
        if not isinstance(run.queue, QueueEnd) or not isinstance(run.consumer, AmqpConsumerEnd):
            return False
        if not (<QueueEnd> run.queue).settle_quickly(run.place, count):
            return False
        (<AmqpConsumerEnd> run.consumer).unacked -= count
        self._counted -= count
        self._held.size -= count
        run.tag += <uint64_t> count
        run.place += count
        run.count -= count
        return True


cdef class AmqpConsumerEnd(ConsumerEnd):
    """One consumer of a channel."""

    cdef int64_t quick_room(self) except? -1:
        cdef ConsumingEnd owner = self.owner
        cdef AmqpPeer peer = owner.connection
        cdef int64_t room
        if not peer._writing or not peer.is_open or not owner._is_flowing or owner._turns.is_due:
            return 0
        room = peer.unacked_max - owner._held.size - owner._aside
        if owner._channel_prefetch:
            room = min(room, owner._channel_prefetch - owner._counted)
        if self.prefetch:
            room = min(room, self.prefetch - self.unacked)
        return room

    cdef int64_t send(self, QueueEnd queue, int64_t place, int64_t count, object data) except -1:
        cdef ConsumingEnd owner = self.owner
        cdef AmqpPeer peer = owner.connection
        cdef HeldEnd held = owner._held
        cdef UnsettledRun run
        cdef Py_ssize_t sent = 0
        cdef bytes frames = encode_run(
            data, place & OFFSET_MASK, count, owner.number, self.wire_tag, owner.next_tag,
            peer.frame_bytes_max, peer.envelopes, RUN_BYTES, &sent,
        )
        if sent == 0:
            return 0
        run = UnsettledRun.__new__(UnsettledRun)
        run.tag = owner.next_tag
        run.count = sent
        run.queue = queue
        run.place = place
        run.consumer = self
        run.since = peer.loop_time()
        held.runs.append(run)
        held.tags.append(run.tag)
        held.size += sent
        self.unacked += sent
        owner._counted += sent
        if owner._late is None:
            owner.watch_late()
        owner.next_tag += <uint64_t> sent
        peer.send_frames(frames)
        return sent
