"""A hold on what leaves the log: while it lasts, nothing is trimmed, swapped or deleted.

Rules: threads that take files away do so inside `leaving`, and wait there while the hold lasts.
Whoever holds waits first until none of them is at work. A hold is short: it covers the making of
hard links, not the copying of what they name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from onelog.base.errors import Timeout

WAIT_S_MAX: Final = 60.0
"""How long a hold waits for a trim or a swap that is under way."""


class LeavingHold:
    """One for all partitions. Used in threads only: it blocks."""

    __slots__ = ("_changed", "_held", "_leaving")

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._leaving = 0
        self._held = False

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Files go inside of this block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._leaving += 1
        try:
            yield
        finally:
            with self._changed:
                self._leaving -= 1
                self._changed.notify_all()

    def hold(self) -> None:
        """Let nothing leave until `release`. Raises Timeout, and then nothing is held."""
        with self._changed:
            assert not self._held, "one hold at a time"
            self._held = True
            if not self._changed.wait_for(lambda: not self._leaving, WAIT_S_MAX):
                self._held = False
                self._changed.notify_all()
                raise Timeout(
                    f"retention or compaction was at work for {WAIT_S_MAX:.0f} s without a pause:"
                    " try again later"
                )

    def release(self) -> None:
        """Let things leave again."""
        with self._changed:
            self._held = False
            self._changed.notify_all()
