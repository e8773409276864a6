"""What this process asks of Python and of the system, so that messages are quick.

Rules: nothing here is needed to be right, only to be quick; where the system does not know a
request, nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import sys
from typing import Final

SWITCH_S: Final = 0.0005
"""How long a thread may keep the interpreter from another one that waits for it."""
_NICE_MOST: Final = 19
DESCRIPTORS_AHEAD: Final = 65_536
"""How many open files the system has a table for from the start: half a megabyte of its memory."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def share_the_interpreter() -> None:
    """Let the event loop wait for a busy thread for half a millisecond at a time, not for five.

    Beside a thread that computes, p99 of a wake-up of the loop was 10 ms with Python's own 5 ms,
    and is 1.3 ms with this; the thread gets a tenth less done (measured).
    """
    sys.setswitchinterval(SWITCH_S)


def spare_the_collector() -> None:
    """Let Python's cycle collector leave alone what lives as long as the process.

    A collection walks the objects of its generation while clients wait: 0.13 to 0.25 ms per
    thousand (measured). So the young generation is small: when thousands of connections come in a
    second, a pause is 30 to 60 µs. Hot paths make no cycles, so older generations are collected
    after a million and 20 million objects that stay.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(250, 4_000, 20)


def reserve_descriptors() -> None:
    """Let the system make its table of open files once, before clients come.

    Linux doubles the table of a process whenever a descriptor does not fit. A process with threads
    waits meanwhile until every processor has seen it: 12 to 14 ms at 1,024 connections, and again
    at 2,048 and so on (measured). Nobody is served in that time.
    """
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_AHEAD if limit == resource.RLIM_INFINITY else min(limit, DESCRIPTORS_AHEAD)
    with contextlib.suppress(OSError):
        first = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.close(fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, wanted - 1))
        finally:
            os.close(first)


def stand_back() -> None:
    """Let a helper process have the processor only when the broker and others leave it alone.

    The broker that wakes up waits for a helper of a higher priority until that one's slice is over:
    3 to 4 ms beside four busy threads of priority 10 (measured).
    """
    with contextlib.suppress(OSError):
        os.nice(_NICE_MOST)


def keep_freed_memory() -> None:
    """Let glibc keep what a pass of the loop frees, for the next pass.

    It would give buffers of a few hundred KB back to the system and fault them in again at once:
    fan-out of QoS 1 to many was seven times slower so (measured). Elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_TRIM_THRESHOLD, 128 * 1024 * 1024)
        libc.mallopt(_M_MMAP_THRESHOLD, 4 * 1024 * 1024)


def raise_open_files_limit(wanted: int) -> None:
    """Lift the soft limit of open files towards `wanted`: every open segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
