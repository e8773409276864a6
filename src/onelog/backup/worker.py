"""The process that sends a backup, so that hashing and sending leave the broker to its messages.

Rules: it gets a plan on its standard input, and says how far it is on its standard output, a line
of JSON each. The last line is the summary or the error. When its standard input ends, the backup
was cancelled or the broker is gone: it removes its mark from the store, and ends. It opens the
frozen files only to read them, at low priority.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, Final

import msgspec

from onelog.backup.manifest import BackupSummary
from onelog.backup.marks import mark_name, remove_mark
from onelog.backup.repository import Repository
from onelog.backup.sending import BackupPlan, Sending, SentCounts
from onelog.backup.stores import BackupStore, open_backup_store
from onelog.base.errors import OnelogError
from onelog.base.faults import arm_from_environment
from onelog.base.process import stand_back

REPORT_S: Final = 0.25
"""How often it says how far it is, at most."""
PARTING_S: Final = 2.0
"""How long the store has to remove the mark of a backup that was cancelled."""


class WorkerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the worker."""

    counts: SentCounts | None = None
    done: BackupSummary | None = None
    error: str = ""
    """The class of the error."""
    message: str = ""


def main() -> int:
    """Send one backup; the exit code."""
    stand_back()
    arm_from_environment(os.environ.get("ONELOG_FAULTS", ""))
    source, out = sys.stdin.buffer, sys.stdout.buffer
    plan = msgspec.json.decode(source.readline(), type=BackupPlan)
    try:
        store = open_backup_store(plan.url, plan.options)
        mark = mark_name(plan.summary.id)
        threading.Thread(target=_end_with, args=(source, store, mark), daemon=True).start()
        repository = Repository(store, plan.url)
        done = Sending(plan, repository, _reporter(out)).run()
    except OnelogError as error:
        _say(out, WorkerLine(error=type(error).__name__, message=str(error)))
        return 1
    except OSError as error:
        _say(out, WorkerLine(error="StorageError", message=f"the backup failed: {error}"))
        return 1
    _say(out, WorkerLine(done=done.summary))
    return 0


def _end_with(source: BinaryIO, store: BackupStore, mark: str) -> None:
    source.read()
    removing = threading.Thread(target=remove_mark, args=(store, mark), daemon=True)
    removing.start()
    removing.join(PARTING_S)
    os._exit(1)


def _reporter(out: BinaryIO) -> Callable[[SentCounts], None]:
    said_s = 0.0
    lock = threading.Lock()

    def report(counts: SentCounts) -> None:
        nonlocal said_s
        with lock:
            now_s = time.monotonic()
            if now_s - said_s >= REPORT_S:
                said_s = now_s
                _say(out, WorkerLine(counts=counts))

    return report


def _say(out: BinaryIO, line: WorkerLine) -> None:
    out.write(msgspec.json.encode(line) + b"\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
