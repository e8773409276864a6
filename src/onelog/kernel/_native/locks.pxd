"""C face of locks."""

cdef extern from "pythread.h":
    ctypedef void *PyThread_type_lock

cdef class StateLock:
    # Whose it is, and how often it was taken; 0: nobody's.
    cdef unsigned long owner
    cdef Py_ssize_t depth
    # Threads that wait, and what wakes one of them.
    cdef Py_ssize_t waiting
    cdef PyThread_type_lock bell
    cdef bint is_rung

    cdef bint take_now(self) noexcept
    cdef int take(self) except -1
    cdef int give(self) except -1
