"""`onelog` with a clock that is some days ahead: `later.py DAYS serve …`. For examples only."""

from __future__ import annotations

import sys
import time

from onelog.__main__ import main
from onelog.base.clock import SystemClock

DAY_NS = 24 * 3600 * 1_000_000_000


def shift_clock(days: int) -> None:
    """Let every wall clock of this process be ahead."""
    ahead_ns = days * DAY_NS
    SystemClock.now_ns = lambda _: time.time_ns() + ahead_ns  # type: ignore[method-assign]
    SystemClock.now_ms = lambda self: self.now_ns() // 1_000_000  # type: ignore[method-assign,assignment,return-value]


if __name__ == "__main__":
    shift_clock(int(sys.argv.pop(1)))
    main()
