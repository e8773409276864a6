"""Reads from a socket, in C. Inlined.

Rules: few bytes are read through a buffer that all connections share, and copied. From a connection
whose last read was large, bytes are read straight into the object that the protocol gets.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.errno cimport errno

from onelog.kernel._native.epoll cimport MSG_DONTWAIT, recv

cdef extern from "Python.h":
    int read_resize "_PyBytes_Resize"(PyObject **, Py_ssize_t) except -1
    PyObject *read_object "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    char *read_text "PyBytes_AS_STRING"(PyObject *) noexcept
    void read_release "Py_DECREF"(PyObject *) noexcept

cdef enum:
    READ_BYTES_MAX = 262144
    # The next read is expected to be as large as one of this size.
    READ_BYTES_LARGE = 16384
    # So much at most is read into the buffer of a protocol at once.
    READ_ROOM_MAX = 1048576
    # A shorter read does not let go of the interpreter.
    READ_ALONE_MAX = 65536


cdef inline object read_socket(int fd, char *shared, bint is_large, size_t most, int *problem):
    """The bytes of one read, none at the end of the stream; None: see `problem`.

    A read that is not large has at most `most` bytes.
    """
    cdef PyObject *data
    cdef ssize_t size
    cdef object out
    if not is_large:
        size = recv(fd, shared, most, MSG_DONTWAIT)
        problem[0] = errno
        return None if size < 0 else PyBytes_FromStringAndSize(shared, size)
    data = read_object(NULL, READ_BYTES_MAX)
    size = recv(fd, read_text(data), READ_BYTES_MAX, MSG_DONTWAIT)
    problem[0] = errno
    if size <= 0:
        read_release(data)
        return None if size < 0 else b""
    if size != READ_BYTES_MAX:
        read_resize(&data, size)
    out = <object> data
    read_release(data)
    return out


cdef inline ssize_t read_room(int fd, char *into, size_t size, int *problem):
    """Read once into a protocol's buffer: how many bytes; 0: the end, negative: see `problem`."""
    cdef ssize_t done
    if size <= READ_ALONE_MAX:
        done = recv(fd, into, size, MSG_DONTWAIT)
    else:
        with nogil:
            done = recv(fd, into, size, MSG_DONTWAIT)
    problem[0] = errno
    return done
