"""Where records are staged, compiled: a partition's builder, and the way to it from a topic."""

from onelog.kernel._native.build cimport BatchBuilder


cdef class Stage:
    """A partition's builder; on the shared list of dirty ones as soon as something is staged."""

    def __init__(self, owner, BatchBuilder builder not None, list dirty not None):
        self.owner = owner
        self.builder = builder
        self.dirty = dirty
        self.number = -1

    cdef int join(self) except -1:
        if self.number < 0:
            self.dirty.append(self)
            self.number = len(self.dirty) - 1
        return 0

    def touch(self):
        """Be on the list."""
        self.join()


cdef class MqttRoute:
    """Where a topic's plain publishes go."""

    def __init__(self, bytes topic not None, Stage stage not None, Py_ssize_t value_bytes_max):
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max
