"""Until when objects stay for plans of clients that read the store themselves.

Rules: one time counts for all partitions of a data directory, also after a restart. It is written
before a plan is answered, `SLACK_MS` later than needed, so that plans in a row write one file. A
file that is gone or damaged holds nothing back, and none holds for longer than `HELD_MS_MAX`: the
clock may have been wrong. What goes too early costs such a client a question: it asks again for
what is left.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Final

SLACK_MS: Final = 5 * 60_000
HELD_MS_MAX: Final = 2 * 3600_000


class PlanHold:
    """The time of one data directory."""

    __slots__ = ("_lock", "_path", "_written_ms", "at_start_ms")

    def __init__(self, path: Path, now_ms: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.at_start_ms = min(self._load(), now_ms + HELD_MS_MAX)
        """Until when plans that an earlier process answered hold objects; 0: none does."""
        self._written_ms = self.at_start_ms

    def _load(self) -> int:
        try:
            text = self._path.read_bytes()
        except OSError:
            return 0
        return int(text) if len(text) < 20 and text.isdigit() else 0

    def extend(self, until_ms: int) -> None:
        """A plan holds objects until a time: remember it. It blocks."""
        with self._lock:
            if until_ms <= self._written_ms:
                return
            kept = until_ms + SLACK_MS
            beside = self._path.with_name(self._path.name + ".tmp")
            with contextlib.suppress(OSError):  # a full disk refuses no plan
                self._path.parent.mkdir(parents=True, exist_ok=True)
                beside.write_bytes(b"%d" % kept)
                beside.replace(self._path)
                self._written_ms = kept
