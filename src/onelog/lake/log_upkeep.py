"""Upkeep of the table of a stream: retention, snapshots, files that nothing names.

Rules: a file leaves the table when all of its offsets lie before the log's start, unless the table
keeps rows longer. A file is deleted when no snapshot names it and it is older than any commit that
could still add it. Whoever loses a race begins again the next time.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Final

from onelog.base.errors import Conflict
from onelog.lake.delta import DeltaLake
from onelog.lake.iceberg import IcebergTable
from onelog.lake.jobs import UpkeepJob
from onelog.lake.log_table import span_of
from onelog.lake.log_tables import LogTable
from onelog.lake.tables import LakeTable, TableFile
from onelog.lake.upkeep import ORPHAN_AGE, sweep_iceberg

AS_LOG: Final = -2
NEVER: Final = -1


def keep_up_log(log: LogTable, job: UpkeepJob) -> tuple[int, int]:
    """Make a table what it should be. Returns files that left it, and files that were deleted."""
    table = log.open()
    gone = [
        file for path, file in log.files(table).items() if _is_over(log, table, path, file, job)
    ]
    removed = 0
    if gone and log.replace(table, [], gone):
        removed = len(gone)
        table = log.open()
    return removed, _forget(log, table, job)


def _is_over(log: LogTable, table: LakeTable, path: str, file: TableFile, job: UpkeepJob) -> bool:
    """Whether retention took all rows of a file."""
    found = span_of(path)
    if found is None or job.table_age_ms == NEVER:
        return False  # not ours, or for ever
    partition, _base, end = found
    if end > job.starts.get(partition, 0):
        return False
    if job.table_age_ms == AS_LOG:
        return True
    bounds = table.bounds(file, table.layout.schema.field("timestamp"))
    if bounds is None:
        return False
    limit = datetime.fromtimestamp(job.now_ms / 1000, UTC) - timedelta(
        milliseconds=job.table_age_ms
    )
    del log
    return bool(bounds[1].as_py() < limit)


def _forget(log: LogTable, table: LakeTable, job: UpkeepJob) -> int:
    """Expire snapshots, and delete what nothing names any more."""
    if job.snapshot_age_ms == NEVER:
        return 0
    age = timedelta(milliseconds=job.snapshot_age_ms)
    if isinstance(table, IcebergTable):
        with contextlib.suppress(Conflict):
            table.expire(datetime.now(UTC) - age)
        return sweep_iceberg(log.open(), ORPHAN_AGE)
    assert isinstance(table, DeltaLake)
    hours = max(age, ORPHAN_AGE).total_seconds() // 3600
    gone = table.inner.vacuum(
        retention_hours=int(hours), dry_run=False, enforce_retention_duration=False, full=True
    )
    with contextlib.suppress(Exception):
        table.inner.create_checkpoint()
        table.inner.cleanup_metadata()
    return len(gone)
