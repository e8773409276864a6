"""The kv engine itself: one database for all partitions under its root.

Rules: a partition gets a number when it is first opened. No number is used again, so that keys of a
late writer never belong to another partition. An idle partition costs a small object and one key.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from onelog.base.clock import Clock, SystemClock
from onelog.base.errors import Closed, Conflict, StorageError
from onelog.base.ids import Offset
from onelog.storage.engine import LogSettings, PartitionKey
from onelog.storage.kv import keys
from onelog.storage.kv.database import MAINTENANCE_STALL_S, RESERVE_BYTES, KvDatabase, new_batch
from onelog.storage.kv.partition import KvLog


class KvEngine:
    """Partitions as key ranges of one RocksDB database."""

    volatile = False

    def __init__(
        self,
        root: Path | str,
        clock: Clock | None = None,
        *,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self._root = Path(root)
        self._clock = SystemClock() if clock is None else clock
        self._db = KvDatabase(self._root, reserve_bytes)
        self._lock = threading.Lock()
        self._open: dict[PartitionKey, KvLog] = {}
        self._closed = False

    def open(self, key: PartitionKey, settings: LogSettings) -> KvLog:
        """Open or create a partition."""
        with self._lock:
            self._check_open()
            self._check_not_open(key)
            log = KvLog(self._db, key, self._number(key), settings, self._clock)
            self._open[key] = log
            return log

    def _number(self, key: PartitionKey) -> int:
        where = keys.registered(key)
        found = self._db.get(where)
        if found is not None:
            return keys.read_number(found)
        last = self._db.get(keys.NEXT_PARTITION)
        number = 1 if last is None else keys.read_number(last)
        change = new_batch()
        change.put(where, keys.number(number))
        change.put(keys.NEXT_PARTITION, keys.number(number + 1))
        self._db.write(change)
        return number

    def delete(self, key: PartitionKey) -> None:
        """Delete a closed partition and everything kept for it. No error if it does not exist."""
        where = keys.registered(key)
        with self._lock:
            self._check_open()
            self._check_not_open(key)
            self._open.pop(key, None)
            found = self._db.get(where)
            if found is None:
                return
            number = keys.read_number(found)
            start, stop = keys.number(number), keys.number(number + 1)
            change = new_batch()
            change.delete(where)
            change.delete_range(start, stop)
            self._db.write(change, stall_s=MAINTENANCE_STALL_S)
        self._db.sync()
        self._db.compact(start, stop)

    def set_aside(self, key: PartitionKey) -> None:
        """Delete a closed partition: what it has lies in one database with all others."""
        self.delete(key)

    def partitions(self) -> list[PartitionKey]:
        """Every partition that exists on disk."""
        with self._lock:
            self._check_open()
            return sorted(
                keys.registered_key(key) for key, _ in self._db.scan(*keys.all_registered())
            )

    def check_room(self) -> None:
        """Raise StorageFull when the disk has no room for an append."""
        with self._lock:
            self._check_open()
            self._db.look_for_room()

    def freeze(self, cuts: Mapping[PartitionKey, Offset], into: Path) -> dict[str, int]:
        """Link the files of the whole database; its partitions may end behind their cuts."""
        if not cuts:
            return {}
        with self._lock:
            self._check_open()
        return self._db.freeze(into)

    def close(self) -> None:
        """Close every open partition cleanly, then the database."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            held = list(self._open.values())
        failure: StorageError | None = None
        for log in held:
            try:
                log.close()
            except StorageError as error:
                failure = failure or error
        self._db.close()
        if failure is not None:
            raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the kv engine on {self._root} is closed")

    def _check_not_open(self, key: PartitionKey) -> None:
        held = self._open.get(key)
        if held is not None and not held.closed:
            raise Conflict(f"partition {key.stream_id}/{key.partition} is open already")
