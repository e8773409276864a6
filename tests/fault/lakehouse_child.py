"""A broker's engine that moves segments into a table, until a fault point ends the process.

The store is a folder, or the bucket of STORE_URL and STORE_OPTIONS (JSON).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from onelog.base import faults
from onelog.lake.jobs import PingJob
from tests.batches import append, make_batch
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.tiers import KEY, Owner


def main(folder: str, table_format: str, point: str, place: str) -> None:
    """Write, copy, and die at the point; `place` is "disk" or "store"."""
    url, options = os.environ.get("STORE_URL", ""), os.environ.get("STORE_OPTIONS", "{}")
    site = LakeSite(Path(folder), table_format, url, json.loads(options), has_disk=place == "disk")
    engine = site.engine()
    log = engine.open(KEY, table_settings(table_format))
    for _ in range(3):
        append(log, make_batch(log.end_offset, 10, size=400))
    log.roll()
    log.sync()
    lake = site.opened()[0]
    lake.process.ask(PingJob(), 60.0)
    sys.stdout.write(f"{lake.process.pid}\n")
    sys.stdout.flush()
    faults.arm(point, faults.die())
    log.tier.upload(log.end_offset, Owner())


if __name__ == "__main__":
    main(*sys.argv[1:])
