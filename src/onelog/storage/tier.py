"""The tier of a partition: how its sealed segments move to an object store, as its owner sees it.

Words: a *piece* is a run of a partition's batches in the store, a *row* says of it where it lies.
`storage/tiered` implements all of this; the floor above decides when it happens.

Rules: every method but `status` and `waiting` may wait for the store or the disk: callers run them
in threads of the tier, one at a time for a partition, and never on the loop. None of them stops the
partition. ColdUnavailable says that it may work later, and nothing is lost by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from onelog.base.ids import Offset, TimestampMs
from onelog.objects.piece import AbortedSpan
from onelog.objects.rows import Row
from onelog.storage.tables import Adoption

if TYPE_CHECKING:
    from onelog.storage.engine import SegmentInfo

Place = Literal["local", "both", "cold"]
"""Where batches lie: on this machine, here and in the store, or in the store only."""
TierFormat = Literal["log", "iceberg", "delta"]


class TierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """That sealed segments of a partition move to the store, and in which form."""

    format: TierFormat = "log"
    """`log`: batches as they are; the others: files of a table."""
    copy: bool = True
    """False: nothing more is copied; the rows that exist are read and leave by retention."""
    table: Mapping[str, str] = {}
    """The settings of the table, for the lake process."""


class TierStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The tier of a partition at a glance."""

    rows: int
    cold_bytes: int
    """Bytes of batches in the store."""
    cold_end_offset: Offset
    """First offset behind the rows; the log's start, if there is none."""
    local_start_offset: Offset
    local_bytes: int
    """Bytes of batches on this machine."""
    hits: int
    """Cold reads whose bytes were in the cache."""
    misses: int
    """Cold reads that waited for the store."""
    doomed: int
    """Objects that no row names any more, and that are still there."""
    seq: int
    """Number of the newest manifest that is known here; 0: none was written."""
    halted: str
    """Why nothing is moved to the store any more until somebody acts; empty: nothing hinders it."""


class PieceSource(Protocol):
    """What the owner of a partition knows of its records, and a piece or a manifest must say."""

    @property
    def stream(self) -> bytes:
        """The stream's record, as the metadata has it (JSON)."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The epoch of the partition's writer."""
        ...

    def state(self, end: Offset) -> bytes:
        """The derived state as of `end`."""
        ...

    def aborted(self, start: Offset, end: Offset) -> Sequence[AbortedSpan]:
        """Aborted transactions with records in [start, end)."""
        ...


class Tier(Protocol):
    """Moves the sealed segments of one partition."""

    def status(self) -> TierStatus:
        """How far it is. Does not block."""
        ...

    def waiting(self, stable: Offset) -> Sequence[SegmentInfo]:
        """Sealed segments that are not in the store and may go there, oldest first.

        `stable` is the last stable offset; only what lies below it and is durable may go. Does not
        block.
        """
        ...

    def upload(self, stable: Offset, source: PieceSource) -> Row | None:
        """Copy the next piece into the store: one segment, or neighbours that fit one segment.

        None: nothing is due. Raises Fenced when another writer moves this partition, StorageError
        when the store is not the one that holds our rows, ColdUnavailable.
        """
        ...

    def hurry(self) -> None:
        """Let the next `upload` commit to a table, although its time has not come. Does not
        block."""
        ...

    def adoption(self) -> Adoption:
        """What is known of the partition's table, for `adopt`. Raises InvalidRequest when its tier
        is no table, and as `upload`."""
        ...

    def adopt(self, parts: Sequence[Adoption]) -> Mapping[int, Sequence[Row]]:
        """Take rows of the stream's table over that somebody else rewrote; `parts` are the
        adoptions of all of its partitions. Raises Conflict, and changes nothing then."""
        ...

    def take_adopted(self, part: Adoption, rows: Sequence[Row]) -> None:
        """Name the rows that `adopt` made of this partition; the tier goes on. Raises as
        `upload`."""
        ...

    def settle(self, now_ms: TimestampMs, grace_ms: int) -> int:
        """Tell the store what `trim` decided, and delete doomed objects after the grace time.

        Returns how many objects were deleted. Raises as `upload`.
        """
        ...

    def trim_local(self, upto: Offset) -> Offset:
        """Drop local segments of pieces that end at or before `upto`. Returns the local start."""
        ...

    def bring_back(self) -> bool:
        """Fetch the newest piece that is only in the store into a local segment. False: there is
        none. Raises ColdUnavailable, ColdDamaged, StorageFull."""
        ...

    def delete_cold(self) -> None:
        """Name no row any more: what is only in the store leaves the log, its objects are doomed.

        The log then begins at its local start.
        """
        ...
