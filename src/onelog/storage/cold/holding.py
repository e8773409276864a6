"""How long objects that no row names any more stay for those who planned to read them.

Rules: a plan names the objects of its moment. One that was doomed before is not among them, so it
is not held; one that is doomed later is held for as long as the longest plan of before lasts. Plans
that follow each other therefore hold an object once, not for ever. Plans that a process answered
before a restart hold as the note on the disk says (`plans.py`). Readers that find an object gone
all the same ask again.
"""

from __future__ import annotations

from onelog.storage.cold.plans import HELD_MS_MAX, PlanHold


class DoomedHold:
    """Until when doomed objects stay."""

    __slots__ = ("_longest_ms", "_plans", "_until_ms")

    def __init__(self, plans: PlanHold | None = None) -> None:
        """`plans` remembers beyond this process; None: nothing does."""
        self._plans = plans
        self._until_ms = 0 if plans is None else plans.at_start_ms
        self._longest_ms = HELD_MS_MAX if self._until_ms else 0

    def until(self, now_ms: int, until_ms: int) -> None:
        """Somebody plans to read the objects of now until a time. Any thread may call this; with
        `plans` it blocks."""
        self._longest_ms = max(self._longest_ms, until_ms - now_ms)
        self._until_ms = max(self._until_ms, until_ms)
        if self._plans is not None:
            self._plans.extend(until_ms)

    def due_ms(self, since_ms: int, grace_ms: int) -> int:
        """When an object may be deleted that has been doomed since a time."""
        return max(since_ms + grace_ms, min(self._until_ms, since_ms + self._longest_ms))
