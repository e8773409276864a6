"""Bytes that wait for a socket, compiled: objects in the order in which they were written.

Rules: nothing is copied but small views and bytes that their owner may change. An outbox that has
nothing waiting holds no memory for it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)

cdef enum:
    # A view of so few bytes costs more than a copy.
    COPY_BYTES_MAX = 1024
    HIGH_BYTES = 65536


cdef class Piece:
    """A view that waits."""

    cdef Py_buffer view
    cdef bint is_held

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)


cdef object _piece(object data):
    """Bytes or a piece, for anything that has bytes."""
    cdef Piece made
    if isinstance(data, bytearray):
        return bytes(data)  # its owner may change it
    made = Piece.__new__(Piece)
    PyObject_GetBuffer(data, &made.view, PyBUF_SIMPLE)
    made.is_held = True
    if made.view.len <= COPY_BYTES_MAX:
        return PyBytes_FromStringAndSize(<char *> made.view.buf, made.view.len)
    return made


cdef inline Py_ssize_t _size(object chunk) noexcept:
    if PyBytes_CheckExact(chunk):
        return PyBytes_GET_SIZE(chunk)
    return (<Piece> chunk).view.len


cdef inline char *_start(object chunk) noexcept:
    if PyBytes_CheckExact(chunk):
        return PyBytes_AS_STRING(chunk)
    return <char *> (<Piece> chunk).view.buf


cdef class Receiver:
    """Takes what a connection reads: its `receive` is a `data_received`, and can be called in C."""

    def receive(self, data):
        """Take a read."""
        self.take_bytes(bytes(data))

    cdef int take_bytes(self, bytes data) except -1:
        raise NotImplementedError

    cdef Py_ssize_t room(self, char **into) noexcept:
        """Bytes that are to be read straight into a buffer, and where; 0: as an object."""
        return 0

    cdef int took(self, Py_ssize_t size) except -1:
        """So many bytes are in that buffer."""
        raise NotImplementedError

    cdef Py_ssize_t first_bytes(self) noexcept:
        """Bytes that the next read is to have at most; 0: as many as there are."""
        return 0


cdef Receiver receiver_of(object call):
    """Whose `receive` this is; None: nobody's."""
    cdef object owner = getattr(call, "__self__", None)
    return owner if isinstance(owner, Receiver) and call == owner.receive else None


cdef class Outbox:
    """What one connection has to send. A subclass says in `put` what its `write` does."""

    def __cinit__(self):
        self.high, self.low = HIGH_BYTES, HIGH_BYTES // 4

    cdef int put(self, object data) except -1:
        raise NotImplementedError

    def get_write_buffer_size(self):
        """Bytes that were written and that the system has not taken yet."""
        return self.waiting

    def get_write_buffer_limits(self):
        """The low and the high mark."""
        return self.low, self.high

    def set_write_buffer_limits(self, high=None, low=None):
        """When `pause_writing` and `resume_writing` of the protocol are called."""
        if high is None:
            high = HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self.high, self.low = high, low
        self.pause_if_over()

    cdef int pause_if_over(self) except -1:
        """Tell the protocol to pause if more waits than the high mark."""
        raise NotImplementedError

    cdef int keep(self, object data) except -1:
        """Add bytes behind those that wait."""
        cdef object chunk = data if PyBytes_CheckExact(data) else _piece(data)
        cdef Py_ssize_t size = _size(chunk)
        if size == 0:
            return 0
        if self.chunks is None:
            self.chunks = [chunk]
        else:
            self.chunks.append(chunk)
        self.waiting += size
        return 0

    cdef int fill(self, ol_sending *row, iovec *vectors, int most) except -1:
        """Describe what waits, in at most so many pieces. Returns their number."""
        cdef Py_ssize_t size, skipped = self.skipped
        cdef int pieces = 0
        row.first = vectors
        row.size = 0
        for chunk in self.chunks:
            if pieces == most:
                break
            size = _size(chunk) - skipped
            vectors[pieces].iov_base = _start(chunk) + skipped
            vectors[pieces].iov_len = size
            row.size += size
            skipped = 0
            pieces += 1
        row.pieces = pieces
        return pieces

    cdef int drop_sent(self, Py_ssize_t sent) except -1:
        """The system has taken so many bytes."""
        cdef Py_ssize_t pieces = 0, size
        self.waiting -= sent
        if self.waiting == 0:
            self.drop_all()
            return 0
        sent += self.skipped
        for chunk in self.chunks:
            size = _size(chunk)
            if size > sent:
                break
            sent -= size
            pieces += 1
        self.skipped = sent
        if pieces:
            del self.chunks[:pieces]
        return 0

    cdef void drop_all(self) noexcept:
        self.chunks = None
        self.waiting = self.skipped = 0
