"""Tiers: sealed segments that move to an object store.

Rules: a user of this package sees one log; only the floor that decides when segments move knows of
two places. The wrapped engine hardly notices.
"""

from onelog.storage.tiered.engine import TieredEngine
from onelog.storage.tiered.partition import TieredLog
from onelog.storage.tiered.restoring import (
    StoredPartition,
    restore_partition,
    stored_partition,
    stored_partitions,
)

__all__ = [
    "StoredPartition",
    "TieredEngine",
    "TieredLog",
    "restore_partition",
    "stored_partition",
    "stored_partitions",
]
