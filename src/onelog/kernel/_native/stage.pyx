"""Stages, compiled: the builder of a partition, and the routes that lead to it."""

from libc.stdint cimport int64_t

from onelog.kernel._native.build cimport BatchBuilder
from onelog.kernel._native.ends cimport PartitionEnd


cdef class Stage:
    """A partition's builder. It is on the shared list of dirty stages while records are staged."""

    def __init__(
        self, owner, BatchBuilder builder not None, list dirty not None, PartitionEnd end=None
    ):
        self.owner = owner
        self.end = end
        self.builder = builder
        self.dirty = dirty
        self.number = -1

    cdef int join(self) except -1:
        if self.number < 0:
            self.dirty.append(self)
            self.number = len(self.dirty) - 1
        return 0

    def touch(self):
        """Put the stage on the list."""
        self.join()

    cpdef BatchBuilder take(self):
        """Leave the list. Returns the builder to write; later records go to another one."""
        cdef BatchBuilder full = self.builder
        if self.spare is None:
            self.builder = BatchBuilder(full.tag_topics)
        else:
            self.builder = self.spare
            self.spare = None
        self.number = -1
        return full

    cpdef int give_back(self, BatchBuilder builder) except -1:
        """A builder from `take` is empty again."""
        if self.builder.records:
            self.spare = builder  # more was staged while it was written
        else:
            self.spare = self.builder  # only one of the two holds memory
            self.builder = builder
        return 0


cdef class StageCall:
    """A call of the kernel's own that waits for what is staged in one partition."""

    cdef int written(self, Stage stage, int64_t base) except -1:
        """The records of the stage are visible; the first has this offset."""
        raise NotImplementedError


cdef class MqttRoute:
    """Where a topic's plain publishes go."""

    def __init__(self, bytes topic not None, Stage stage not None, Py_ssize_t value_bytes_max):
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max
