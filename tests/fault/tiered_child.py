"""A process that moves a partition to a store until a fault point ends it.

Usage: python -m tests.fault.tiered_child <root>, with ONELOG_FAULTS set. It prints what is
promised: `synced <offset>` when all below it must survive, `start <offset>` before a trim and
`started` behind it, and `done` if no fault point ended it. The store is a folder below the root, or
the bucket of STORE_URL and STORE_OPTIONS (JSON).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.tiered import TieredEngine
from tests.batches import fill
from tests.support.tiers import KEY, SMALL, move_all, tiered, upload_all

TRIMMED = 40


def store_of(root: Path) -> ObjectStore:
    url, options = os.environ.get("STORE_URL"), os.environ.get("STORE_OPTIONS", "{}")
    if url:
        return open_store(StoreSettings(url=url, options=json.loads(options), deadline_ms=5000))
    folder = root / "store"
    folder.mkdir(parents=True, exist_ok=True)
    return open_store(StoreSettings(url=f"file://{folder}"))


def engine_of(root: Path) -> TieredEngine:
    return tiered(root / "data", store_of(root), SystemClock())


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> None:
    engine = engine_of(Path(sys.argv[1]))
    log, clock = engine.open(KEY, SMALL), SystemClock()
    faults.arm_from_environment(os.environ["ONELOG_FAULTS"])
    fill(log, 100)
    say(f"synced {log.sync()}")
    upload_all(log)
    log.tier.trim_local(log.end_offset)
    fill(log, 60)
    say(f"synced {log.sync()}")
    say(f"start {TRIMMED}")
    log.trim(TRIMMED)
    say("started")
    log.tier.settle(clock.now_ms() + 10, 0)
    move_all(log)
    log.tier.bring_back()
    log.tier.settle(clock.now_ms() + 10, 0)
    engine.close()
    say("done")


if __name__ == "__main__":
    main()
