"""The segment engine: append-only files of record batches, and everything that can be rebuilt."""

from onelog.storage.segment.engine import SegmentEngine
from onelog.storage.segment.partition import SegmentLog
from onelog.storage.segment.recovery import RecoveryStats

__all__ = ["SegmentEngine", "SegmentLog", "RecoveryStats"]
