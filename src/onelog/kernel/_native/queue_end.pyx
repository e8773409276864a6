"""The ends of queues, compiled: plain messages go to the one consumer, and are settled, quickly.

Rules: the twin is the specification. Messages go the short way if nothing else has to come first:
the queue has one consumer, which has room for all of them, nothing waits, and they follow each
other in the partition from which the queue took messages before. They are *in flight*: noted as
runs. Whoever asks the cursor for its places folds them into its bitmaps first.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from onelog.kernel._native.amqp_delivery cimport find_runs

cdef enum:
    OFFSET_BITS = 48
    RUNS_MIN = 8

cdef int64_t OFFSET_MASK = (<int64_t> 1 << OFFSET_BITS) - 1


cdef class FlightCursor:
    """A cursor's messages that went out without waiting."""

    def __dealloc__(self):
        free(self.runs)

    @property
    def in_flight(self):
        """Whether there are messages that are not noted elsewhere."""
        return self.head < self.end

    def take_flight(self):
        """Runs of messages in flight: first offset and count, ascending. They are no more."""
        cdef Py_ssize_t at
        found = [
            (self.runs[2 * at], self.runs[2 * at + 1]) for at in range(self.head, self.end)
        ]
        self.head = self.end = 0
        return found

    cdef int fly(self, int64_t first, int64_t count) except -1:
        """Messages go out; they have not been noted before, nor have any behind them."""
        cdef Py_ssize_t room
        cdef int64_t *runs
        cdef int64_t *last
        self.count += count
        if not self.is_marked:
            self.is_marked = True
            self.on_change()
        if self.head < self.end:
            last = self.runs + 2 * (self.end - 1)
            if last[0] + last[1] == first:
                last[1] += count
                return 0
        if self.end == self.room:
            if self.head > self.room // 2:
                self.end -= self.head
                memmove(self.runs, self.runs + 2 * self.head, 16 * self.end)
                self.head = 0
            else:
                room = max(<Py_ssize_t> RUNS_MIN, 2 * self.room)
                runs = <int64_t *> realloc(self.runs, 16 * room)
                if runs is NULL:
                    raise MemoryError
                self.runs, self.room = runs, room
        self.runs[2 * self.end] = first
        self.runs[2 * self.end + 1] = count
        self.end += 1
        return 0

    cdef bint land(self, int64_t first, int64_t count) except -1:
        """Settle the oldest messages in flight. Returns False if these are others."""
        cdef int64_t *oldest
        if self.head == self.end:
            return False
        oldest = self.runs + 2 * self.head
        if oldest[0] != first or oldest[1] < count:
            return False
        self.count -= count
        if oldest[1] > count:
            oldest[0] += count
            oldest[1] -= count
        else:
            self.head += 1
            if self.head == self.end:
                self.head = self.end = 0
        return True


cdef class LineEnd:
    """The order of places of one priority."""


cdef class ReadyEnd:
    """The places that wait."""


cdef class ConsumerEnd:
    """A consumer that the kernel can send runs to."""

    cdef int64_t quick_room(self) except? -1:
        """How many messages it may be sent now; it is plain."""
        return 0

    cdef int64_t send(self, QueueEnd queue, int64_t place, int64_t count, object data) except -1:
        """Send it messages, as far as they are plain. Returns how many."""
        return 0


cdef class QueueEnd:
    """The end of a queue where messages come and go."""

    def pass_short(self, int64_t place, int64_t count, data):
        """Send messages that just came to the one consumer: how many; 0: take the long way."""
        return self.pass_quickly(place, count, data)

    cdef int64_t pass_quickly(self, int64_t place, int64_t count, object data) except -1:
        cdef ConsumerEnd consumer
        cdef ReadyEnd ready
        cdef LineEnd line
        cdef FlightCursor cursor
        cdef int64_t number = place >> OFFSET_BITS, sent
        if len(self._line) != 1 or self._pumping or not isinstance(self._line[0], ConsumerEnd):
            return 0
        consumer = <ConsumerEnd> self._line[0]
        if not consumer.is_plain or consumer.no_ack or not isinstance(self._ready, ReadyEnd):
            return 0
        ready = <ReadyEnd> self._ready
        if ready.size or len(ready.lines) != 1:
            return 0
        line = <LineEnd?> ready.lines[0]
        cursor = <FlightCursor?> self.cursor
        if (
            line.is_mixed
            or line.source != number
            or cursor.flight_key is None
            or cursor.flight_key is not self._keys[number]
            or consumer.quick_room() < count
        ):
            return 0
        sent = consumer.send(self, place, count, data)
        if sent:
            cursor.fly(place & OFFSET_MASK, sent)
            line.taken += sent
            self.published += sent
            self.delivered += sent
            self.unacked += sent
        return sent

    cdef bint settle_quickly(self, int64_t place, int64_t count) except -1:
        """Settle messages in flight. Returns False, with nothing done: take the long way."""
        cdef FlightCursor cursor
        cdef int64_t number = place >> OFFSET_BITS
        if self.is_deleted or not isinstance(self.cursor, FlightCursor):
            return False
        cursor = <FlightCursor> self.cursor
        if cursor.head == cursor.end or cursor.flight_key is not self._keys[number]:
            return False
        if not cursor.land(place & OFFSET_MASK, count):
            return False
        self.unacked -= count
        self.acked += count
        if not self._pumping and (<ReadyEnd?> self._ready).size:
            self.wake()
        return True


cdef class QueueFeed:
    """What gives batches that became visible to queues."""

    def __init__(self, dict topics not None, resolve, stumbled, open_batches, take_run, hand_out):
        self.topics = topics
        self.resolve = resolve
        self.stumbled = stumbled
        self.open_batches = open_batches
        self.take_run = take_run
        self.hand_out = hand_out

    def deliver(self, source, data, fixed):
        """Route batches and give their records to queues. Returns the offset that it reached."""
        return self.route(source, data, source.number, fixed)

    cdef int64_t route(
        self, object source, object data, int64_t number, object fixed
    ) except? -1:
        cdef int64_t end = -1, first, count, sent
        cdef list rows = find_runs(data, fixed, self.topics, self.resolve, &end)
        cdef object batches = None
        cdef QueueEnd queue
        cdef tuple row
        for row in rows:
            target, first, count, marks = row[0], row[2], row[3], row[4]
            sent = 0
            if marks == 0 and target is not None and fixed is None:
                lone = target.lone
                if lone is not None:
                    queue = <QueueEnd?> lone
                    try:
                        sent = queue.pass_quickly(number << OFFSET_BITS | first, count, data)
                    except Exception as error:
                        self.stumbled(queue, number << OFFSET_BITS | first, count, error)
                        continue
                    if sent == count:
                        continue
            if batches is None:
                batches = self.open_batches(source, data, fixed)
            self.take_run(batches, row, sent)
        if batches is not None:
            self.hand_out(batches, end)
        return end
