"""A process that writes to a segment partition until a fault point ends it.

Usage: python -m tests.fault.segment_child <root>, with ONELOG_FAULTS set. It prints what is
promised: `synced <offset>` when all below it must survive, and `done` if no fault point ended it.
"""

from __future__ import annotations

import os
import sys

from onelog.base import faults
from onelog.kernel import scan_batches
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.segment import SegmentEngine
from tests.batches import append, fill, make_batch

KEY = PartitionKey("s-1", 0)
SETTINGS = LogSettings(segment_bytes=2_000, index_interval_bytes=256)


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    engine = SegmentEngine(sys.argv[1])
    log = engine.open(KEY, SETTINGS)
    faults.arm_from_environment(os.environ["ONELOG_FAULTS"])
    for _ in range(6):
        fill(log, 9, size=60)
        say(f"synced {log.sync()}")
    append(log, make_batch(log.end_offset, 4, topic=b"t"))
    log.save_state("producers", log.end_offset, b"state")
    say(f"synced {log.sync()}")
    say("trim 16")
    log.trim(16)
    log.roll()
    rows = [row for row in log.segments() if row.sealed]
    say("rewrite")
    rewrite = log.rewrite(rows[0].base_offset, rows[-1].end_offset)
    for offset in range(rows[0].base_offset, 40):
        if offset % 2 == 0:
            batch = make_batch(offset, size=60)
            rewrite.append(batch, scan_batches(batch))
    rewrite.commit()
    fill(log, 9, size=60)
    say(f"synced {log.sync()}")
    say("synced 60")
    log.truncate(60)
    fill(log, 5)
    say(f"synced {log.sync()}")
    engine.close()
    say("done")


if __name__ == "__main__":
    main()
