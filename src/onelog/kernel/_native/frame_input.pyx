"""Reads of a connection whose requests have a known length, compiled: a long one is gathered.

Rules: the twin is the specification. Beyond it: a set of sockets reads the bytes of such a frame
straight into its buffer, whose memory is not touched before. Behind a long frame another long one
is likely: the first read behind it is short, so that little of the next one has to be copied.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

from onelog.kernel._native.outbox cimport Receiver

cdef enum:
    FIRST_BYTES = 16384


cdef class FrameInput(Receiver):
    """Takes the reads of one connection."""

    cdef object take_read
    cdef object take_frame
    cdef bytearray gathered
    cdef Py_ssize_t filled
    cdef Py_ssize_t begun
    cdef Py_ssize_t seen
    # Whether the last bytes were the end of a long frame.
    cdef bint is_behind

    def __init__(self, take_read, take_frame):
        self.take_read = take_read
        self.take_frame = take_frame

    def has_moved(self):
        """Whether bytes of a frame were gathered since the last call."""
        cdef bint moved = self.seen != self.filled
        self.seen = self.filled
        return moved

    def expect(self, begun, Py_ssize_t size):
        """A frame of `size` bytes has begun with these."""
        cdef Py_buffer view
        cdef bytearray gathered
        PyObject_GetBuffer(begun, &view, PyBUF_SIMPLE)
        try:
            if view.len > size:
                raise ValueError(f"{view.len} bytes are more than a frame of {size}")
            gathered = PyByteArray_FromStringAndSize(NULL, size)
            memcpy(PyByteArray_AS_STRING(gathered), view.buf, view.len)
            self.filled = self.begun = view.len
            self.gathered = gathered
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t room(self, char **into) noexcept:
        if self.gathered is None:
            return 0
        into[0] = PyByteArray_AS_STRING(self.gathered) + self.filled
        return PyByteArray_GET_SIZE(self.gathered) - self.filled

    cdef int took(self, Py_ssize_t size) except -1:
        cdef bytearray gathered = self.gathered
        self.filled += size
        if self.filled == PyByteArray_GET_SIZE(gathered):
            self.gathered = None
            self.filled = 0
            self.is_behind = True
            self.take_frame(gathered, PyByteArray_GET_SIZE(gathered) - self.begun)
        return 0

    cdef Py_ssize_t first_bytes(self) noexcept:
        return FIRST_BYTES if self.is_behind else 0

    cdef int take_bytes(self, bytes data) except -1:
        cdef char *into = NULL
        cdef Py_ssize_t left = self.room(&into)
        self.is_behind = False
        if left == 0:
            self.take_read(data)
        elif PyBytes_GET_SIZE(data) <= left:
            memcpy(into, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            self.took(PyBytes_GET_SIZE(data))
        else:
            memcpy(into, PyBytes_AS_STRING(data), left)
            self.took(left)
            self.take_bytes(data[left:])
        return 0

    def end(self):
        """The connection is over."""
        self.gathered = None
        self.filled = 0
        self.take_read = self.take_frame = _ignore


def _ignore(*_what):
    pass
