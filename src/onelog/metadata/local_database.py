"""The SQLite file behind the embedded metadata store: keys, leases and the last revisions.

Rules:
- Everything here blocks and belongs to one thread: the one that made the `LocalDatabase`.
- The file is locked for this process (`locking_mode=EXCLUSIVE`); a second opener is refused.
- WAL with `synchronous=FULL`: when `commit` returns, the group survives power loss.
- A mutation runs between `begin` and `commit`; `attempt` makes it all or nothing within the group.
- A revision is spent only on a change: a transaction that deletes a missing key keeps the revision.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from onelog.base import faults
from onelog.base.errors import (
    DataDirLocked,
    NotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    StorageError,
)
from onelog.metadata.store import Compare, Entry, Event, Op, Put, Range

T = TypeVar("T")
Revision = tuple[Event, ...]
"""The changes of one revision, in the order they were made."""

FIRST_REVISION = 1
"""The revision of an empty store, as in etcd."""

PAGE_BYTES = 1024 * 1024
PAGE_REVISIONS = 512
"""A page of history ends after this many revisions or bytes of values, at a whole revision."""

CACHE_KIB = 2048
"""Memory that SQLite may use for the file. It fills with the history, some hundred bytes per
revision, and stays in use. That looks like a leak until it is full, but is none."""

_APPLICATION_ID = 0x4F4E454C
_SCHEMA_VERSION = 1
_SCHEMA = f"""
CREATE TABLE keys (key BLOB PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,
    mod_revision INTEGER NOT NULL, version INTEGER NOT NULL, lease INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX keys_by_lease ON keys (lease) WHERE lease != 0;
CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_s REAL NOT NULL);
CREATE TABLE history (revision INTEGER NOT NULL, place INTEGER NOT NULL, kind TEXT NOT NULL,
    key BLOB NOT NULL, value BLOB NOT NULL, create_revision INTEGER NOT NULL,
    version INTEGER NOT NULL, lease INTEGER NOT NULL,
    PRIMARY KEY (revision, place)) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_SCHEMA_VERSION};
"""

_COLUMNS = "key, value, create_revision, mod_revision, version, lease"
_Row = tuple[bytes, bytes, int, int, int, int]


class LocalDatabase:
    """One open file; see the module's rules for who may call it."""

    def __init__(self, path: Path, history_revisions: int) -> None:
        self._history_revisions = history_revisions
        try:
            self._sql = _open(path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise DataDirLocked(
                    f"another process holds the metadata store {path}; stop it first"
                ) from error
            raise StorageError(f"cannot open the metadata store {path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StorageError(
                f"{path} is not a sound metadata store ({error}); restore it from a backup"
            ) from error
        self._load_revisions()

    def _load_revisions(self) -> None:
        first, last = self._sql.execute(
            "SELECT min(revision), max(revision) FROM history"
        ).fetchone()
        self.revision: int = FIRST_REVISION if last is None else last
        self.forgotten: int = self.revision if first is None else first - 1

    # ---- groups ----

    def begin(self) -> None:
        """Start a group of mutations."""
        self._sql.execute("BEGIN IMMEDIATE")

    def attempt(self, work: Callable[[], T]) -> T:
        """Run one mutation of the group. If it raises, only its own changes are undone."""
        before = self.revision
        self._sql.execute("SAVEPOINT one")
        try:
            result = work()
        except BaseException:
            self._sql.execute("ROLLBACK TO one")
            self._sql.execute("RELEASE one")
            self.revision = before
            raise
        self._sql.execute("RELEASE one")
        return result

    def commit(self) -> None:
        """Drop history beyond its bound, then make the group durable.

        Raises OutcomeUnknown when the disk failed after it may have stored the group: the next
        process that opens the file finds all of it, or nothing.
        """
        bound = self.revision - self._history_revisions
        if bound > self.forgotten:
            self._sql.execute("DELETE FROM history WHERE revision <= ?", (bound,))
        faults.hit("metadata.commit")
        try:
            self._sql.execute("COMMIT")
            faults.hit("metadata.committed")
        except (sqlite3.Error, OSError) as error:
            if is_full(error):
                raise  # the last frame of the group is incomplete, so it does not count
            raise OutcomeUnknown(
                f"the disk failed while the metadata store wrote ({error}): whether the change was"
                " made shows when the store is opened again"
            ) from error
        self.forgotten = max(self.forgotten, bound)

    def rollback(self) -> None:
        """Undo the whole group (a no-op when SQLite already did)."""
        if self._sql.in_transaction:
            self._sql.execute("ROLLBACK")
        self._load_revisions()

    def copy(self, path: Path) -> int:
        """Write all of the store into a new file. Returns the revision that it holds.

        An error there says nothing about this store, so it is not one of the disk's.
        """
        try:
            path.unlink(missing_ok=True)
            target = sqlite3.connect(path)
            try:
                self._sql.backup(target)
            finally:
                target.close()
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"the metadata cannot be copied to {path}: {error}") from error
        return self.revision

    def close(self) -> None:
        """Fold the WAL into the file and close it."""
        self._sql.close()

    # ---- reads ----

    def get(self, key: str) -> Entry | None:
        """One key."""
        row = self._sql.execute(
            f"SELECT {_COLUMNS} FROM keys WHERE key = ?",  # noqa: S608 - constant columns
            (key.encode(),),
        ).fetchone()
        return None if row is None else _entry(row)

    def range(self, prefix: str, limit: int) -> Range:
        """Every key under a prefix, in the order of their UTF-8 bytes."""
        rows = self._under(prefix, limit if limit > 0 else -1)
        return Range(tuple(map(_entry, rows)), self.revision)

    def leases(self) -> list[tuple[int, float]]:
        """Every lease with its time to live in seconds."""
        return self._sql.execute("SELECT id, ttl_s FROM leases").fetchall()

    def history(self, prefix: str, first: int) -> tuple[list[Revision], int]:
        """A page of whole revisions >= `first` under `prefix`, and the revision to read on from."""
        if first <= self.forgotten:
            raise OffsetOutOfRange(
                f"the metadata store forgot the changes up to revision {self.forgotten}, "
                f"asked for {first}: load the keys again, then watch from the revision after"
            )
        low, high = _bounds(prefix)
        cursor = self._sql.execute(
            "SELECT revision, kind, key, value, create_revision, version, lease FROM history"
            " WHERE revision >= ? AND key >= ? AND (? IS NULL OR key < ?)"
            " ORDER BY revision, place",
            (first, low, high, high),
        )
        page: list[Revision] = []
        size = 0
        for revision, rows in groupby(cursor, itemgetter(0)):
            events = tuple(
                Event(kind, Entry(key.decode(), value, created, revision, version, lease))
                for _, kind, key, value, created, version, lease in rows
            )
            page.append(events)
            size += sum(len(event.entry.value) for event in events)
            if len(page) >= PAGE_REVISIONS or size >= PAGE_BYTES:
                cursor.close()
                return page, revision + 1
        return page, max(first, self.revision + 1)

    # ---- mutations ----

    def holds(self, compare: Compare) -> bool:
        """Whether one condition is true now."""
        entry = self.get(compare.key)
        actual: bytes | int
        if compare.target == "value":
            if entry is None:
                return False  # etcd: a missing key has no value, whatever it is compared with
            actual = entry.value
        else:
            actual = 0 if entry is None else getattr(entry, compare.target)
        return _compared(actual, compare.op, compare.operand)

    def apply(self, ops: Sequence[Op]) -> Revision:
        """Make the changes of one transaction in one revision."""
        events: list[Event] = []
        revision = self.revision + 1
        for op in ops:
            if isinstance(op, Put):
                events.append(self._put(op, revision))
            elif op.prefix:
                events += self._deleted(self._under(op.key, -1), revision)
            else:
                entry = self.get(op.key)
                events += self._deleted([] if entry is None else [_row(entry)], revision)
        return self._record(events, revision)

    def grant(self, ttl_s: float) -> int:
        """A new lease; its number is never used again."""
        lease = self._sql.execute("INSERT INTO leases (ttl_s) VALUES (?)", (ttl_s,)).lastrowid
        assert lease is not None
        return lease

    def end_lease(self, lease: int) -> Revision:
        """Delete a lease and its keys, all in one revision."""
        self._need_lease(lease)
        self._sql.execute("DELETE FROM leases WHERE id = ?", (lease,))
        rows = self._sql.execute(
            f"SELECT {_COLUMNS} FROM keys"  # noqa: S608
            " WHERE lease = ? AND lease != 0 ORDER BY key",
            (lease,),
        ).fetchall()
        revision = self.revision + 1
        return self._record(self._deleted(rows, revision), revision)

    # ---- inside ----

    def _under(self, prefix: str, limit: int) -> list[_Row]:
        low, high = _bounds(prefix)
        return self._sql.execute(
            f"SELECT {_COLUMNS} FROM keys"  # noqa: S608 - constant columns
            " WHERE key >= ? AND (? IS NULL OR key < ?) ORDER BY key LIMIT ?",
            (low, high, high, limit),
        ).fetchall()

    def _need_lease(self, lease: int) -> None:
        if self._sql.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone() is None:
            raise NotFound(
                f"lease {lease} does not exist: it expired or was revoked; grant a new one"
            )

    def _put(self, op: Put, revision: int) -> Event:
        if op.lease:
            self._need_lease(op.lease)
        old = self.get(op.key)
        entry = Entry(
            op.key,
            op.value,
            revision if old is None else old.create_revision,
            revision,
            1 if old is None else old.version + 1,
            op.lease,
        )
        self._sql.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?)", _row(entry))
        return Event("put", entry)

    def _deleted(self, rows: Sequence[_Row], revision: int) -> list[Event]:
        self._sql.executemany("DELETE FROM keys WHERE key = ?", [(row[0],) for row in rows])
        return [
            Event("delete", Entry(key.decode(), value, created, revision, version, lease))
            for key, value, created, _, version, lease in rows
        ]

    def _record(self, events: Iterable[Event], revision: int) -> Revision:
        made = tuple(events)
        if made:
            self._sql.executemany(
                "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        revision,
                        place,
                        event.kind,
                        event.entry.key.encode(),
                        event.entry.value,
                        event.entry.create_revision,
                        event.entry.version,
                        event.entry.lease,
                    )
                    for place, event in enumerate(made)
                ],
            )
            self.revision = revision
        return made


def is_full(error: sqlite3.Error | OSError) -> bool:
    """Whether the disk was full, which may pass."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _open(path: Path) -> sqlite3.Connection:
    sql = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute("PRAGMA synchronous = FULL")
        sql.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        sql.execute("BEGIN IMMEDIATE")  # takes the lock now, not at the first write
        version = sql.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                sql.execute(statement)
        _check_version(path, version)
        sql.execute("COMMIT")
        _sync_directory(path.parent)
    except BaseException:
        sql.close()
        raise
    return sql


def _check_version(path: Path, version: int) -> None:
    if version not in (0, _SCHEMA_VERSION):
        raise StorageError(
            f"{path} has metadata format {version}, this program reads {_SCHEMA_VERSION}: "
            "run the version of OneLog that wrote it"
        )


def _sync_directory(path: Path) -> None:
    # The file's name must be as durable as the first answer.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bounds(prefix: str) -> tuple[bytes, bytes | None]:
    # UTF-8 has no 0xff byte, so the last byte can always grow by one.
    low = prefix.encode()
    return low, low[:-1] + bytes((low[-1] + 1,)) if low else None


def _entry(row: _Row) -> Entry:
    return Entry(row[0].decode(), *row[1:])


def _row(entry: Entry) -> _Row:
    return (
        entry.key.encode(),
        entry.value,
        entry.create_revision,
        entry.mod_revision,
        entry.version,
        entry.lease,
    )


def _compared(actual: bytes | int, op: str, operand: bytes | int) -> bool:
    if op == "==":
        return actual == operand
    if op == "!=":
        return actual != operand
    if isinstance(actual, bytes):
        assert isinstance(operand, bytes)
        return actual < operand if op == "<" else actual > operand
    assert isinstance(operand, int)
    return actual < operand if op == "<" else actual > operand
