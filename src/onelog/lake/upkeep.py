"""Upkeep of tables: merges small files, expires snapshots, removes files that nothing names.

Rules: rows do not change, and a query that writes meanwhile goes on: the loser of a race begins
again. A table that a broker keeps as the history of a stream is left to the broker. A file is
removed only when no snapshot names it and it is older than any batch that could
still be committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyarrow import fs

from onelog.base.errors import Conflict, InvalidRequest
from onelog.lake.delta import DeltaLake
from onelog.lake.formats import open_table
from onelog.lake.iceberg import IcebergTable
from onelog.lake.log_table import LOG_COLUMNS
from onelog.lake.options import TableOptions
from onelog.lake.tables import COMMIT_ATTEMPTS, LakeTable, TableChange
from onelog.lake.writing import FileWriter

SMALL_BYTES = 64 << 20
ORPHAN_AGE = timedelta(days=1)
"""Longer than any batch takes from its first file to its commit."""
SNAPSHOT_AGE = timedelta(days=7)
UPKEEP = "onelog-upkeep"
"""Compaction is a query of its own among the marks; its batches are counted up."""


class Upkeep(NamedTuple):
    """The result of an upkeep."""

    files_before: int
    files_after: int
    files_removed: int


def keep_up(
    options: TableOptions,
    *,
    small_bytes: int = SMALL_BYTES,
    snapshot_age: timedelta = SNAPSHOT_AGE,
    orphan_age: timedelta = ORPHAN_AGE,
) -> Upkeep:
    """Compact, expire, and sweep; each step is whole by itself."""
    with options.storage.explained(options.place):
        return _keep_up(options, small_bytes, snapshot_age, orphan_age)


def _keep_up(
    options: TableOptions, small_bytes: int, snapshot_age: timedelta, orphan_age: timedelta
) -> Upkeep:
    table = open_table(options)
    if set(LOG_COLUMNS.names) <= set(table.layout.schema.names):
        raise InvalidRequest(
            f"{options.table} is the history of a stream: its broker joins its files, expires its"
            " snapshots and sweeps it (tier.snapshot_age_ms, tier.table_age_ms). Another writer"
            " would take files from under its readers: leave it out of upkeep"
        )
    before = len(table.files())
    if isinstance(table, IcebergTable):
        _compact_iceberg(options, small_bytes)
        removed = _sweep_iceberg(options, snapshot_age, orphan_age)
    elif isinstance(table, DeltaLake):
        removed = _keep_up_delta(table, small_bytes, max(snapshot_age, orphan_age))
    else:
        raise InvalidRequest(
            f"{options.table} is plain Parquet, where no commit can replace files: rewrite it into "
            "another directory, or use iceberg or delta"
        )
    return Upkeep(before, len(open_table(options).files()), removed)


def _keep_up_delta(table: DeltaLake, small_bytes: int, age: timedelta) -> int:
    """Delta's library does all of it."""
    table.inner.optimize.compact(target_size=small_bytes)
    gone = table.inner.vacuum(
        retention_hours=int(age.total_seconds() // 3600),
        dry_run=False,
        enforce_retention_duration=False,
        full=True,
    )
    return len(gone)


def _compact_iceberg(options: TableOptions, small_bytes: int) -> None:
    """Write small files anew, partition by partition, as few as will do."""
    for _attempt in range(COMMIT_ATTEMPTS):
        table = open_table(options)
        small = [
            file for file in table.files() if file.handle.file.file_size_in_bytes < small_bytes
        ]
        if len(small) < 2:
            return
        writer = FileWriter(table.layout)
        for file in small:
            writer.write(table.read(file))
        added = writer.close()
        if len(added) >= len(small):  # they lie in different partitions
            writer.discard()
            return
        try:
            table.commit(TableChange(UPKEEP, (table.mark(UPKEEP) or 0) + 1, added, small))
        except Conflict:
            writer.discard()
            continue
        return
    raise Conflict(
        f"the table {options.table} was changed by other writers during every"
        " compaction: try again later"
    )


def _sweep_iceberg(options: TableOptions, snapshot_age: timedelta, orphan_age: timedelta) -> int:
    table = open_table(options)
    assert isinstance(table, IcebergTable)
    now = datetime.now(UTC)
    with contextlib.suppress(Conflict):  # the next time will do
        table.expire(now - snapshot_age)
    return sweep_iceberg(open_table(options), orphan_age)


def sweep_iceberg(table: LakeTable, orphan_age: timedelta) -> int:
    """Delete files that no snapshot of an Iceberg table names. Returns how many."""
    assert isinstance(table, IcebergTable)
    now = datetime.now(UTC)
    location = table.inner.location()
    files, root = table.storage.open(location)
    named = {table.storage.open(path)[1] for path in _named(table)}
    removed = 0
    for info in files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        old = info.mtime is not None and info.mtime < now - orphan_age
        if old and info.type == fs.FileType.File and info.path not in named:
            with contextlib.suppress(FileNotFoundError):
                files.delete_file(info.path)
                removed += 1
    return removed


def _named(table: IcebergTable) -> Iterator[str]:
    """Every file that the table's metadata leads to."""
    inner: Any = table.inner
    metadata = inner.metadata
    yield inner.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in metadata.statistics)
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(inner.io):
            yield manifest.manifest_path
            entries = manifest.fetch_manifest_entry(inner.io, discard_deleted=True)
            yield from (entry.data_file.file_path for entry in entries)
