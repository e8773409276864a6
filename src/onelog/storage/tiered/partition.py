"""A partition whose sealed segments may lie in an object store: one log over both places.

Rules: appends, syncs and states are the local log's own, so nothing is added to them. A read at or
above the local start is a local read; below it, the rows of the store answer, and raise `Cold`. The
log begins where the tier says. Compaction and thinning see local segments only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onelog.base.errors import Closed, InvalidRequest, OffsetOutOfRange
from onelog.base.ids import Offset, TimestampMs
from onelog.kernel import LogEnd
from onelog.objects import names
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.cold.carrying import ColdIndexPart, ColdPosting, ColdRun
from onelog.storage.cold.runs import ColdPages
from onelog.storage.engine import (
    NO_LEASE,
    AskSync,
    Cold,
    Lease,
    LogSettings,
    Rewrite,
    SegmentInfo,
    SyncDone,
    TornTail,
)
from onelog.storage.tiered.inner import LocalLog
from onelog.storage.tiered.moving import PartitionTier
from onelog.storage.tiered.state import TierState

_EMPTY: Final = memoryview(b"")


class ColdManifest(Cold):
    """Which rows there are is known to the store only: this machine's copies are damaged."""

    def __init__(self, name: str) -> None:
        super().__init__(("manifest", name), 0, remote=True)


class TieredLog:
    """One partition's log."""

    __slots__ = ("_closed", "_inner", "_state", "append", "append_built", "log_end", "sync", "tier")

    def __init__(self, inner: LocalLog, state: TierState, tier: PartitionTier) -> None:
        self._inner = inner
        self._state = state
        self._closed = False
        self.tier = tier
        self.log_end: LogEnd | None = inner.log_end
        # Bound here: what happens for every batch gains no second call.
        self.append = inner.append
        self.append_built = inner.append_built
        self.sync = inner.sync

    # Numbers.

    @property
    def start_offset(self) -> Offset:
        """First offset that may be read."""
        return Offset(self._state.start)

    @property
    def local_start_offset(self) -> Offset:
        """First offset whose batches are on this machine."""
        return self._inner.start_offset

    @property
    def end_offset(self) -> Offset:
        """Offset that the next record gets."""
        return self._inner.end_offset

    @property
    def durable_offset(self) -> Offset:
        """Every record below it survives power loss."""
        return self._inner.durable_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of batches held, each counted once."""
        return self._state.cold_bytes + self._inner.size_bytes

    @property
    def kept_high_watermark(self) -> Offset:
        """The high watermark that was kept last; 0: none was kept."""
        return self._inner.kept_high_watermark

    @property
    def torn(self) -> TornTail | None:
        """The tail that recovery cut; None: nothing."""
        return self._inner.torn

    def segments(self) -> list[SegmentInfo]:
        """Segments of all places in order; the last is the active one."""
        return self._state.segments()

    def cold_rows(self, start: Offset, upto: Offset) -> Sequence[Row]:
        """The rows with offsets in [start, upto) that lie in the object store, in order."""
        state = self._state
        with state.lock:
            rows, first = state.rows, max(state.start, start)
        moved = rows[rows.number_at(first) : rows.number_from(upto)]
        end = moved[-1].end if moved else 0
        kept = self._inner.cold_rows(Offset(max(first, end)), upto) if end < upto else ()
        # One that begins before that end was joined across it: offsets that no row has are fetched.
        return [*moved, *(row for row in kept if row.base >= end)]

    def hold_cold(self, until_ms: TimestampMs) -> None:
        """Delete no object that a row named before this time."""
        self.tier.hold_doomed(until_ms)
        self._inner.hold_cold(until_ms)

    # Reading.

    def read(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview:
        """Whole consecutive batches from the one that holds `offset` (or the next), as one view."""
        state = self._state
        while True:
            local = state.local
            if offset >= local:
                try:
                    return self._inner.read(offset, max_bytes, upto)
                except OffsetOutOfRange:
                    if state.local == local:
                        raise
                    continue  # its segment left in this moment: the store has it
            if offset < state.start:
                raise OffsetOutOfRange(
                    f"offset {offset} of {state.name}: the log holds {state.start} to"
                    f" {self._inner.end_offset}"
                )
            found = self._read_cold(offset, max_bytes, upto)
            if found is not None:
                return found

    def _read_cold(self, offset: Offset, max_bytes: int, upto: Offset) -> memoryview | None:
        """Read what is below the local start. None: look again, the rows changed."""
        self._check_rows()
        state = self._state
        cold, local = state.cold, state.local
        below = min(upto, cold.end_offset, Offset(local))
        try:
            if offset < below:
                found = cold.read(max(offset, cold.start_offset), max_bytes, below)
                if found:
                    return found
        except OffsetOutOfRange:
            return None
        if upto <= local:
            return _EMPTY
        try:
            return self._inner.read(Offset(local), max_bytes, upto)
        except OffsetOutOfRange:
            if state.local == local:
                raise
            return None

    def _check_rows(self) -> None:
        """The rows may be read. Raises Closed, ColdManifest."""
        if self._closed:
            raise Closed(f"partition {self._state.name} is closed")
        if self._state.lost:
            raise ColdManifest(self._state.name)

    def offset_for_time(self, timestamp_ms: TimestampMs) -> Offset | None:
        """Base offset of the first batch with max timestamp >= `timestamp_ms`; None if none."""
        state = self._state
        while True:
            local = state.local
            found = None
            if state.start < local:
                self._check_rows()
                found = state.cold.offset_for_time(timestamp_ms, Offset(local))
            if found is None or found >= local:
                found = self._inner.offset_for_time(timestamp_ms)
            if state.local == local:
                return found

    def offsets_of_topic(
        self, topic_hash: int, start: Offset, upto: Offset, limit: int
    ) -> list[Offset] | None:
        """Ascending offsets in [start, upto) whose record's topic has this hash."""
        state = self._state
        while True:
            local = Offset(state.local)
            found: list[Offset] | None = []
            if start < local and state.start < local:
                self._check_rows()
                found = state.cold.offsets_of_topic(topic_hash, start, min(upto, local), limit)
            if found is not None and len(found) < limit and upto > local:
                more = self._inner.offsets_of_topic(
                    topic_hash, max(start, local), upto, limit - len(found)
                )
                found = None if more is None else found + more
            if state.local == local:
                return found

    def aborted(self, start: Offset, upto: Offset) -> Sequence[AbortedSpan]:
        """Aborted transactions with records in [start, upto), of pieces that only the store has."""
        state = self._state
        if start >= state.local:
            return ()
        self._check_rows()
        return state.cold.aborted(start, Offset(min(upto, state.local)))

    def bring(self, cold: Cold) -> Lease:
        """Have cold bytes here, from the store or from the disk."""
        if isinstance(cold, ColdPages):
            return self._state.cold.bring(cold)
        if isinstance(cold, ColdRun | ColdIndexPart | ColdPosting):
            if cold.row.object.startswith(names.DATA):  # the wrapped engine's own rows
                return self._inner.bring(cold)
            return self._state.cold.bring(cold)
        if isinstance(cold, ColdManifest):
            self.tier.load_rows()
            return NO_LEASE
        return self._inner.bring(cold)

    # Changing.

    def begin_sync(self, ask: AskSync, done: SyncDone) -> bool:
        """Begin what `sync` does."""
        return self._inner.begin_sync(ask, done)

    def trim(self, start: Offset) -> None:
        """Move the log's start up to `start`, durably. The store hears of it later."""
        state, inner = self._state, self._inner
        end = inner.end_offset
        if start > end:
            raise OffsetOutOfRange(f"cannot trim to {start}: the log ends at {end}")
        state.wait()  # while the store of an engine without a disk is away, nothing changes
        state.move_start(start)
        if start <= inner.start_offset:
            state.wait()
        else:
            inner.trim(start)
            with state.lock:  # another thread may have moved it further meanwhile
                state.move_local(Offset(max(state.local, inner.start_offset)))

    def truncate(self, end: Offset) -> None:
        """Cut the log so that it ends at or before `end`, durably."""
        state, inner = self._state, self._inner
        if end >= inner.end_offset:
            return
        if end < 0:
            raise InvalidRequest(f"cannot truncate to {end}")
        self.tier.cut(end)
        inner.truncate(end)
        state.move_local(inner.start_offset)

    def rewrite(self, start: Offset, end: Offset) -> Rewrite:
        """Begin to replace the sealed local batches in [start, end)."""
        return self._inner.rewrite(start, end)

    def roll(self) -> None:
        """Seal the active segment, so that it may move."""
        self._inner.roll()

    def keep_high_watermark(self, offset: Offset) -> None:
        """Keep durably how far all replicas that count are."""
        self._inner.keep_high_watermark(offset)

    def save_state(self, name: str, offset: Offset, blob: bytes) -> None:
        """Keep a partition's derived state as of `offset`, durably."""
        self._inner.save_state(name, offset, blob)

    def load_state(self, name: str) -> tuple[Offset, bytes] | None:
        """The newest intact state of `name` whose offset is <= `end_offset`."""
        return self._inner.load_state(name)

    def reconfigure(self, settings: LogSettings) -> None:
        """Use other settings from now on."""
        self._inner.reconfigure(settings)
        self.tier.settings = settings

    def close(self) -> None:
        """Close the local log, and let go of what was brought. Idempotent."""
        self._closed = True
        self._state.cold.close()
        self._inner.close()
