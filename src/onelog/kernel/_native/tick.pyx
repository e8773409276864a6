"""The tick, compiled: what was staged in a pass is written, shown and answered in one call.

Rules:
- A tick first takes all staged records together with the calls that wait for them, then it writes,
  in the order in which it took them. So a tick may come at any time, also within another one.
- A batch that needs no look is written here (`ends.pyx`), and a call of the kernel's own (MQTT's
  acknowledgements, AMQP's confirms) is answered here, at once or when a sync has made the batch
  visible. Python writes every other batch and answers every other call (`writing`).
- Syncs are asked for when all partitions are written, so that they share what the disk does.
- Nothing that raises keeps the next batch from being written.
"""

from libc.stdint cimport int64_t

from onelog.kernel._native.ends cimport PartitionEnd, Pending
from onelog.kernel._native.stage cimport Stage, StageCall

from onelog.base import faults

cdef dict ARMED = faults.armed


cdef class Taken(Pending):
    """The records that a tick took from one stage, and the calls that wait for them."""

    cdef int answer(self, object error) except -1:
        """The records are visible, or will never be."""
        cdef Ticker ticker = self.ticker
        ticker.under_way.pop(self, None)
        if error is None:
            ticker.messages += self.count
            if self.rows:
                ticker._answer(self)
        elif self.rows:
            ticker.writing.failed(self.rows, error)
        return 0


cdef class Ticker:
    """Writes what is staged at the end of a pass."""

    def __init__(self, list dirty not None, call_soon, writing):
        self.dirty = dirty
        self.on_tick = []
        self.call_soon = call_soon
        self.writing = writing
        self.under_way = writing.under_way
        self.taken = []
        self.unsynced = []
        self.tick_bound = self.tick

    def tick_soon(self):
        """Make sure that staged records are written at the end of this pass."""
        if self.dirty and not self.ticking:
            self.ticking = True
            self.call_soon(self.tick_bound)

    def tick(self):
        """Write every dirty partition: one batch, one append each."""
        cdef Stage stage
        cdef Taken row
        if not self.dirty:
            self.ticking = False
            return
        self.ticks += 1
        self.ticking = True
        for listener in self.on_tick:
            try:
                listener(self.dirty)
            except Exception as error:
                self.writing.listener_raised(error)
        self.ticking = False
        for stage in self.dirty:
            row = Taken.__new__(Taken)
            row.stage = stage
            row.count = stage.builder.records
            row.builder = stage.take()
            row.rows = stage.owner.rows
            if row.rows:
                stage.owner.rows = []
            else:
                row.rows = None
            self.taken.append(row)
        self.dirty.clear()
        self._write_all()

    def write_all(self):
        """Write what ticks took, also an outer one."""
        self._write_all()

    cdef int _write_all(self) except -1:
        cdef Taken row
        try:
            while self.next < len(self.taken):
                row = <Taken> self.taken[self.next]
                self.next += 1
                if self.next == len(self.taken):  # a write may wake a publisher that ticks
                    self.taken.clear()
                    self.next = 0
                self._write(row)
        finally:
            if self.unsynced:
                self._sync_all()
        return 0

    cdef int _sync_all(self) except -1:
        cdef PartitionEnd end
        cdef list waiting = self.unsynced
        self.unsynced = []
        for end in waiting:
            try:
                end.sync_now()
            except Exception as error:
                self.writing.sync_raised(end.place, error)
        return 0

    cdef int _write(self, Taken row) except -1:
        cdef PartitionEnd end = row.stage.end
        cdef int64_t base = -1
        cdef bint is_seen = False
        if end is not None and not ARMED:
            is_seen = end.at_once
            try:
                base = end.put(row.builder, row.builder.tag_topics)
            except Exception as error:
                self.writing.failed(row.rows or [], error)
                if row.builder.records == 0:  # otherwise records that failed would be written later
                    row.stage.give_back(row.builder)
                return 0
        if base < 0:
            self.writing.write(row.stage, row.builder, row.count, row.rows or [])
            return 0
        row.base = base
        if is_seen:
            self.messages += row.count
            if row.rows is not None:
                self._answer(row)
        else:
            if row.rows is None:
                row.rows = []
            row.ticker = self
            row.last = base + row.count - 1
            self.under_way[row] = None
            end.visible.await_visible(row)
            self.unsynced.append(end)
        row.stage.give_back(row.builder)
        return 0

    cdef int _answer(self, Taken row) except -1:
        """The records are visible: tell the calls that wait for them."""
        cdef object call
        if len(row.rows) == 1:
            call = (<tuple> row.rows[0])[0]
            if isinstance(call, StageCall):
                try:
                    (<StageCall> call).written(row.stage, row.base)
                except Exception as error:
                    self.writing.call_raised(call, error)
                return 0
        self.writing.answer(row.stage, row.base, row.rows)
        return 0
