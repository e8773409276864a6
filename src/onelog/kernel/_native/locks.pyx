"""Locks, compiled: one that almost nobody waits for is taken and given back without a call.

Rules: the twin is the specification. The interpreter's lock guards the fields, so taking a free
lock is a few stores. Whoever finds it taken sleeps at `bell` without the interpreter's lock. The
bell is rung once for one sleeper, who then looks again: the lock may have another owner by then.
"""

cdef extern from "pythread.h":
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int waits) nogil
    void PyThread_release_lock(PyThread_type_lock lock)
    unsigned long PyThread_get_thread_ident()


cdef class StateLock:
    """A lock that its owner may take again."""

    def __cinit__(self):
        self.bell = PyThread_allocate_lock()
        if self.bell is NULL:
            raise MemoryError
        PyThread_acquire_lock(self.bell, 1)

    def __dealloc__(self):
        if self.bell is not NULL:
            PyThread_free_lock(self.bell)

    cdef bint take_now(self) noexcept:
        """Take it, if nobody else has it."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.depth and self.owner != me:
            return False
        self.owner = me
        self.depth += 1
        return True

    cdef int take(self) except -1:
        """Take it, when nobody else has it."""
        while not self.take_now():
            self.waiting += 1
            with nogil:
                PyThread_acquire_lock(self.bell, 1)
            self.waiting -= 1
            self.is_rung = False
        return 0

    cdef int give(self) except -1:
        """Give it back as often as it was taken."""
        if self.depth == 0 or self.owner != PyThread_get_thread_ident():
            raise RuntimeError("the lock is not this thread's")
        self.depth -= 1
        if self.depth == 0 and self.waiting and not self.is_rung:
            self.is_rung = True
            PyThread_release_lock(self.bell)
        return 0

    def acquire(self, bint blocking=True):
        """Take it. Returns whether it is this thread's now."""
        if not blocking:
            return self.take_now()
        self.take()
        return True

    def release(self):
        """Give it back as often as it was taken."""
        self.give()

    def __enter__(self):
        self.take()

    def __exit__(self, *_raised):
        self.give()
