"""A token bucket: what a rate allows, counted after it was done.

Rules: a count is never refused. One that the bucket cannot cover is a debt, and the answer is how
long the debtor has to wait. So over any time, what is taken is at most the rate times that time,
and a burst, and the last count of each debtor. The caller passes the time.
"""

from __future__ import annotations

from typing import Any


class TokenBucket:
    """The tokens of one rate; whoever shares the rate shares the bucket."""

    __slots__ = ("_at", "_level", "capacity", "key", "rate", "sharers")

    def __init__(self, rate: float, burst_s: float, now: float, key: Any = None) -> None:
        assert rate > 0
        assert burst_s > 0
        self.rate = rate
        self.capacity = rate * burst_s
        self._level = self.capacity
        self._at = now
        self.key = key
        """Who shares it, as its owner knows it."""
        self.sharers = 0
        """Connections that take from it now."""

    def debit(self, count: float, now: float) -> float:
        """Take so many tokens. Returns the seconds until the bucket is out of debt."""
        elapsed = now - self._at
        if elapsed > 0:
            self._level = min(self.capacity, self._level + elapsed * self.rate)
            self._at = now
        self._level -= count
        return -self._level / self.rate if self._level < 0 else 0.0

    def takes(self, now: float) -> bool:
        """Take one token, if there is one. Returns whether there was."""
        if self.debit(0, now) > 0 or self._level < 1:
            return False
        self._level -= 1
        return True
