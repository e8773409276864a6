"""Which bytes of a mapped file are in memory, interpreted: asked of `mincore`.

Rules: on a system without `mincore`, all bytes count as in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any, Final

PAGE: Final = mmap.PAGESIZE
_PAGES_MAX: Final = 4096
"""Pages of one call."""


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


def here_to(address: int, fd: int, start: int, end: int) -> int:
    """The end of the bytes between `start` and `end` that are in memory without a gap.

    `address` is that of the map (0: unknown), `fd` an open descriptor of its file (-1: none).
    """
    del fd
    if _mincore is None or not address:
        return end
    position = start - start % PAGE
    while position < end:
        size = min(end - position, _PAGES_MAX * PAGE)
        with _lock:
            if _mincore(address + position, size, _pages_address) != 0:
                return end  # the system does not tell
            gap = _pages.find(0, 0, (size + PAGE - 1) // PAGE)
        if gap >= 0:
            return max(start, position + gap * PAGE)
        position += size
    return end
