"""Locks, interpreted: one that guards the state of a partition's log.

Rules: the thread that has it may take it again, and gives it back as often. `acquire(False)` does
not wait. Only its owner gives it back.
"""

from __future__ import annotations

import threading


class StateLock:
    """A lock that its owner may take again."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        """Take it. Returns whether it is this thread's now."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Give it back as often as it was taken."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_raised: object) -> None:
        self._lock.release()
