"""Marks of backups that run, in the store itself: pruning deletes nothing while one stands.

Rules: a backup sets its mark before it looks at the store, renews it every `RENEW_S`, and removes
it at its end. A mark that was not renewed for `SILENT_MS` is one of a process that was killed:
pruning removes it, and a backup that finds its mark gone (its machine slept) is no backup. Ages are
compared by the clock of the store; pruning sets a mark of its own to know it, where there are
others. Pruning holds no backup up: one that begins after pruning has looked for marks uses only
objects that pruning leaves alone (those of the newest backup, and those of the last half day).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from onelog.backup.stores import TEMPORARY, BackupStore
from onelog.base.errors import Conflict, NotFound, OnelogError, Unavailable

RENEW_S: Final = 30.0
SILENT_MS: Final = 10 * 60 * 1000
"""After so long without a sign, a backup does not run any more."""
FOLDER: Final = "running"
_PRUNING: Final = "prune-"


class MarkBody(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs, for people."""

    host: str
    pid: int
    has_ended: bool = False
    """It ended, and could not delete its mark."""


class RunningMark:
    """The mark of one backup."""

    def __init__(self, store: BackupStore, backup_id: str) -> None:
        self._store = store
        self._name = mark_name(backup_id)
        self._is_over = threading.Event()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """The mark stands, and a thread renews it."""
        self._store.put(self._name, _body())
        renewing = threading.Thread(target=self._renew, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._is_over.set()
            renewing.join()
            remove_mark(self._store, self._name)

    def check(self) -> None:
        """Renew the mark. Raises Conflict if it is gone: pruning may have deleted what was sent."""
        try:
            self._store.touch(self._name)
        except NotFound as error:
            raise Conflict(
                f"the backup gave no sign for {SILENT_MS // 60_000} minutes, and objects were"
                " pruned meanwhile: begin again, and what is left of it is used"
            ) from error

    def _renew(self) -> None:
        while not self._is_over.wait(RENEW_S):
            with contextlib.suppress(OnelogError):  # `check` says so in the end
                self._store.touch(self._name)


def mark_name(backup_id: str) -> str:
    """Where the mark of a backup lies."""
    return f"{FOLDER}/{backup_id}"


def remove_mark(store: BackupStore, name: str) -> None:
    """A backup has ended. Its key may have no right to delete: then the mark says that it ended."""
    try:
        store.delete([name])
    except OnelogError:
        with contextlib.suppress(OnelogError):  # it counts as silent after a while
            store.put(name, _body(has_ended=True))


@contextmanager
def pruning_alone(store: BackupStore) -> Iterator[None]:
    """No backup runs that was under way before this. Raises Conflict if one does."""
    if not any(True for _ in store.list(FOLDER)):
        yield
        return
    own = f"{FOLDER}/{_PRUNING}{secrets.token_hex(8)}"
    store.put(own, _body())
    try:
        store.delete(_marks_of_the_dead(store, own))
        yield
    finally:
        store.delete([own])


def _marks_of_the_dead(store: BackupStore, own: str) -> list[str]:
    """Marks of backups that do not run any more. Raises Conflict if one runs."""
    rows = {row.name: row.modified_ms for row in store.list(FOLDER)}
    if own not in rows:
        raise Unavailable(f"{own} was written, and is not listed: try again")
    now_ms = rows.pop(own)  # by the clock that the others have
    dead = []
    for name, at_ms in rows.items():
        if at_ms < now_ms - SILENT_MS:
            dead.append(name)
        elif not name.startswith(f"{FOLDER}/{_PRUNING}") and not name.endswith(TEMPORARY):
            _refuse_if_running(store, name)
            dead.append(name)
    return dead


def _refuse_if_running(store: BackupStore, name: str) -> None:
    who = ""
    with contextlib.suppress(OnelogError, msgspec.DecodeError):
        body = msgspec.json.decode(store.get(name), type=MarkBody)
        who = f" (process {body.pid} on {body.host})"
        if body.has_ended:
            return
    raise Conflict(
        f"the backup {name.rpartition('/')[2]} is under way{who}, so nothing is deleted: wait for"
        " it, or end it with `onelog backup cancel`. If its process is gone, it counts as ended"
        f" {SILENT_MS // 60_000} minutes after its last sign"
    )


def _body(*, has_ended: bool = False) -> bytes:
    return msgspec.json.encode(
        MarkBody(host=socket.gethostname(), pid=os.getpid(), has_ended=has_ended)
    )
