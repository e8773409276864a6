"""Backups in tests: frozen files without a broker, a run of a broker's backup, and a restore."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from onelog.assembly import restore_backup
from onelog.backup.manifest import BackupManifest, BackupPartition, BackupSummary, new_id
from onelog.backup.repository import Repository
from onelog.backup.restored import Restored, RestoreRequest
from onelog.backup.sending import BackupPlan, Sending, SentCounts
from onelog.backup.stores import FolderBackups
from onelog.broker import BackupRun, Broker

POINT_MS = 1_700_000_000_000


def quiet(_done: int, _total: int) -> None:
    """Progress that nobody looks at."""


def repository_in(folder: Path) -> Repository:
    return Repository(FolderBackups(folder), str(folder))


def plan_of(root: Path, url: str, point_ms: int = POINT_MS, **sizes: int) -> BackupPlan:
    """A backup of all files below a folder."""
    files = {
        path.relative_to(root).as_posix(): path.stat().st_size
        for path in root.rglob("*")
        if path.is_file()
    }
    return BackupPlan(
        summary=BackupSummary(id=new_id(point_ms), point_ms=point_ms),
        url=url,
        options={},
        root=str(root),
        partitions=(BackupPartition("s", "s-1", 0, "segment", False, 0, 1),),
        files=files | sizes,
    )


def send(root: Path, store: Path, point_ms: int = POINT_MS) -> BackupManifest:
    """Send all files of a folder."""
    return Sending(plan_of(root, str(store), point_ms), repository_in(store), _ignore).run()


def _ignore(_counts: SentCounts) -> None:
    pass


def sent_files(store: Path) -> dict[str, int]:
    """What lies in a folder of backups, and how long it is."""
    return {
        path.relative_to(store).as_posix(): path.stat().st_size
        for path in store.rglob("*")
        if path.is_file()
    }


async def back_up(broker: Broker, url: str, **options: str) -> BackupRun:
    """Make a backup, and wait for its end."""
    run = broker.backups.start(url, options)
    await broker.backups.ended()
    return broker.backups.find(run.id)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process or task brings about."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


def restore_into(
    data_dir: Path, url: str, upto_ms: int | None = None, backup_id: str = "", **options: str
) -> Restored:
    request = RestoreRequest(
        url=url, options=options, data_dir=str(data_dir), id=backup_id, upto_ms=upto_ms
    )
    return restore_backup(request, quiet)


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes((byte[0] ^ 1,)), at)
