"""What a part of the example has seen so far: counted by its own thread, shown by the table."""

from __future__ import annotations

import threading
from collections import Counter

from plan import Said


class Tally:
    """Messages, by what makes each one of a kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Counter[Said] = Counter()
        self._note = ""

    def add(self, said: Said) -> None:
        with self._lock:
            self._seen[said] += 1

    def say(self, note: str) -> None:
        """What the table shows beside the count."""
        with self._lock:
            self._note = note

    @property
    def note(self) -> str:
        with self._lock:
            return self._note

    @property
    def count(self) -> int:
        with self._lock:
            return self._seen.total()

    @property
    def seen(self) -> Counter[Said]:
        with self._lock:
            return self._seen.copy()
