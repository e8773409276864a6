"""The end of a log that grows, compiled: seal, write and note a batch in one call.

Rules: the twin is the specification. A batch is written here if nothing else has to come first:
otherwise the caller takes the long way, with nothing changed. A small batch is written without
letting go of the interpreter: to get it back would take longer than the write.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int32_t, int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.clock cimport read_clock
from onelog.kernel._native.format cimport HEADER_BYTES

import os

from onelog.base import faults
from onelog.kernel import types

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t size, long long at)

cdef enum:
    ALONE_BYTES_MAX = 65536

cdef int64_t REL_MAX = types.REL_MAX
cdef Py_ssize_t RAW_MAX = types.RAW_TOPICS_MAX
cdef Py_ssize_t RAW_BYTES_MAX = types.RAW_TOPIC_BYTES_MAX
cdef dict ARMED = faults.armed
cdef object SYSTEM_PWRITE = os.pwrite
cdef dict OS_NAMES = os.__dict__


cdef int _write(object file, bytes data, int64_t at) except -1:
    """Write all of it, however many calls the system wants."""
    cdef const char *p = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), done = 0, wrote
    cdef int fd = file.fd, problem
    if OS_NAMES["pwrite"] is not SYSTEM_PWRITE:
        file.write(data, at)  # a test has a disk of its own
        return 0
    while done < size:
        if size - done <= ALONE_BYTES_MAX:
            wrote = pwrite(fd, p + done, size - done, at + done)
            problem = errno
        else:
            with nogil:
                wrote = pwrite(fd, p + done, size - done, at + done)
                problem = errno
        if wrote < 0 and problem == EINTR:
            PyErr_CheckSignals()
        elif wrote <= 0:
            problem = problem if wrote < 0 else EIO
            raise OSError(problem, os.strerror(problem))
        else:
            done += wrote
    return 0


cdef class FileEnd:
    """Where the next batch of a log file goes."""

    def append_built(
        self,
        BatchBuilder builder not None,
        int64_t base_offset,
        int32_t leader_epoch,
        bint index_topics,
        int64_t at_ms,
    ):
        """Seal, write and note the staged records; None, with nothing done: take the long way."""
        return self.put(builder, base_offset, leader_epoch, index_topics, at_ms)

    cdef bytes put(
        self,
        BatchBuilder builder,
        int64_t base_offset,
        int32_t leader_epoch,
        bint index_topics,
        int64_t at_ms,
    ):
        cdef object indexes = self.indexes, writer = self.writer
        cdef object live = indexes.live, topics = indexes.tail, file, pairs = None
        cdef int64_t at = self.size_bytes, rel = base_offset - self.base_offset, highest
        cdef Py_ssize_t size = HEADER_BYTES + builder.used
        cdef bint is_full = False
        cdef bytes data
        cdef list raw
        if at == 0 or live is None or writer is None or ARMED:
            return None
        file = writer.file
        if self.settings is not self.bounds_of:
            self._learn_bounds()
        if (
            file is None
            or (topics is not None and not index_topics)
            or at + size > self.reserved_bytes
            or at + size > self.segment_bytes
            or rel + builder.records > REL_MAX
            or not 0 <= at_ms - self.created_ms < self.segment_age_ms
        ):
            return None
        if topics is not None and builder.pairs_used:
            pairs = PyBytes_FromStringAndSize(<char *> builder.pairs, builder.pairs_used)
        highest = max(self.max_timestamp_ms, builder.max_timestamp)
        data = builder.seal_plain(base_offset, leader_epoch)
        writer.used = True
        writer.dirty = True
        try:
            _write(file, data, at)
        except OSError:
            # Recovery must not find half of a failed append behind a later, shorter one.
            file.cut(at)
            self.reserved_bytes = at
            raise
        if at >= <int64_t> live.next_at:
            is_full = live.add(rel, at, highest, self.index_interval_bytes)
        if pairs is not None:
            raw = topics.raw
            self.raw_bytes = len(<bytes> pairs) + (self.raw_bytes if raw else 0)
            raw.append((pairs, rel))
            if len(raw) >= RAW_MAX or self.raw_bytes > RAW_BYTES_MAX:
                is_full |= topics.absorb()
        if is_full:
            indexes.save()
        self.max_timestamp_ms = highest
        self.last_batch_at = at
        self.size_bytes = at + size
        return data

    cdef int _learn_bounds(self) except -1:
        """Settings never change: others take their place."""
        cdef object settings = self.settings
        self.segment_bytes = settings.segment_bytes
        self.segment_age_ms = settings.segment_age_ms
        self.index_interval_bytes = settings.index_interval_bytes
        self.bounds_of = settings
        return 0


cdef class LogEnd:
    """Where the next batch of a partition's log goes."""

    def append_built(
        self, BatchBuilder builder not None, int32_t leader_epoch, bint index_topics
    ):
        """Append the staged records as one batch; None, with nothing done: take the long way."""
        return self.put(builder, leader_epoch, index_topics)

    cdef bytes put(self, BatchBuilder builder, int32_t leader_epoch, bint index_topics):
        cdef int32_t count = builder.records
        cdef bytes data = None
        if not self.lock.acquire(False):
            return None
        try:
            if self.stopped is None and not self.closed and not self.frozen:
                try:
                    data = self.active.put(
                        builder, self.end, leader_epoch, index_topics, read_clock(self.clock)
                    )
                except OSError as error:
                    self.failed("append", error)
                if data is not None:
                    self.unsaved_bytes += PyBytes_GET_SIZE(data)
                    self.end += count
        finally:
            self.lock.release()
        return data
