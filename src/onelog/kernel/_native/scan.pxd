"""C face of a scanned batch."""

from onelog.kernel._native.format cimport Head

cdef object info_of(Py_ssize_t position, const Head *head)
