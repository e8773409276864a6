"""`make bench-log`: the bars of kernel, storage, topic index, broker, memory and chores.

Rules: a ratio's two sides are measured in the same run, in turns; a missed bar is shown and the
exit code stays 0. `ARGS=storage` (one or more names of parts) runs a part only.
"""

from __future__ import annotations

import sys
import time

from bench import kernel, log_broker, log_chores, log_memory, log_storage, log_topics
from bench.report import Row, report, say

PARTS = {
    "kernel": kernel.run,
    "storage": log_storage.run,
    "topics": log_topics.run,
    "broker": log_broker.run,
    "memory": log_memory.run,
    "chores": log_chores.run,
}


def main() -> int:
    """Measure what was asked for, all of it by default."""
    asked = sys.argv[1:] or list(PARTS)
    unknown = sorted(set(asked) - set(PARTS))
    if unknown:
        print(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    start = time.monotonic()
    rows: list[Row] = []
    for name in asked:
        say(f"-- {name}")
        rows += PARTS[name]()
    report("log", rows, *sys.argv[1:])
    say(f"took {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
