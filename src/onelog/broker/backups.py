"""Backups of the running broker: one at a time, sent by a process of its own.

Rules: the broker makes the cut and the links (`log/freezing.py`); reading, hashing and sending are
the worker's (`backup/worker.py`), so that messages do not wait for them. The links are gone when
the run ends, however it ends; those of a process that was killed are removed at the next start.
A run that failed is an incident.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

import onelog
from onelog.backup.manifest import LEFT_OUT_MAX, BackupSummary, new_id
from onelog.backup.sending import BackupPlan
from onelog.backup.stores import backup_folder, open_backup_store
from onelog.backup.worker import PARTING_S, WorkerLine
from onelog.base.clock import Clock
from onelog.base.commands import raise_error
from onelog.base.errors import (
    Closed,
    Conflict,
    InvalidRequest,
    NotFound,
    OnelogError,
    Unavailable,
)
from onelog.broker.helper_process import begin_helper
from onelog.broker.stored_backups import StoreLooks
from onelog.log.freezing import Frozen
from onelog.observe.logging import get_logger
from onelog.observe.troubles import Troubles

RUNS_MAX: Final = 32
"""Runs that are remembered."""
FAILED: Final = "backup"
"""Incidents: a backup failed."""
_TAIL_BYTES: Final = 2000
_ACTIVE: Final = ("freezing", "sending")

_log = get_logger("backup")

Freeze = Callable[[Path], Awaitable[Frozen]]


class BackupRun(msgspec.Struct, frozen=True, kw_only=True):
    """One backup, and how far it is."""

    id: str
    url: str
    state: Literal["freezing", "sending", "done", "failed", "cancelled"]
    began_ms: int
    ended_ms: int | None = None
    point_ms: int | None = None
    """Everything that was acknowledged before it is in the backup."""
    files: int = 0
    size_bytes: int = 0
    done_bytes: int = 0
    """Bytes that are in the backup, sent now or before."""
    new_bytes: int = 0
    """Bytes that were sent."""
    left_out: tuple[str, ...] = ()
    """Partitions that are not in the backup, and why."""
    message: str = ""
    """Why it failed."""

    @property
    def is_active(self) -> bool:
        """Whether it is under way."""
        return self.state in _ACTIVE


class Backups:
    """The backups of one broker since its start."""

    def __init__(
        self, freeze: Freeze, scratch: Path | None, clock: Clock, troubles: Troubles
    ) -> None:
        self._freeze = freeze
        self._scratch = scratch
        self._clock = clock
        self._troubles = troubles
        self._runs: deque[BackupRun] = deque(maxlen=RUNS_MAX)
        self._task: asyncio.Task[None] | None = None
        self._worker: asyncio.subprocess.Process | None = None
        self._cancelled = False
        self._closed = False
        self.looks = StoreLooks()
        """Into stores of backups."""
        self.last_success_ms = 0
        """When the last backup since the start was done; 0: none was."""

    @property
    def is_running(self) -> bool:
        """Whether a backup is under way."""
        return self._task is not None

    async def open(self) -> None:
        """Remove the links of a process that was killed."""
        await self._clean()

    def all(self) -> list[BackupRun]:
        """The runs since the start, the newest first; only the last ones are remembered."""
        return list(reversed(self._runs))

    def find(self, run_id: str) -> BackupRun:
        """One run. Raises NotFound."""
        for run in self._runs:
            if run.id == run_id:
                return run
        raise NotFound(f"no backup {run_id!r} was made since the broker started")

    def start(
        self, url: str, options: Mapping[str, str] | None = None, bytes_per_s: int = 0
    ) -> BackupRun:
        """Begin a backup. Raises Conflict while one runs, InvalidRequest, ConfigError."""
        if self._closed:
            raise Closed("the broker stops")
        if self._scratch is None:
            raise Unavailable("this broker has no data directory, so it cannot be backed up")
        if self.is_running:
            raise Conflict(
                f"the backup {self._runs[-1].id} is under way: wait for it, or end it with"
                " `onelog backup cancel`"
            )
        chosen = dict(options or {})
        open_backup_store(url, chosen)  # refuses what can never work
        now_ms = self._clock.now_ms()
        self._runs.append(BackupRun(id=new_id(now_ms), url=url, state="freezing", began_ms=now_ms))
        self._cancelled = False
        self._task = asyncio.create_task(
            self._run(url, chosen, bytes_per_s, self._scratch), name="onelog-backup"
        )
        return self._runs[-1]

    async def ended(self) -> None:
        """Wait until no backup is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def cancel(self, run_id: str) -> BackupRun:
        """End a run; what it sent already is used by the next one. Raises NotFound, Conflict."""
        run = self.find(run_id)
        if not run.is_active or self._task is None:
            raise Conflict(f"the backup {run_id} is {run.state} already")
        await self._end()
        return self.find(run_id)

    async def close(self) -> None:
        """End the run and the looks that are under way. Idempotent."""
        self._closed = True
        self.looks.close()
        if self._task is not None:
            await self._end()

    async def _end(self) -> None:
        self._cancelled = True
        if self._worker is not None and self._worker.stdin is not None and self._task is not None:
            self._worker.stdin.close()  # it removes its mark from the store, and ends
            await asyncio.wait([self._task], timeout=2 * PARTING_S)
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError):
                self._worker.kill()
        await self.ended()

    def _note(self, **changes: object) -> None:
        self._runs[-1] = msgspec.structs.replace(self._runs[-1], **changes)

    async def _run(
        self, url: str, options: dict[str, str], bytes_per_s: int, scratch: Path
    ) -> None:
        end: dict[str, object] = {"state": "cancelled"}
        try:
            done = await self._make(url, options, bytes_per_s, scratch)
            self.last_success_ms = self._clock.now_ms()
            end = {
                "state": "done",
                "size_bytes": done.size_bytes,
                "done_bytes": done.size_bytes,
                "new_bytes": done.new_bytes,
            }
            _log.info("backup made", id=done.id, url=url, bytes=done.size_bytes)
        except Exception as error:  # noqa: BLE001 - whatever it is, the broker goes on
            if not self._cancelled:
                message = str(error) if isinstance(error, OnelogError) else repr(error)
                end = {"state": "failed", "message": message}
                self._troubles.note(FAILED, url, error)
        finally:
            await self._clean()
            self._note(ended_ms=self._clock.now_ms(), **end)
            self._worker = self._task = None

    async def _make(
        self, url: str, options: dict[str, str], bytes_per_s: int, scratch: Path
    ) -> BackupSummary:
        await self._clean()
        await asyncio.to_thread(partial(_check_outside, url, scratch.parent))
        frozen = await self._freeze(scratch / "frozen")
        left_out = frozen.left_out[:LEFT_OUT_MAX]
        size_bytes = sum(frozen.files.values())
        self._note(
            state="sending",
            point_ms=frozen.point_ms,
            files=len(frozen.files),
            size_bytes=size_bytes,
            left_out=left_out,
        )
        summary = BackupSummary(
            id=self._runs[-1].id,
            onelog=onelog.__version__,
            point_ms=frozen.point_ms,
            streams=frozen.streams,
            partitions=len(frozen.partitions),
            left_out=left_out,
        )
        plan = BackupPlan(
            summary=summary,
            url=url,
            options=options,
            root=str(scratch / "frozen"),
            partitions=frozen.partitions,
            files=frozen.files,
            bytes_per_s=bytes_per_s,
        )
        return await self._send(plan, scratch / "worker.log")

    async def _send(self, plan: BackupPlan, log: Path) -> BackupSummary:
        if self._cancelled:
            raise Closed("the backup was cancelled")
        with log.open("wb") as errors:
            worker = self._worker = await begin_helper("onelog.backup.worker", errors)
        assert worker.stdin is not None and worker.stdout is not None
        try:
            if self._cancelled:
                raise Closed("the backup was cancelled")
            worker.stdin.write(msgspec.json.encode(plan) + b"\n")
            with contextlib.suppress(ConnectionError):  # it says below why it ended
                await worker.stdin.drain()
            return await self._follow(worker.stdout, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()

    async def _follow(self, lines: asyncio.StreamReader, log: Path) -> BackupSummary:
        async for line in lines:
            said = msgspec.json.decode(line, type=WorkerLine)
            raise_error(said.error, said.message)
            if said.done is not None:
                return said.done
            if said.counts is not None:
                counts = said.counts
                self._note(done_bytes=counts.done_bytes, new_bytes=counts.new_bytes)
        tail = await asyncio.to_thread(_tail, log)
        raise Unavailable(
            f"the process that sends the backup ended: {tail or 'it was killed'}; begin again, and"
            " what it sent already is used"
        )

    async def _clean(self) -> None:
        if self._scratch is not None:
            await asyncio.to_thread(partial(shutil.rmtree, self._scratch, ignore_errors=True))


def _check_outside(url: str, data_dir: Path) -> None:
    """Refuse a folder in the data directory, whose files are the broker's to delete.

    It would go with the data that it is to replace; in the folder of links, when the backup ends.
    """
    folder = backup_folder(url)
    if folder is None:
        return
    whole = folder.resolve()
    for path in (whole, *whole.parents):
        with contextlib.suppress(OSError):  # the worker says what is wrong with it
            if path.samefile(data_dir):
                raise InvalidRequest(
                    f"{url!r} is in the data directory {data_dir}, and would be lost with it: name"
                    " a folder elsewhere, best on another disk"
                )


def _tail(path: Path) -> str:
    return path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
