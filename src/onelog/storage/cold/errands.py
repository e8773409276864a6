"""Fetches that are under way: each is made once, and whoever wants the same bytes waits for it.

Rules: a caller that finds an errand waits for its end, never without a deadline. What an errand
brought is held for each of its waiters. Its error is raised by all of them.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Generic, TypeVar

from onelog.base.errors import ColdUnavailable, OnelogError

T = TypeVar("T")

WAIT_S: Final = 30.0
"""How long somebody waits for another's fetch, or for room, beside the time for the bytes."""
BYTES_PER_S_MIN: Final = 1_000_000


def deadline_after(size_bytes: int) -> float:
    """When a wait for so many bytes ends (of `time.monotonic`)."""
    return time.monotonic() + WAIT_S + size_bytes / BYTES_PER_S_MIN


class Errand(Generic[T]):
    """Bytes on their way. The owner's lock guards `waiters` and `brought`."""

    __slots__ = ("_over", "asked", "brought", "end", "error", "first", "gave_up", "name", "waiters")

    def __init__(self, name: str, first: int = 0, end: int = 0, asked: int = 0) -> None:
        self.name = name
        self.first = first
        self.end = end
        """The offsets that it is to answer for, if it brings a run."""
        self.asked = asked
        """The one that it was asked for."""
        self.waiters = 0
        self.brought: T | None = None
        self.error: Exception | None = None
        self.gave_up = False
        """There was no room, and whoever ran it does not wait for room: others may."""
        self._over = threading.Event()

    def land(self, brought: T | None, error: Exception | None) -> None:
        """It is over."""
        self.brought = brought
        self.error = error
        self._over.set()

    def wait(self, deadline: float) -> bool:
        """Block until it is over. False: the deadline passed."""
        return self._over.wait(max(0.0, deadline - time.monotonic()))

    def fail(self) -> None:
        """Raise its error, if it has one: an own object for each waiter."""
        error = self.error
        if error is None:
            return
        if isinstance(error, OnelogError):
            raise type(error)(*error.args) from error
        raise ColdUnavailable(f"{self.name} could not be fetched: {error}") from error
