"""Reads from a socket, in C. Inlined.

Rules: few bytes are read through a buffer that all connections share, and copied. From a connection
whose last read was large, bytes are read straight into the object that the protocol gets. A
receiver may have them read into a buffer of its own (`Receiver.room`).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.errno cimport errno

from onelog.kernel._native.epoll cimport MSG_DONTWAIT, recv
from onelog.kernel._native.outbox cimport Receiver

cdef extern from "Python.h":
    int read_resize "_PyBytes_Resize"(PyObject **, Py_ssize_t) except -1
    PyObject *read_object "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    char *read_text "PyBytes_AS_STRING"(PyObject *) noexcept
    void read_release "Py_DECREF"(PyObject *) noexcept

cdef enum:
    READ_BYTES_MAX = 262144
    # The next read is expected to be as large as one of this size.
    READ_BYTES_LARGE = 16384
    # So much at most is read into the buffer of a receiver at once.
    READ_ROOM_MAX = 1048576
    # A shorter read does not let go of the interpreter: to get it back may take longer.
    READ_ALONE_MAX = 65536

ctypedef struct ol_reading:
    Py_ssize_t asked
    # Bytes that came; 0: the end of the stream, negative: see the problem.
    Py_ssize_t size
    int problem


cdef inline object read_once(
    int fd, char *shared, Receiver receiver, bint is_large, ol_reading *row
):
    """Read once. The bytes as an object; None: they are in the room of the receiver, or none."""
    cdef char *into = NULL
    cdef Py_ssize_t wanted = 0
    row.asked = READ_BYTES_MAX
    if receiver is not None:
        wanted = receiver.room(&into)
        if wanted:
            row.asked = min(wanted, READ_ROOM_MAX)
            _read_room(fd, into, row)
            return None
        wanted = receiver.first_bytes()
        if wanted:
            row.asked = wanted
            is_large = False
    return _read_large(fd, row) if is_large else _read_small(fd, shared, row)


cdef inline int _read_room(int fd, char *into, ol_reading *row):
    if row.asked <= READ_ALONE_MAX:
        row.size = recv(fd, into, row.asked, MSG_DONTWAIT)
        row.problem = errno
    else:
        with nogil:
            row.size = recv(fd, into, row.asked, MSG_DONTWAIT)
            row.problem = errno
    return 0


cdef inline object _read_small(int fd, char *shared, ol_reading *row):
    row.size = recv(fd, shared, row.asked, MSG_DONTWAIT)
    row.problem = errno
    return PyBytes_FromStringAndSize(shared, row.size) if row.size > 0 else None


cdef inline object _read_large(int fd, ol_reading *row):
    cdef PyObject *data = read_object(NULL, row.asked)
    cdef object out
    row.size = recv(fd, read_text(data), row.asked, MSG_DONTWAIT)
    row.problem = errno
    if row.size <= 0:
        read_release(data)
        return None
    if row.size != row.asked:
        read_resize(&data, row.size)
    out = <object> data
    read_release(data)
    return out
