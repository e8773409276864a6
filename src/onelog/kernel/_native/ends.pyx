"""The ends of a partition, compiled: a batch is appended, synced and shown without a Python frame.

Rules: the twin is the specification. A batch is appended here if nothing else has to come first:
the partition accepts it as it is, it is visible as soon as it is written (then nobody may wait, and
no earlier batch may wait for its feeds), or when a sync of this node's disk is over. A sync is
asked for here if the active segment's file is all that is to be synced (`Flight`). When it is over,
the answers, MQTT's feeds and the next sync need no Python, either; waiters, gaps and all that is
due beside a sync do. Otherwise the caller takes the long way, with nothing changed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.clock cimport read_monotonic
from onelog.kernel._native.feed cimport FeedSource
from onelog.kernel._native.file_end cimport FileEnd, LogEnd
from onelog.kernel._native.format cimport HEADER_BYTES, PREFIX_BYTES, ol_get16, ol_get32, ol_get64
from onelog.kernel._native.sync_threads cimport SyncEnd, SyncThreads, SyncTicket

from onelog.base import faults
from onelog.base.errors import StorageError
from onelog.kernel import types

cdef int64_t SNAPSHOT_BYTES = types.SNAPSHOT_BYTES
cdef int64_t CHECKPOINT_BYTES = types.CHECKPOINT_BYTES
cdef object NOTHING_HELD = types.NOTHING_HELD
cdef dict ARMED = faults.armed

cdef enum:
    ANSWERED_KEPT = 64


cdef inline int64_t _first_of(object data) except -1:
    """The offset of the first record in batches."""
    if PyBytes_CheckExact(data):
        return <int64_t> ol_get64(<const unsigned char *> PyBytes_AS_STRING(data))
    return int.from_bytes(data[:8], "big")


cdef inline bint _is_plain(object data):
    """Whether data is one batch that a builder sealed."""
    cdef const unsigned char *p
    if not PyBytes_CheckExact(data) or PyBytes_GET_SIZE(data) < HEADER_BYTES:
        return False
    p = <const unsigned char *> PyBytes_AS_STRING(data)
    return (
        <Py_ssize_t> <int32_t> ol_get32(p + 8) + PREFIX_BYTES == PyBytes_GET_SIZE(data)
        and ol_get16(p + 21) == 0
    )


cdef class Pending:
    """A write whose records are not visible yet, and what is to be done then."""

    cdef int answer(self, object error) except -1:
        raise NotImplementedError

    def __call__(self, error):
        """The records are visible, or will never be."""
        self.answer(error)


cdef class VisibleEnd:
    """The end that readers see, and those who are fed with it."""

    cdef bint is_idle(self) except -1:
        """Whether a batch can be shown without a look at those who wait."""
        return not (
            self.feeding
            or self.gap_start < self.gap_end
            or self.unseen
            or self.waiters.rows
            or self.stable_waiters.rows
            or self.pending
        )

    cdef int show_built(self, int64_t base, int64_t end, bytes data, object topics) except -1:
        """Let a batch that was just written be seen; it `is_idle`."""
        cdef object producers = self.producers
        self.high_watermark = end
        if producers.ended:
            producers.settle(end)
        if self.feeds:
            self.feeding = True
            self.fed_topics = topics
            for feed in self.feeds:
                try:
                    if isinstance(feed, FeedSource):
                        (<FeedSource> feed).take(data, base, end)
                    else:
                        feed(data)
                except Exception as error:
                    self.feed_raised(data, error)
            self.feeding = False
            if self.unseen or self.gap_start < self.gap_end:  # a feed appended
                self.feed()
        return 0

    cdef int hold_built(self, int64_t end, bytes data, object topics) except -1:
        """Hold a batch for the feeds until it is visible."""
        cdef int64_t size = PyBytes_GET_SIZE(data), held = <int64_t> self.budget.held + size
        if (
            self.unseen is NOTHING_HELD
            or held > <int64_t> self.budget.limit
            or self.unseen_bytes + size > <int64_t> self.budget.share
        ):
            self.hold(end, data, topics)
        else:
            self.budget.held = held
            self.unseen_bytes += size
            self.unseen.append((end, data, topics))
        return 0

    # Writes that wait for their records to be visible.

    cdef int await_visible(self, Pending row) except -1:
        """Answer a write when its last record is visible; it is the last one in the log."""
        row.sequence = next(self.waiters.sequence)
        if self.pending is None:
            self.pending = []
        self.pending.append(row)
        return 0

    @property
    def pending_writes(self):
        """How many writes wait that are not waiters."""
        return 0 if self.pending is None else len(self.pending) - self.answered

    cdef Pending _next_pending(self):
        """Take the oldest; there is one."""
        cdef Pending row = <Pending> self.pending[self.answered]
        self.pending[self.answered] = None
        self.answered += 1
        if self.answered == len(self.pending):
            self.pending.clear()
            self.answered = 0
        elif self.answered >= ANSWERED_KEPT and 2 * self.answered > len(self.pending):
            del self.pending[: self.answered]
            self.answered = 0
        return row

    def spill(self):
        """Let writes that wait be waiters like all others."""
        cdef Pending row
        while self.pending:
            row = self._next_pending()
            self.waiters.join(row.last, row.sequence, row)

    cdef int advance_now(self, int64_t end) except -1:
        """As `advance`: everything below `end` is visible now."""
        if end <= self.high_watermark:
            return 0
        if self.waiters.rows:
            self.advance(end)
            return 0
        self.high_watermark = end
        if self.producers.ended:
            self.producers.settle(end)
        while self.pending and (<Pending> self.pending[self.answered]).last < end:
            self._next_pending().answer(None)
        if self.waiters.rows:  # an answer spilled the others
            self.waiters.advance(end)
        if self.stable_waiters.rows:
            self.stable_waiters.advance(self.last_stable_offset)
        if self.unseen or self.gap_start < self.gap_end:
            self._feed_now()
        return 0

    cdef int _feed_now(self) except -1:
        """As `feed`: hand visible batches to the feeds."""
        cdef tuple row
        if self.feeding:
            return 0
        while self.feeds:
            if self.gap_start < self.gap_end or self.late:
                self.feed()
                return 0
            if not self.unseen:
                return 0
            row = self.unseen[0]
            if <int64_t> row[0] > self.high_watermark:
                if _first_of(row[1]) < self.high_watermark:
                    self.feed()
                return 0
            self.unseen.popleft()
            self.unseen_bytes -= len(row[1])
            self.budget.held -= len(row[1])
            self.feeding = True
            try:
                self._give_now(row[1], row[2])
            finally:
                self.feeding = False
        return 0

    cdef int _give_now(self, object data, object topics) except -1:
        cdef bint is_plain = _is_plain(data)
        cdef int64_t first = 0, end = 0
        cdef const unsigned char *p
        if is_plain:
            p = <const unsigned char *> PyBytes_AS_STRING(data)
            first = <int64_t> ol_get64(p)
            end = first + <int32_t> ol_get32(p + 23) + 1
        self.fed_topics = topics
        for feed in self.feeds:
            try:
                if is_plain and isinstance(feed, FeedSource):
                    (<FeedSource> feed).take(data, first, end)
                else:
                    feed(data)
            except Exception as error:
                self.feed_raised(data, error)
        return 0


cdef class PartitionEnd:
    """The end of a partition that grows."""

    def append_quickly(self, BatchBuilder builder not None, bint index_topics):
        """Append the staged records; -1, with nothing done: take the long way."""
        return self.put(builder, index_topics)

    cdef int64_t put(self, BatchBuilder builder, bint index_topics) except -2:
        """Append, and show what is visible as soon as it is written. Whoever appends to a partition
        `by_sync` calls `sync_now` afterwards."""
        cdef VisibleEnd visible = self.visible
        cdef int64_t base = self.end_offset
        cdef int32_t count = builder.records
        cdef bint at_once = self.at_once
        cdef object topics = None
        cdef bytes data
        if (
            self.log_end is None
            or self.refusal is not None
            or self.stamps
            or not (at_once or self.by_sync)
            or not self.is_noted
            or self.unsnapshotted_bytes + builder.used + 1024 >= SNAPSHOT_BYTES
            or (at_once and not visible.is_idle())
        ):
            return -1
        if index_topics and visible.topics_wanted:
            topics = builder.topics()
        try:
            data = self.log_end.put(builder, self.leader_epoch, index_topics)
        except StorageError as error:
            self.append_failed(error)
            raise
        if data is None:
            return -1
        self.records_appended += count
        self.end_offset = base + count
        self.unsnapshotted_bytes += PyBytes_GET_SIZE(data)
        if at_once:
            visible.show_built(base, base + count, data, topics)
        elif visible.feeds:
            visible.hold_built(base + count, data, topics)
        return base

    # Syncs.

    cdef int sync_now(self) except -1:
        """As `request_sync`: begin to make everything appended so far durable."""
        if self.syncing or self.stopped is not None or self.jobs.held is not None:
            return 0
        if self.unsnapshotted_bytes >= SNAPSHOT_BYTES or not self._fly():
            self.request_sync()
        return 0

    cdef bint _fly(self) except -1:
        """Have the active segment's file synced, if that is all that is to be done."""
        cdef LogEnd log = self.log_end
        cdef object gate, file, ticket, syncer = self.shared.syncer, disk = syncer.disk
        cdef object watch = self.shared.syncs
        cdef Flight flight
        if log is None or log.maintenance is None:
            return False
        gate = log.maintenance
        if not gate.lock.acquire(False):
            return False
        try:
            if gate.ticket is not None or not log.lock.acquire(False):
                return False
            try:
                file = self._only_file()
                if file is None:
                    return False
                flight = Flight.__new__(Flight)
                flight.partition = self
                flight.log = log
                flight.segment = log.active
                flight.size_bytes = log.active.size_bytes
                flight.end = log.end
            finally:
                log.lock.release()
            if isinstance(disk, SyncThreads):
                ticket = (<SyncThreads> disk).begin(file, flight)
            else:
                ticket = syncer.ask(file, flight)
            if ticket is None:
                return False
            gate.flight = flight
            gate.ticket = ticket
        finally:
            gate.lock.release()
        self.syncing = True
        self.jobs.running += 1
        if watch.timer is None:
            watch.begin(self.place)
        else:
            (<dict> watch.running)[self.place] = read_monotonic(watch.clock)
        return True

    cdef object _only_file(self):
        """The active segment's open file; None: more is to be done, or nothing. The lock is
        held."""
        cdef LogEnd log = self.log_end
        cdef FileEnd segment = log.active
        cdef object writer = segment.writer
        if (
            log.durable >= log.end
            or log.stopped is not None
            or log.closed
            or writer is None
            or not writer.dirty
            or log.unsynced
            or log.directory_dirty
            or log.unsaved_bytes >= CHECKPOINT_BYTES
            or segment.size_bytes >= segment.note_at
            or ARMED
        ):
            return None
        return writer.file

    cdef int _landed(self) except -1:
        """A sync that `_fly` began is over, and what it means for the log is noted."""
        cdef object jobs = self.jobs, watch = self.shared.syncs, stopped = self.log_end.stopped
        jobs.running -= 1
        if watch.late:
            watch.end(self.place)
        else:
            (<dict> watch.running).pop(self.place, None)
        self.syncing = False
        self.syncs += 1
        try:
            if stopped is not None:
                self.stop(type(stopped)(str(stopped)))
            elif not self.by_sync or not self.has_begun:
                self.made_durable(self.log_end.durable)
            else:
                self.durable = self.log_end.durable
                self.visible.advance_now(self.durable)
                if self.by_sync and self.end_offset > self.durable:
                    self.sync_now()
        finally:
            if jobs.following is not None:
                jobs.go_on()
        return 0


cdef class Flight(SyncEnd):
    """What a sync under way will have made durable: `storage/segment/flight.py` without frames."""

    def __call__(self, ticket):
        """On the loop: the sync is over."""
        self.settle(ticket)
        self.partition._landed()

    cdef int hear(self, SyncTicket ticket) except -1:
        self.settle(ticket)
        self.partition._landed()
        return 0

    cpdef settle(self, ticket):
        """Count what is durable now, or stop the partition. In any thread, once the sync is over; a
        second call does nothing."""
        cdef LogEnd log = self.log
        cdef object gate = log.maintenance, writer
        cdef int error
        log.lock.acquire()
        try:
            if gate.ticket is not ticket:
                return
            gate.flight = gate.ticket = None
            error = (<SyncTicket> ticket).failure() if type(ticket) is SyncTicket else ticket.error
            if error:
                log.sync_failed(error)
                return
            log.durable = max(log.durable, self.end)
            writer = self.segment.writer
            if writer is not None and self.segment.size_bytes == self.size_bytes:
                writer.dirty = False
        finally:
            log.lock.release()
