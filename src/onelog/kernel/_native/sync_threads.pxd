"""C face of the threads that sync."""

cdef class SyncEnd:
    cdef int hear(self, SyncTicket ticket) except -1

cdef class SyncTicket:
    # Memory of the threads.
    cdef void *asked
    cdef SyncThreads threads
    cdef readonly object file
    cdef readonly object done

    cdef int failure(self) noexcept

cdef class SyncThreads:
    cdef void *disk
    cdef bint is_real

    cdef SyncTicket begin(self, object file, object done)
    cpdef list take(self)
