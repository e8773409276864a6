"""Restores a backup into an empty data directory: files, checks, cut, and only then the metadata.

Rules: nothing that exists is changed: a directory with anything in it is refused. The metadata
store is put in place last; without it `onelog serve` refuses the directory, so that a restore which
was interrupted is never taken for a broker. `Done` is said only after every checksum was compared
and every partition was opened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from onelog.backup.fetching import fetch, sync_path
from onelog.backup.manifest import BackupPartition
from onelog.backup.repository import Progress, Repository
from onelog.backup.restored import Restored, RestoredPartition, RestoreRequest
from onelog.backup.stores import open_backup_store
from onelog.base.errors import Conflict, StorageError
from onelog.base.ids import Offset
from onelog.cursors.checkpoint import PART_SEPARATOR, decode_state
from onelog.cursors.checkpoint import STREAM as CURSORS
from onelog.cursors.cursor import CursorKind
from onelog.kernel import ATTR_CONTROL, Slices, place_batches
from onelog.log.freezing import METADATA
from onelog.log.restoring import settle, with_log
from onelog.log.rewriting import READ_BYTES, read_slice
from onelog.record.batch import Row, build_batch, iterate_batches
from onelog.storage.engine import Engine, PartitionLog
from onelog.storage.lock import lock_data_dir

_FETCHED: Final = "restore.tmp"
"""The metadata store until the rest is in place."""
_OURS: Final = ("lock",)

OpenEngines = Callable[[Path], Mapping[str, Engine]]


def restore(request: RestoreRequest, engines: OpenEngines, progress: Progress) -> Restored:
    """Restore a backup. It blocks. Raises OnelogError; then the directory is of no use."""
    store = open_backup_store(request.url, request.options)
    repository = Repository(store, request.url)
    data_dir = Path(request.data_dir)
    _check_empty(data_dir)
    manifest = repository.choose(request.id, request.upto_ms)
    if request.upto_ms is not None and request.upto_ms > manifest.summary.point_ms:
        raise Conflict(
            f"the backup {manifest.summary.id} holds nothing after its point: choose an earlier"
            " time, or a later backup"
        )
    with lock_data_dir(data_dir):
        fetch(repository, manifest, data_dir, progress, {METADATA: _FETCHED})
        rows: defaultdict[str, list[BackupPartition]] = defaultdict(list)
        for row in manifest.partitions:
            rows[row.engine].append(row)
        opened = engines(data_dir)
        found: list[RestoredPartition] = []
        try:
            for name, partitions in rows.items():
                found += settle(opened[name], partitions, request.upto_ms)
                if request.upto_ms is not None:
                    _forget_tables(opened[name], partitions)
        finally:
            for engine in opened.values():
                engine.close()
        (data_dir / _FETCHED).replace(data_dir / METADATA)
        sync_path(data_dir)
    return Restored(
        backup=manifest.summary,
        data_dir=str(data_dir),
        upto_ms=request.upto_ms,
        partitions=tuple(found),
    )


def _check_empty(data_dir: Path) -> None:
    try:
        there = sorted(path.name for path in data_dir.iterdir() if path.name not in _OURS)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{data_dir} cannot be read: {error}") from error
    if there:
        raise Conflict(
            f"{data_dir} is not empty ({', '.join(there[:5])}): a backup is restored into a new or"
            " empty data directory only. Name another one with --data, or move this one away"
        )


def _forget_tables(engine: Engine, rows: list[BackupPartition]) -> None:
    """Let tables (retained messages) be made anew: what they name may be cut off.

    A table knows only the newest record of each topic. Without its state it reads the log again.
    """
    for row in rows:
        if row.stream == CURSORS and row.end:
            with_log(engine, row, _forget_tables_in)


def _forget_tables_in(log: PartitionLog) -> None:
    tables: dict[bytes, None] = {}
    offset, end, epoch, latest_ms = log.start_offset, log.end_offset, 0, 0
    while offset < end and (data := read_slice(log, offset, READ_BYTES, end)):
        for info, slices in iterate_batches(data):
            offset, epoch = Offset(info.last_offset + 1), max(epoch, info.leader_epoch)
            latest_ms = max(latest_ms, info.max_timestamp_ms)
            if not info.attributes & ATTR_CONTROL:
                _note_tables(tables, slices)
    if tables:
        gone: list[Row] = [(None, name, None, (), latest_ms) for name in tables]
        batch = bytearray(build_batch(gone))
        log.append(batch, place_batches(batch, end, epoch))


def _note_tables(tables: dict[bytes, None], slices: Slices) -> None:
    for index in range(len(slices)):
        key, value = slices.key(index), slices.value(index)
        if key is None or PART_SEPARATOR in key:
            continue
        if value is not None and decode_state(value).kind is CursorKind.TABLE:
            tables[key] = None
        else:
            tables.pop(key, None)
