"""C face of the pass of a loop."""

cdef class LoopPass:
    cdef object __weakref__
    cdef object loop
    cdef bint is_open
    # Whether the function of `run` has returned.
    cdef bint is_ending
    cdef list calls
    cdef list lasts

    cdef bint begin(self) noexcept
    cdef int end(self) except -1
    cdef int later(self, object call) except -1
    cdef int _make(self, list calls) except -1

cpdef LoopPass pass_of(loop)
