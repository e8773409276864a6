"""A process that writes to an object engine until a fault point ends it.

Usage: python -m tests.fault.object_child <directory>, with ONELOG_FAULTS, STORE_URL, CHAIN_URL (may
be empty) and STORE_OPTIONS (JSON) set. It prints what is promised: `synced <partition> <offset>`
when all below it must survive, and `done` if no fault point ended it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from onelog.base import faults
from onelog.base.ids import PartitionId
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.object import ObjectEngine
from tests.batches import fill
from tests.support.object_engine import object_engine

KEYS = [PartitionKey("s-1", PartitionId(0)), PartitionKey("s-1", PartitionId(1))]
SETTINGS = LogSettings(segment_bytes=3_000)


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def the_store(url: str) -> ObjectStore:
    options = json.loads(os.environ["STORE_OPTIONS"])
    return open_store(StoreSettings(url=url, options=options, deadline_ms=5000))


def an_engine(
    store: ObjectStore, directory: Path, chain_store: ObjectStore | None = None
) -> ObjectEngine:
    small = {"join_rows": 3, "own_object_bytes": 1500, "checkpoint_objects": 4}
    return object_engine(store, directory, chain_store=chain_store, **small)


def main() -> None:
    store, directory = the_store(os.environ["STORE_URL"]), Path(sys.argv[1])
    chain_url = os.environ["CHAIN_URL"]
    chain_store = the_store(chain_url) if chain_url else None
    faults.arm_from_environment(os.environ["ONELOG_FAULTS"])
    for _ in range(3):  # the next engine takes over from the one before, without a word
        engine = an_engine(store, directory, chain_store)
        logs = [engine.open(key, SETTINGS) for key in KEYS]
        for turn in range(4):
            for number, log in enumerate(logs):
                fill(log, 3 + number, size=200)
                say(f"synced {number} {log.sync()}")
            if turn % 2:
                engine.upkeep.settle()
                engine.upkeep.work()
    say("done")
    engine.close()


if __name__ == "__main__":
    main()
