"""Brings fetched files of a backup to its cut, or to a moment before it, offline.

Rules:
- Every partition of the backup must open, and end where the backup says.
- To go back to a moment, batches from the first one on that has a later record are cut off. The log
  goes on behind the offsets that it had: no offset is ever given to a second record, so that every
  position of a group, queue or session is still right, and the next record it gets is a new one.
- A transaction that is open at the moment is aborted there.
- Internal streams stay as they are: they hold only the newest state of each name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from onelog.backup.manifest import BackupPartition
from onelog.backup.restored import RestoredPartition
from onelog.base.errors import StorageError
from onelog.base.ids import Offset, PartitionId, TimestampMs
from onelog.kernel import place_batches
from onelog.log.replay import replay_state
from onelog.record.batch import Marker, build_marker
from onelog.storage.engine import Engine, LogSettings, PartitionKey, PartitionLog, in_place

_NOBODY = (-1, -1)
"""The producer of a marker that only takes an offset."""


def settle(
    engine: Engine, rows: Iterable[BackupPartition], upto_ms: int | None
) -> list[RestoredPartition]:
    """Check and cut the partitions of one engine. It blocks. Raises OnelogError."""
    return [_settle_one(engine, row, upto_ms) for row in rows if row.end]


def with_log(engine: Engine, row: BackupPartition, work: Callable[[PartitionLog], None]) -> None:
    """Let `work` have the log of a partition of the backup."""
    key = PartitionKey(row.stream_id, PartitionId(row.partition))
    log = engine.open(key, LogSettings())
    try:
        work(log)
        log.sync()
    finally:
        log.close()


def _settle_one(engine: Engine, row: BackupPartition, upto_ms: int | None) -> RestoredPartition:
    found: list[RestoredPartition] = []

    def work(log: PartitionLog) -> None:
        if log.end_offset > row.end:
            log.truncate(Offset(row.end))
        if log.end_offset != row.end:
            raise StorageError(
                f"{row.stream}/{row.partition} ends at offset {log.end_offset} after the restore,"
                f" and the backup at {row.end}: choose another backup"
            )
        end = row.end
        if upto_ms is not None and not row.internal:
            end = _go_back(log, upto_ms)
        found.append(
            RestoredPartition(
                stream=row.stream,
                partition=row.partition,
                internal=row.internal,
                start=int(log.start_offset),
                end=end,
                next=int(log.end_offset),
            )
        )

    with_log(engine, row, work)
    return found[0]


def _go_back(log: PartitionLog, upto_ms: int) -> int:
    """Cut off what is later. Returns where the records end."""
    was = log.end_offset
    later = TimestampMs(upto_ms + 1)
    first = in_place(log, partial(log.offset_for_time, later))
    if first is None or first >= was:
        return int(was)
    log.truncate(max(first, log.start_offset))
    end = int(log.end_offset)
    producers, epochs = replay_state(log, upto_ms)
    markers = [
        (producer_id, 0 if (entry := producers.entry(producer_id)) is None else entry.epoch)
        for producer_id in producers.open_transactions()
    ] or [_NOBODY]
    _mark(log, max(int(was), end + len(markers)), markers, max(epochs.latest, 0), upto_ms)
    return end


def _mark(
    log: PartitionLog, end: int, markers: Sequence[tuple[int, int]], epoch: int, now_ms: int
) -> None:
    """Append markers so that the log ends at `end`."""
    for number, (producer_id, producer_epoch) in enumerate(markers):
        data = bytearray(build_marker(Marker.ABORT, producer_id, producer_epoch, now_ms))
        offset = end - len(markers) + number
        log.append(data, place_batches(data, offset, epoch))
