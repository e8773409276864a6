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

    def take(self):
        """Leave the list: what is staged, to be written. What comes from now on is not in it."""
        cdef BatchBuilder full = self.builder
        if self.spare is None:
            self.builder = BatchBuilder(full.tag_topics)
        else:
            self.builder = self.spare
            self.spare = None
        self.number = -1
        return full

    def give_back(self, BatchBuilder builder not None):
        """A builder that `take` gave is empty again."""
        if self.builder.records:
            self.spare = builder  # more was staged while it was written
        else:
            self.spare = self.builder  # one of the two holds memory, not both
            self.builder = builder


cdef class MqttRoute:
    """Where a topic's plain publishes go."""

    def __init__(self, bytes topic not None, Stage stage not None, Py_ssize_t value_bytes_max):
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max
