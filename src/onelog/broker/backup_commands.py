"""Commands on backups as messages: what `onelog backup` sends to the running server.

Rules: as for other commands (`base/commands.py`). They need a running server: the files of a
stopped one are copied with any tool.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.broker.backups import BackupRun, Backups

SUBJECT: Final = "backup"


class StartBackup(msgspec.Struct, frozen=True, kw_only=True, tag="backup.start"):
    """Begin a backup."""

    url: str
    options: dict[str, str] = {}
    bytes_per_s: int = 0


class CancelBackup(msgspec.Struct, frozen=True, kw_only=True, tag="backup.cancel"):
    """End a backup."""

    id: str


class ShowBackup(msgspec.Struct, frozen=True, kw_only=True, tag="backup.show"):
    """How far a backup is; without an id: all since the start."""

    id: str = ""


BackupCommand = StartBackup | CancelBackup | ShowBackup


class BackupAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a command."""

    runs: tuple[BackupRun, ...] = ()
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


async def run_backup_command(backups: Backups, message: bytes) -> bytes:
    """Run the command of a message. Returns the answer as a message, also after an error."""
    return await run_decoded(message, BackupCommand, partial(_perform, backups))


async def _perform(backups: Backups, command: BackupCommand) -> BackupAnswer:
    match command:
        case StartBackup():
            begun = backups.start(command.url, command.options, command.bytes_per_s)
            return BackupAnswer(runs=(begun,))
        case CancelBackup():
            return BackupAnswer(runs=(await backups.cancel(command.id),))
        case ShowBackup():
            runs = [backups.find(command.id)] if command.id else backups.all()
            return BackupAnswer(runs=tuple(runs))


def decode_backup_answer(message: bytes) -> BackupAnswer:
    """The answer of a message. Raises the error that it reports."""
    return decoded(message, BackupAnswer)
