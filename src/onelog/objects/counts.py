"""What a store was asked, in plain numbers: for metrics, for people, and for the bill.

Rules: every number only grows, except those of the last hour. Several threads count, under one
lock: a request takes a thousand times longer.
"""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

KINDS: Final = ("put", "get", "list", "delete")
_MINUTES: Final = 60


class Usage(NamedTuple):
    """Requests and bytes of a time."""

    put: int = 0
    get: int = 0
    list: int = 0
    delete: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(*(mine + its for mine, its in zip(self, other, strict=True)))


class Prices(NamedTuple):
    """Dollars per million requests, and per gigabyte that is sent or received."""

    put: float
    get: float
    list: float
    delete: float
    sent_gb: float
    received_gb: float

    def dollars(self, usage: Usage) -> float:
        """What it costs."""
        requests = sum(
            getattr(usage, kind) * float(getattr(self, kind)) / 1_000_000 for kind in KINDS
        )
        moved = usage.sent_bytes * self.sent_gb + usage.received_bytes * self.received_gb
        return float(requests + moved / 1_000_000_000)


class RequestCounts:
    """The numbers of one store since it was opened."""

    def __init__(self) -> None:
        self.put = self.get = self.list = self.delete = 0
        """Requests that the store answered or should have answered, by kind."""
        self.sent_bytes = self.received_bytes = 0
        self.errors = 0
        """Calls that failed; `throttled` and `refused` of them for that reason."""
        self.throttled = self.refused = 0
        self.last_success_ms = 0
        """Wall clock of the last answer that was no error; 0: none yet."""
        self.last_error = ""
        """What the last call that failed said; empty: the last call did not fail."""
        self._minutes: dict[int, Usage] = {}
        self._lock = threading.Lock()

    def note(
        self, kind: str, requests: int, *, sent_bytes: int = 0, received_bytes: int = 0
    ) -> None:
        """Count requests of a call that succeeded."""
        with self._lock:
            self.last_success_ms = int(time.time() * 1000)
            self.last_error = ""
            self._add(kind, requests, sent_bytes, received_bytes)

    def note_failure(self, kind: str, reason: str, text: str) -> None:
        """Count a call that failed; the store charges for some of these, so it is a request."""
        with self._lock:
            self.errors += 1
            self.throttled += reason == "throttled"
            self.refused += reason in ("refused", "clock", "bucket")
            self.last_error = text
            self._add(kind, 1, 0, 0)

    def _add(self, kind: str, requests: int, sent_bytes: int, received_bytes: int) -> None:
        setattr(self, kind, getattr(self, kind) + requests)
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes
        minute = int(time.monotonic() // 60)
        more = Usage(sent_bytes=sent_bytes, received_bytes=received_bytes)
        more = more._replace(**{kind: requests})
        self._minutes[minute] = self._minutes.get(minute, Usage()).plus(more)
        for old in [one for one in self._minutes if one <= minute - _MINUTES]:
            del self._minutes[old]

    @property
    def total(self) -> Usage:
        """Since the store was opened."""
        return Usage(
            self.put, self.get, self.list, self.delete, self.sent_bytes, self.received_bytes
        )

    def last_hour(self) -> Usage:
        """In the last sixty minutes."""
        oldest = int(time.monotonic() // 60) - _MINUTES
        with self._lock:
            rows = [usage for minute, usage in self._minutes.items() if minute > oldest]
        found = Usage()
        for usage in rows:
            found = found.plus(usage)
        return found
