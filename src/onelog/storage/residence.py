"""Maps of files that know which of their bytes are in memory, so that reading waits for no disk.

Why not `preadv2` with RWF_NOWAIT: it copies what it is asked about, 80 µs a MiB. The kernel's
`here_to` asks for a whole range at once. Bytes that the file no longer has are not in memory, so a
file that was cut short is found here, before a read of its map ends the process (SIGBUS).
Rules: bytes in memory may leave a moment later when memory is short: then the read waits.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.kernel import forget_map, here_to, map_failed, watch_map

if TYPE_CHECKING:
    from onelog.storage.files import OpenFile


class _View(ctypes.Structure):
    """Python's `Py_buffer`: how the address of a read-only map is found."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class Map(mmap.mmap):
    """A read-only map that knows its address."""

    address: int = 0
    file: OpenFile | None = None
    """The open file, to ask about its pages."""
    _watched: int = -1

    def locate(self) -> None:
        """Find its address; 0: unknown."""
        view = _View()
        api = ctypes.pythonapi
        if api.PyObject_GetBuffer(ctypes.py_object(self), ctypes.byref(view), 0) == 0:
            self.address = view.buf or 0
            api.PyBuffer_Release(ctypes.byref(view))
        if self.address:
            self._watched = watch_map(self.address, len(self))

    @property
    def failed(self) -> bool:
        """Whether a page of it could not be read: it has zeros where bytes of the file were."""
        return map_failed(self._watched)

    def close(self) -> None:
        """Unmap the file; nobody may have a view of it."""
        forget_map(self._watched)
        self._watched = -1
        super().close()

    def __del__(self, forget_map: Callable[[int], None] = forget_map) -> None:
        forget_map(self._watched)  # before its addresses come to belong to another

    def here_to(self, start: int, end: int) -> int:
        """The end of the bytes between `start` and `end` that are in memory without a gap."""
        file = self.file
        return here_to(self.address, -1 if file is None else file.fd, start, end)
