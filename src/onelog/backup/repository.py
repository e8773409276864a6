"""What lies in a store of backups: its manifests, the objects that they need, and what can go.

Rules: an object that a manifest names is never deleted. Nothing is deleted while a backup runs
(`marks.py`). An object that no manifest names is deleted only when it is a day old: a backup that
begins now may need it. The newest backup stays in any case.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Final, NamedTuple

from onelog.backup.manifest import (
    SUMMARY_BYTES_MAX,
    BackupManifest,
    BackupSummary,
    PieceRow,
    check_id,
    decode_manifest,
    decode_summary,
    is_id,
    manifest_name,
    object_name,
)
from onelog.backup.marks import pruning_alone
from onelog.backup.stores import TEMPORARY, BackupStore
from onelog.base.errors import InvalidRequest, NotFound, StorageError
from onelog.kernel import crc32c

THREADS: Final = 4
"""Objects that are read or written at once; each has at most `PIECE_BYTES` in memory."""
PIECE_BYTES: Final = 16 * 1024 * 1024
"""The largest object: files are sent in pieces of this size."""
GRACE_MS: Final = 24 * 3600 * 1000
"""An object that no manifest names stays so long: a backup may be about to name it."""
PROBLEMS_MAX: Final = 100
"""Damaged files that a check names."""


class Pruned(NamedTuple):
    """What pruning deleted."""

    backups: tuple[str, ...]
    objects: int
    size_bytes: int
    kept_objects: int
    """Objects that no backup needs and that are not a day old yet."""


class Checked(NamedTuple):
    """The result of reading everything that a backup needs."""

    objects: int
    size_bytes: int
    problems: tuple[str, ...]


Progress = Callable[[int, int], None]
"""Called with the bytes that are done, and with all."""


def _silent(_done: int, _all: int) -> None:
    return None


class Repository:
    """The backups of one store."""

    def __init__(self, store: BackupStore, url: str) -> None:
        self.store = store
        self.url = url

    def ids(self) -> list[str]:
        """The names of all backups, oldest first."""
        names = (row.name.rpartition("/")[2] for row in self.store.list("backups"))
        return sorted(name for name in names if not name.endswith(TEMPORARY))

    def summaries(self) -> tuple[list[BackupSummary], list[str]]:
        """All backups, oldest first, and an error for each one that cannot be read."""
        found, problems = self._read()
        return found, list(problems.values())

    def _read(self) -> tuple[list[BackupSummary], dict[str, str]]:
        """All backups, oldest first, and the errors of the others by their names."""
        found: list[BackupSummary] = []
        problems: dict[str, str] = {}
        for name in self.ids():
            try:
                head = self.store.head(manifest_name(name), SUMMARY_BYTES_MAX)
                found.append(decode_summary(name, head))
            except (StorageError, NotFound) as error:
                problems[name] = str(error)
        return sorted(found, key=lambda row: row.point_ms), problems

    def load(self, backup_id: str) -> BackupManifest:
        """One backup. Raises NotFound, StorageError."""
        try:
            data = self.store.get(manifest_name(check_id(backup_id)))
        except NotFound as error:
            raise NotFound(
                f"{self.url} has no backup {backup_id}; `onelog backup list {self.url}` lists them"
            ) from error
        return decode_manifest(backup_id, data)

    def newest(self) -> BackupManifest | None:
        """The newest backup that can be read; None: there is none."""
        for name in reversed(self.ids()):
            try:
                return self.load(name)
            except (StorageError, InvalidRequest):  # damaged, or a stranger's file
                continue
        return None

    def choose(self, backup_id: str, upto_ms: int | None) -> BackupManifest:
        """The backup to restore: the one named, else the first whose point is not before
        `upto_ms`, else the newest. Raises NotFound, StorageError.

        A backup that cannot be read is not passed over in silence, if it could be the one.
        """
        if backup_id:
            return self.load(backup_id)
        found, problems = self._read()
        if not found:
            hint = f" ({next(iter(problems.values()))})" if problems else ""
            raise NotFound(
                f"there is no backup in {self.url}{hint}: name the folder or prefix that"
                " `onelog backup create` was given"
            )
        problems = {name: problem for name, problem in problems.items() if is_id(name)}
        if upto_ms is None:
            return self._load_unless(problems, found[-1].id, "", found[-1].id)
        later = [row.id for row in found if row.point_ms >= upto_ms]
        if not later:
            hint = f" ({problems[max(problems)]})" if problems else ""
            raise NotFound(
                f"every backup in {self.url} is older than that{hint}: choose an earlier time, or"
                " leave --to out to get the newest backup"
            )
        earlier = [row.id for row in found if row.point_ms < upto_ms]
        return self._load_unless(problems, max(earlier, default=""), later[0], later[0])

    def _load_unless(
        self, problems: dict[str, str], after: str, before: str, backup_id: str
    ) -> BackupManifest:
        """A backup, unless one between two names cannot be read. Names sort by time."""
        for name, problem in problems.items():
            if name > after and (not before or name < before):
                raise StorageError(
                    f"{problem}. Choose with --id, such as --id {backup_id}, which is the nearest"
                    " one that can be read"
                )
        return self.load(backup_id)

    # -- checking

    def verify(self, manifests: Iterable[BackupManifest], progress: Progress = _silent) -> Checked:
        """Read every object that backups need, and compare every checksum."""
        wanted: defaultdict[bytes, dict[PieceRow, str]] = defaultdict(dict)
        for manifest in manifests:
            for row in manifest.files:
                for piece in row.pieces:
                    where = f"{row.path} of backup {manifest.summary.id}"
                    wanted[piece.object].setdefault(piece, where)
        sizes = {name: max(piece.position + piece.size_bytes for piece in pieces)
                 for name, pieces in wanted.items()}  # fmt: skip
        total, done = sum(sizes.values()), 0
        problems: list[str] = []

        def check(name: bytes) -> tuple[bytes, str]:
            try:
                data = self.store.get(object_name(name))
            except NotFound as error:
                return name, f"{error}; {next(iter(wanted[name].values()))} needs it"
            return name, self._check_pieces(name, data, wanted[name])

        with ThreadPoolExecutor(THREADS) as threads:
            for name, problem in threads.map(check, wanted):
                done += sizes[name]
                if problem and len(problems) < PROBLEMS_MAX:
                    problems.append(problem)
                progress(done, total)
        return Checked(len(wanted), total, tuple(problems))

    def _check_pieces(self, name: bytes, data: bytes, pieces: dict[PieceRow, str]) -> str:
        for piece, where in pieces.items():
            if not is_sound(data, piece):
                return f"{self.url}: {object_name(name)} is damaged; {where} needs it"
        return ""

    # -- pruning

    def prune(
        self, keep: int, before_ms: int | None, now_ms: int, *, dry_run: bool = False
    ) -> Pruned:
        """Delete old backups, all but the newest `keep` of them and those that are younger, and
        the objects that nobody needs any more. Raises Conflict while a backup runs."""
        if keep < 1:
            raise InvalidRequest("at least one backup is kept: --keep 1 or more")
        if dry_run:
            return self._prune(keep, before_ms, now_ms, dry_run=True)
        with pruning_alone(self.store):
            return self._prune(keep, before_ms, now_ms, dry_run=False)

    def _prune(self, keep: int, before_ms: int | None, now_ms: int, *, dry_run: bool) -> Pruned:
        summaries, problems = self.summaries()
        if problems:
            # Nobody knows what a damaged manifest needs, and deleting is for ever (I9).
            raise StorageError(
                f"nothing is deleted: {problems[0]}. Delete its manifest under {self.url}/backups/"
                " by hand if it is of no use, then prune again"
            )
        last = max((row.id for row in summaries), default="")  # a backup that begins now uses it
        old = [row for row in summaries[: max(0, len(summaries) - keep)] if row.id != last]
        gone = [row.id for row in old if before_ms is None or row.point_ms < before_ms]
        needed: set[str] = set()
        for row in summaries:
            if row.id not in gone:
                needed |= self.load(row.id).objects().keys()
        doomed, young, freed = [], 0, 0
        half = (row for row in self.store.list("backups") if row.name.endswith(TEMPORARY))
        for found in chain(self.store.list("objects"), half):
            if found.name in needed:
                continue
            if found.modified_ms > now_ms - GRACE_MS:
                young += 1
                continue
            doomed.append(found.name)
            freed += found.size_bytes
        if not dry_run:
            self.store.delete([manifest_name(name) for name in gone])
            self.store.delete(doomed)
        return Pruned(tuple(gone), len(doomed), freed, young)


def is_sound(data: bytes | memoryview, piece: PieceRow) -> bool:
    """Whether an object holds a piece as it was sent."""
    found = memoryview(data)[piece.position : piece.position + piece.size_bytes]
    return len(found) == piece.size_bytes and crc32c(found) == piece.crc


def now_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000
