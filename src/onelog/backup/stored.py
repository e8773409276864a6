"""What can be asked of a store of backups: which are there, whether they are whole, what can go.

Rules: a question names the store and brings its options; its answer is plain. Everything here
blocks. The command line asks here in its own process, the broker in one of its own
(`stored_worker.py`).
"""

from __future__ import annotations

import msgspec

from onelog.backup.manifest import BackupSummary, check_id
from onelog.backup.repository import Progress, Repository, now_ms
from onelog.backup.stores import open_backup_store
from onelog.base.errors import NotFound, OnelogError


class ListStored(msgspec.Struct, frozen=True, kw_only=True, tag="list"):
    """Which backups are there?"""

    url: str
    options: dict[str, str] = {}


class VerifyStored(msgspec.Struct, frozen=True, kw_only=True, tag="verify"):
    """Are they whole? Without an id: all of them."""

    url: str
    options: dict[str, str] = {}
    id: str = ""


class PruneStored(msgspec.Struct, frozen=True, kw_only=True, tag="prune"):
    """Delete old ones."""

    url: str
    options: dict[str, str] = {}
    keep: int = 1
    older_than_ms: int | None = None
    dry_run: bool = False


StoredQuestion = ListStored | VerifyStored | PruneStored


class StoredBackups(msgspec.Struct, frozen=True, kw_only=True):
    """The backups of a store, the oldest first."""

    items: tuple[BackupSummary, ...]
    problems: tuple[str, ...]
    """One for each backup that cannot be read."""


class VerifiedBackups(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found."""

    backups: int
    objects: int
    size_bytes: int
    problems: tuple[str, ...]
    """Backups, and files of them, that are damaged or missing."""


class PrunedBackups(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted, or would be."""

    backups: tuple[str, ...]
    """By id."""
    objects: int
    size_bytes: int
    kept_objects: int
    """Objects that no backup needs and that are not a day old yet."""


StoredAnswer = StoredBackups | VerifiedBackups | PrunedBackups


def check_question(question: StoredQuestion) -> None:
    """Refuse what can never be answered. Raises InvalidRequest, ConfigError."""
    open_backup_store(question.url, question.options)
    if isinstance(question, VerifyStored) and question.id:
        check_id(question.id)


def answer(question: StoredQuestion, progress: Progress) -> StoredAnswer:
    """Look into the store. Raises NotFound, Conflict, StorageError and others."""
    repository = Repository(open_backup_store(question.url, question.options), question.url)
    match question:
        case ListStored():
            found, problems = repository.summaries()
            return StoredBackups(items=tuple(found), problems=tuple(problems))
        case VerifyStored():
            return _verify(repository, question.id, progress)
        case PruneStored():
            now, age = now_ms(), question.older_than_ms
            before = None if age is None else now - age
            pruned = repository.prune(question.keep, before, now, dry_run=question.dry_run)
            return PrunedBackups(**pruned._asdict())


def _verify(repository: Repository, backup_id: str, progress: Progress) -> VerifiedBackups:
    names = [backup_id] if backup_id else repository.ids()
    if not names:  # a disk that is not mounted must not pass for sound backups
        raise NotFound(f"there is no backup in {repository.url}: nothing was checked")
    manifests, problems = [], []
    for name in names:
        try:
            manifests.append(repository.load(name))
        except OnelogError as error:
            if backup_id and isinstance(error, NotFound):
                raise  # a name that was mistyped is no damage
            problems.append(str(error))
    checked = repository.verify(manifests, progress)
    return VerifiedBackups(
        backups=len(names),
        objects=checked.objects,
        size_bytes=checked.size_bytes,
        problems=(*problems, *checked.problems),
    )
