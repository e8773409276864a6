"""Which bytes of a mapped file are in memory, so that reading them waits for no disk.

Why `mincore`: it asks for a whole range in one call (1 µs a page's worth, 8 µs a MiB) and needs no
open file. `preadv2` with RWF_NOWAIT copies what it is asked about: 80 µs a MiB. Bytes that the file
no longer has are not in memory either. So a file that was cut short is found here, before a read of
its map ends the process (SIGBUS). Rules: on a system without `mincore`, all bytes count as in
memory. Bytes in memory may leave a moment later when memory is short: then the read waits.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable
from typing import Any, Final

from onelog.kernel import forget_map, map_failed, watch_map

PAGE: Final = mmap.PAGESIZE
_PAGES_MAX: Final = 4096
"""Pages of one call."""


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


def _find_mincore() -> Any:
    try:
        # The call is short: releasing the interpreter would cost more than the call.
        found = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    found.restype = ctypes.c_int
    return found


_mincore: Final = _find_mincore()
_pages: Final = bytearray(_PAGES_MAX)
_pages_address: Final = ctypes.addressof((ctypes.c_char * _PAGES_MAX).from_buffer(_pages))
_lock: Final = threading.Lock()
"""Guards `_pages`."""


class Map(mmap.mmap):
    """A read-only map that knows its address."""

    address: int = 0
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
        if _mincore is None or not self.address:
            return end
        position = start - start % PAGE
        while position < end:
            size = min(end - position, _PAGES_MAX * PAGE)
            with _lock:
                if _mincore(self.address + position, size, _pages_address) != 0:
                    return end  # the system does not tell
                gap = _pages.find(0, 0, (size + PAGE - 1) // PAGE)
            if gap >= 0:
                return max(start, position + gap * PAGE)
            position += size
        return end
