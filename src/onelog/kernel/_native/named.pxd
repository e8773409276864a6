"""Named tuples, made without a call of Python."""

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from cpython.type cimport PyType_GenericAlloc


cdef inline object named(object kind, tuple values):
    """What `kind(*values)` makes, where `kind` is a named tuple."""
    cdef Py_ssize_t count = PyTuple_GET_SIZE(values), at
    cdef object made = PyType_GenericAlloc(kind, count), value
    for at in range(count):
        value = <object> PyTuple_GET_ITEM(values, at)
        Py_INCREF(value)
        PyTuple_SET_ITEM(made, at, value)
    return made
