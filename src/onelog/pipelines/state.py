"""The state of pipelines for other processes: whether one runs, its progress, how it ended.

Rules: a pipeline has a directory below the data directory. The process that runs it holds the lock
in that directory, so that it runs only once, and so that a process number counts only while its
process lives. Files are whole or not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from onelog.base.errors import Conflict, NotFound, OnelogError, Timeout
from onelog.pipelines.progress import Progress

LOCK: Final = "lock"
STATUS: Final = "status.json"

Phase = Literal["starting", "running", "done", "stopped", "failed", "killed"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a pipeline, as others see it."""

    name: str
    file: str
    master: str
    mode: str
    pid: int
    started: str
    phase: Phase = "starting"
    error: str = ""
    targets: dict[str, Progress] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A target that is written as a whole, and not as a stream: which write of it is under way."""

    query: str
    number: int = 0
    done: bool = False


class State:
    """The directory of one pipeline."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    @property
    def log(self) -> Path:
        """Spark's own log."""
        return self._folder / "spark.log"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Take the lock to run the pipeline. Raises Conflict."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(
                    f"the pipeline {self._folder.name} runs already: `onelog pipeline stop"
                    f" {self._folder.name}` ends it"
                ) from None
            yield

    def runs(self) -> bool:
        """Whether a process holds the lock."""
        try:
            with (self._folder / LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def save(self, status: Status) -> None:
        """Tell others."""
        _write(self._folder / STATUS, msgspec.json.encode(status))

    def status(self) -> Status:
        """The status of the last run; a run that claims to run but does not hold the lock was
        killed."""
        try:
            found = msgspec.json.decode((self._folder / STATUS).read_bytes(), type=Status)
        except FileNotFoundError:
            raise NotFound(
                f"no pipeline {self._folder.name!r} has run in this data directory: `onelog"
                " pipeline list` shows all; --data chooses another one"
            ) from None
        if found.phase in ("starting", "running") and not self.runs():
            return msgspec.structs.replace(found, phase="killed")
        return found

    def stop(self, timeout_s: float) -> bool:
        """Ask the runner to end, and wait until it has ended; False if nothing ran."""
        found = self.status()
        if not self.runs():
            return False
        os.kill(found.pid, signal.SIGTERM)
        waiter = threading.Thread(target=self._wait, daemon=True)
        waiter.start()
        waiter.join(timeout_s)
        if waiter.is_alive():
            raise Timeout(
                f"the pipeline {found.name} (process {found.pid}) has not ended"
                f" {timeout_s:.0f} seconds after the request; it may still end"
            )
        return True

    def _wait(self) -> None:
        with (self._folder / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)

    def next_job(self, target: str) -> Job:
        """The write that is to be done now: a new one, or the one that was not finished."""
        file = self._job(target)
        try:
            last = msgspec.json.decode(file.read_bytes(), type=Job)
        except FileNotFoundError:
            last = Job(query=uuid.uuid4().hex, number=-1, done=True)
        if last.done:
            last = Job(query=last.query, number=last.number + 1)
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, msgspec.json.encode(last))
        return last

    def job_done(self, target: str, job: Job) -> None:
        """A write is in its target."""
        _write(self._job(target), msgspec.json.encode(msgspec.structs.replace(job, done=True)))

    def _job(self, target: str) -> Path:
        return self._folder / "jobs" / f"{target}.json"


def known_pipelines(folder: Path) -> list[Status]:
    """Every pipeline that has run in a data directory, by name.

    A status that cannot be read is left out: another process wrote it, perhaps a newer version.
    """
    found = []
    for file in sorted(folder.glob(f"pipelines/*/{STATUS}")):
        with contextlib.suppress(OnelogError, OSError, msgspec.MsgspecError):
            found.append(State(file.parent).status())
    return found


def _write(file: Path, data: bytes) -> None:
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    with fresh.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)
