"""The one RocksDB database of the engine: its options, its errors, its durability.

Facts about RocksDB (tested with rocksdict 0.3.29 on a full tmpfs), and what follows from them:
- A write goes to the WAL file at once, so it survives kill -9. `flush_wal(sync)` makes it survive
  power loss and releases the interpreter lock; a synchronous write does not release it, so none is
  used.
- A write may stall without end, holding the interpreter lock, when flushes fail or lag. So every
  write has `no_slowdown`. A write that would stall is tried again for a moment, then it is
  `StorageFull`.
- After ENOSPC RocksDB refuses writes and comes back by itself within about 5 s once there is room;
  nothing that was written is lost. But a `flush_wal` in that state makes it permanent (until the
  next open). So after a refused write a sync first probes with a small write.
- Trimming needs room too. So appends stop while the file system has less than a reserve, and
  retention still works.
- Opening cuts the WAL at its first bad record, wherever that is. The file `synced` says up to which
  sequence number it was synced: a database that ends before it has lost answered records, and is
  refused before it is changed.
- Big batches live in blob files, written once; compaction moves only their keys.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from onelog.base import faults
from onelog.base.errors import (
    Closed,
    DataDirLocked,
    OnelogError,
    PartitionCorrupt,
    PartitionStopped,
    StorageError,
    StorageFull,
)
from onelog.kernel import crc32c

WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024
WRITE_BUFFERS: Final = 8
BLOCK_CACHE_BYTES: Final = 32 * 1024 * 1024
BLOB_BYTES_MIN: Final = 2048
RESERVE_BYTES: Final = 2 * WRITE_BUFFER_BYTES * WRITE_BUFFERS
"""Room that appends leave free: twice the bytes that wait in memory to be written."""

STALL_S: Final = 0.2
"""How long an append waits for a stalled write."""
MAINTENANCE_STALL_S: Final = 60.0
"""How long all other writes wait: they run in threads."""

_ROOM_EVERY_BYTES: Final = 1024 * 1024
_SYNCED: Final = struct.Struct("<8sQI")
_SYNCED_MAGIC: Final = b"OLsynced"


def new_batch() -> WriteBatch:
    """A set of changes that is written as one."""
    return WriteBatch(raw_mode=True)


class KvDatabase:
    """RocksDB with our rules. Every method may be called from any thread."""

    def __init__(self, root: Path, reserve_bytes: int = RESERVE_BYTES) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._reserve_bytes = reserve_bytes
        self._unchecked_bytes = _ROOM_EVERY_BYTES
        self._refused = False
        self._stopped: PartitionStopped | None = None
        self._sync_turn = threading.Lock()
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._db = _open(root)
        self._synced = self._db.latest_sequence_number()
        self._mark = os.open(root / "synced", os.O_WRONLY | os.O_CREAT, 0o644)
        self._note_synced()
        os.fsync(self._mark)

    # ---- reading ----

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        with self._translated("read"):
            found: bytes | None = self._db.get(key)
            return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, stop) with their values at this moment."""
        with self._translated("read"):
            rows = self._rows(stop)
            rows.seek(start)
            while rows.valid():
                yield rows.key(), rows.value()
                rows.next()
            rows.status()

    def scan_from_before(
        self, floor: bytes, start: bytes, stop: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Like `scan`, but from the last key in [floor, start] if there is one."""
        with self._translated("read"):
            rows = self._rows(stop)
            rows.seek_for_prev(start)
            first = rows.key() if rows.valid() else None
        del rows
        return self.scan(start if first is None or first < floor else first, stop)

    def _rows(self, stop: bytes):  # type: ignore[no-untyped-def]
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        return self._db.iter(options)

    # ---- writing ----

    def check_running(self) -> None:
        """Raise if a failed sync stopped the engine."""
        if self._stopped is not None:
            raise PartitionStopped(str(self._stopped))

    def check_room(self, size_bytes: int) -> None:
        """Raise StorageFull if an append would use the reserve."""
        self._unchecked_bytes += size_bytes
        if self._unchecked_bytes < _ROOM_EVERY_BYTES:
            return
        state = os.statvfs(self._root)
        free = state.f_bavail * state.f_frsize
        if free < self._reserve_bytes + size_bytes:
            raise StorageFull(
                f"{self._root} has {free} bytes left, and {self._reserve_bytes} are kept for "
                "retention: free some space, then appends go on"
            )
        self._unchecked_bytes = 0

    def look_for_room(self) -> None:
        """Raise StorageFull if the reserve is in use, or RocksDB refuses writes."""
        self.check_room(_ROOM_EVERY_BYTES)
        if self._refused:
            self._probe()

    def write(self, batch: WriteBatch, stall_s: float = STALL_S) -> None:
        """Apply a batch as one: it survives kill -9, and after an error nothing has changed."""
        self.check_running()
        deadline = time.monotonic() + stall_s
        with self._translated("write"):
            faults.hit("kv.write")
            while True:
                try:
                    self._db.write(batch, self._write_options)
                except Exception as error:
                    if "Write stall" in str(error) and time.monotonic() < deadline:
                        time.sleep(0.002)
                        continue
                    self._refused = True
                    raise
                self._refused = False
                return

    def sync(self) -> None:
        """Make every write before this call survive power loss; one sync serves all callers."""
        self.check_running()
        with self._translated("sync"):
            wanted = self._db.latest_sequence_number()
        if self._synced >= wanted:
            return
        with self._sync_turn:
            if self._synced >= wanted:
                return
            if self._refused:
                self._probe()
            self._sync()

    def _sync(self) -> None:
        self.check_running()
        with self._translated("sync"):
            reached = self._db.latest_sequence_number()
        try:
            faults.hit("kv.sync")
            self._db.flush_wal(True)
        except Exception as error:
            self._stopped = PartitionStopped(
                f"a sync of {self._root} failed ({error}): what the disk holds is not known, and "
                "every partition of the kv engine is stopped until the broker is restarted"
            )
            raise self._stopped from error
        self._synced = reached
        self._note_synced()

    def _probe(self, stall_s: float = STALL_S) -> None:
        """Find out whether RocksDB accepts writes again. Raises StorageFull if not."""
        batch = new_batch()
        batch.put(bytes(8) + b"w", b"")
        self.write(batch, stall_s)

    def _note_synced(self) -> None:
        # Written after the sync and not synced itself: it may be old, but never ahead.
        record = _SYNCED.pack(_SYNCED_MAGIC, self._synced, crc32c(number_bytes(self._synced)))
        with suppress(OSError):
            os.pwrite(self._mark, record, 0)

    def compact(self, start: bytes, stop: bytes) -> None:
        """Free the disk space of deleted keys in [start, stop).

        RocksDB deletes files at the end of a flush or compaction. A file that was in use at that
        moment, if only by the call that asked for the compaction, waits for the next one.
        """
        with self._translated("compact"):
            self._db.compact_range(start, stop)
        with suppress(StorageFull):  # the keys are gone all the same, and their files a flush later
            self._probe(MAINTENANCE_STALL_S)  # a flush of nothing would do nothing
            with self._translated("flush"):
                self._db.flush()

    def freeze(self, into: Path) -> dict[str, int]:
        """Link the files of the database as it is now into a folder; names, and their bytes.

        RocksDB writes what is in memory into tables first, so that no write-ahead log is needed.
        The mark `synced` is left out: all of a copy that was checked counts.
        """
        self.check_running()
        with self._translated("checkpoint"):
            into.mkdir(parents=True)
            Checkpoint(self._db).create_checkpoint(str(into / "db"))
            found = (path for path in (into / "db").rglob("*") if path.is_file())
            return {str(path.relative_to(into)): path.stat().st_size for path in found}

    def close(self) -> None:
        """Write everything into tables, so that the next open has no WAL to read."""
        try:
            if self._stopped is None and not self._refused:
                self.sync()
                with self._translated("flush"):
                    self._db.flush()
        finally:
            os.close(self._mark)
            with self._translated("close"):
                self._db.close()

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OnelogError, GeneratorExit):
            raise
        except Exception as error:  # rocksdict raises plain Exception
            raise _translate(what, self._root, error) from error


def number_bytes(value: int) -> bytes:
    """A u64 as the mark's checksum sees it."""
    return value.to_bytes(8, "little")


def _translate(what: str, root: Path, error: Exception) -> OnelogError:
    text = str(error)
    if isinstance(error, DbClosedError):
        return Closed(f"the database in {root} is closed")
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in text:
        return StorageFull(f"no room in {root}, nothing was written ({text}): free some space")
    if "Write stall" in text:
        return StorageFull(f"the disk of {root} is slower than its writers: try again")
    if "Corruption" in text:
        return PartitionCorrupt(f"{root} is damaged ({text}): restore it from a replica or backup")
    return StorageError(f"{what} in {root} failed: {text}")


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    # Stalls by backlog would stop the event loop: compaction may lag, memory is bounded anyway.
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(256)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(BLOB_BYTES_MIN)
    options.set_blob_file_size(32 * 1024 * 1024)
    options.set_enable_blob_gc(True)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    tables.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(tables)
    return options


def _open(root: Path) -> Rdict:
    path = str(root / "db")
    try:
        _check_recovery_point(root, path)
        return Rdict(path, _options())
    except OnelogError:
        raise
    except Exception as error:
        if "LOCK" in str(error):
            raise DataDirLocked(f"another process holds {path}; stop it first") from error
        raise _translate("open", root, error) from error


def _check_recovery_point(root: Path, path: str) -> None:
    """Refuse a database with damage in the synced part of its WAL, before anything changes it."""
    mark = root / "synced"
    data = mark.read_bytes() if mark.exists() else b""
    if len(data) != _SYNCED.size:
        return
    magic, wanted, crc = _SYNCED.unpack(data)
    if magic != _SYNCED_MAGIC or crc32c(number_bytes(wanted)) != crc:
        return
    probe = Rdict(path, _options(), access_type=AccessType.read_only(False))
    reached = probe.latest_sequence_number()
    probe.close()
    if reached < wanted:
        raise PartitionCorrupt(
            f"{path} ends at change {reached}, but {wanted} were synced: its write-ahead log is "
            "damaged. Restore it from a replica or backup, or remove `synced` to accept the loss"
        )
