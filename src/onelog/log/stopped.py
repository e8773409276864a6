"""The log of a partition that could not be opened: it looks empty, and refuses every use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from onelog.base.errors import OnelogError, again
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import BatchBuilder, BatchInfo
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.engine import (
    AskSync,
    Buffer,
    Cold,
    Lease,
    LogSettings,
    Rewrite,
    SegmentInfo,
    SyncDone,
    TornTail,
)


class StoppedLog:
    """Stands in for a damaged log, so that its stream can be shown and the other partitions run."""

    start_offset = Offset(0)
    local_start_offset = Offset(0)
    end_offset = Offset(0)
    durable_offset = Offset(0)
    kept_high_watermark = Offset(0)
    size_bytes = 0
    torn: TornTail | None = None
    log_end = None
    tier = None

    def __init__(self, error: OnelogError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise again(self._error)

    def append(
        self, data: Buffer, batches: Sequence[BatchInfo], topics: bytes | None = None
    ) -> None:
        """Refused."""
        self._refuse()

    def append_built(self, builder: BatchBuilder, leader_epoch: int, index_topics: bool) -> bytes:
        """Refused."""
        self._refuse()

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Refused."""
        self._refuse()

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Refused."""
        self._refuse()

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Refused."""
        self._refuse()

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """None are known."""
        return ()

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """None are known."""

    def aborted(self, start: Offset, upto: Offset) -> Sequence[AbortedSpan]:
        """None are known."""
        return ()

    def bring(self, cold: Cold) -> Lease:
        """Refused."""
        self._refuse()

    def sync(self) -> Offset:
        """Refused."""
        self._refuse()

    def begin_sync(self, ask: AskSync, done: SyncDone) -> bool:
        """False: `sync` refuses."""
        return False

    def trim(self, start: Offset) -> None:
        """Refused."""
        self._refuse()

    def truncate(self, end: Offset) -> None:
        """Refused."""
        self._refuse()

    def keep_high_watermark(self, offset: Offset) -> None:
        """Refused."""
        self._refuse()

    def roll(self) -> None:
        """Refused."""
        self._refuse()

    def segments(self) -> list[SegmentInfo]:
        """None are known."""
        return []

    def rewrite(self, start: Offset, end: Offset) -> Rewrite:
        """Refused."""
        self._refuse()

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Refused."""
        self._refuse()

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """None is known."""
        return None

    def reconfigure(self, settings: LogSettings) -> None:
        """Nothing to change."""

    def close(self) -> None:
        """Nothing to close."""
