"""When each lease of the embedded store is due, on the monotonic clock.

Rules: nothing here knows the loop or the disk. A renewal costs a dict write: the heap keeps one
row per lease, and a row that comes up too early goes back with the lease's true deadline.
"""

from __future__ import annotations

import heapq

from onelog.base.clock import Clock


class LeaseTable:
    """Deadlines of live leases."""

    __slots__ = ("_clock", "_deadlines", "_heap", "_ttls")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ttls: dict[int, float] = {}
        self._deadlines: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def add(self, lease: int, ttl_s: float) -> None:
        """Start a lease's time."""
        deadline = self._clock.monotonic() + ttl_s
        self._ttls[lease] = ttl_s
        self._deadlines[lease] = deadline
        heapq.heappush(self._heap, (deadline, lease))

    def renew(self, lease: int) -> bool:
        """Restart a lease's time. Returns False when it is gone or past its deadline."""
        now = self._clock.monotonic()
        deadline = self._deadlines.get(lease)
        if deadline is None or deadline <= now:
            return False
        self._deadlines[lease] = now + self._ttls[lease]
        return True

    def remove(self, lease: int) -> None:
        """Forget a lease that was revoked; its row in the heap goes when it comes up."""
        self._ttls.pop(lease, None)
        self._deadlines.pop(lease, None)

    def take_due(self) -> list[int]:
        """Remove and return the leases whose time is over."""
        now = self._clock.monotonic()
        due: list[int] = []
        while (soonest := self.soonest()) is not None and soonest <= now:
            lease = heapq.heappop(self._heap)[1]
            self.remove(lease)
            due.append(lease)
        return due

    def soonest(self) -> float | None:
        """The next deadline, or None without leases."""
        heap = self._heap
        while heap:
            written, lease = heap[0]
            deadline = self._deadlines.get(lease)
            if deadline == written:
                return deadline
            if deadline is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (deadline, lease))
        return None
