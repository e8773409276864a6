"""The thread that works on the embedded store's file, and its queue of jobs.

Rules:
- Jobs wait in one bounded queue. The thread takes all that wait and commits their mutations
  together (group commit); each is atomic and has its own revision. A job that works `alone` comes
  after that commit: a copy inside of the transaction would wait for the end of it, for ever.
- Every answer, of reads too, goes back after the commit of its group, so nobody sees what a crash
  could undo (I4). `finish` gets them on the loop, in the order of their commits.
- A group that fails before its commit, or because the disk is full, is rolled back as a whole and
  raises `Unavailable` (I9). If the commit itself fails, the disk may have the group or not:
  `OutcomeUnknown`.
- After a full disk the store goes on once there is room. After any other error the store stops
  until it is opened again: the content of the disk can no longer be trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from onelog.base.errors import OnelogError, OutcomeUnknown, StorageError, Unavailable
from onelog.metadata.local_database import LocalDatabase, Revision, is_full

WAITING_JOBS_MAX = 10_000
"""Calls that may wait for the thread; one more raises Unavailable."""

GROUP_JOBS_MAX = 512
"""Jobs of one commit."""


class StoreJob:
    """One call for the thread.

    A mutation's `work` returns (outcome, revision). `done` runs on the loop after the commit, also
    when the caller no longer waits. A job that works `alone` is outside of any transaction.
    """

    __slots__ = ("alone", "done", "mutates", "outcome", "revision", "waiter", "work")

    def __init__(
        self,
        work: Callable[[LocalDatabase], Any],
        waiter: asyncio.Future[Any],
        mutates: bool,
        done: Callable[[Any], None] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self.work = work
        self.waiter = waiter
        self.mutates = mutates
        self.alone = alone
        self.done = done
        self.outcome: Any = None
        self.revision: Revision = ()

    def answer(self) -> None:
        """Answer the caller, if it still waits."""
        if self.waiter.done():
            return
        if isinstance(self.outcome, BaseException):
            self.waiter.set_exception(self.outcome)
        else:
            self.waiter.set_result(self.outcome)


class Worker:
    """The thread and its queue. All methods are called on the loop."""

    def __init__(
        self, make: Callable[[], LocalDatabase], finish: Callable[[list[StoreJob]], None]
    ) -> None:
        """`make` is called in the thread."""
        self._loop = asyncio.get_running_loop()
        self._make = make
        self._finish = finish
        self._jobs: SimpleQueue[StoreJob | None] = SimpleQueue()
        self._waiting = 0
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="onelog-metadata", daemon=True)
        self._thread.start()

    def submit(self, job: StoreJob) -> None:
        """Queue a job."""
        if self._waiting >= WAITING_JOBS_MAX:
            raise Unavailable(f"{WAITING_JOBS_MAX} calls wait for the metadata store; try again")
        self._waiting += 1
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after the jobs that wait."""
        self._jobs.put(None)

    async def ended(self) -> None:
        """Wait until the file is closed."""
        await asyncio.shield(self._ended)
        self._thread.join()

    def _handed_back(self, group: list[StoreJob]) -> None:
        self._waiting -= len(group)
        self._finish(group)

    # ---- in the thread ----

    def _run(self) -> None:
        db: LocalDatabase | None = None
        stopped: OnelogError | None = None
        try:
            db = self._make()
        except OnelogError as error:
            stopped = error
        except (OSError, sqlite3.Error) as error:
            stopped = StorageError(f"the metadata store cannot be opened: {error}")
        last = False
        while not last:
            taken = self._take()
            group = [job for job in taken if job is not None]
            last = len(group) < len(taken)
            if db is None or stopped is not None:
                for job in group:
                    job.outcome = stopped
            else:
                stopped = _work(db, [job for job in group if not job.alone])
                for job in group:
                    if job.alone:
                        _work_alone(db, job, stopped)
            self._post(self._handed_back, group)
        if db is not None:
            with contextlib.suppress(sqlite3.Error):  # a broken disk: all answers went out already
                db.close()
        self._post(self._ended.set_result, None)

    def _take(self) -> list[StoreJob | None]:
        taken = [self._jobs.get()]
        with contextlib.suppress(Empty):
            while taken[-1] is not None and len(taken) < GROUP_JOBS_MAX:
                taken.append(self._jobs.get_nowait())
        return taken

    def _post(self, call: Callable[[Any], None], argument: object) -> None:
        # RuntimeError: the loop was closed without closing the store, so nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, argument)


def _work(db: LocalDatabase, group: list[StoreJob]) -> OnelogError | None:
    """Do a group. Returns an error if the store must stop."""
    mutates = any(job.mutates for job in group)
    try:
        if mutates:
            db.begin()
        for job in group:
            _attempt(db, job)
        if mutates:
            db.commit()
    except (sqlite3.Error, OSError) as error:
        return _fail(db, group, error)
    except OutcomeUnknown as error:
        return _stop(db, group, error)
    except Exception as error:  # noqa: BLE001 - a defect: nobody may wait for ever over it
        return _stop(db, group, OutcomeUnknown(f"the metadata store failed: {error!r}"))
    return None


def _work_alone(db: LocalDatabase, job: StoreJob, stopped: OnelogError | None) -> None:
    try:
        job.outcome = stopped or job.work(db)
    except Exception as error:  # noqa: BLE001 - one job's error must not leave the others waiting
        job.outcome = error


def _attempt(db: LocalDatabase, job: StoreJob) -> None:
    try:
        if job.mutates:
            job.outcome, job.revision = db.attempt(partial(job.work, db))
        else:
            job.outcome = job.work(db)
    except (sqlite3.Error, OSError):
        raise  # a disk error concerns the whole group
    except Exception as error:  # noqa: BLE001 - one job's error must not leave the others waiting
        job.outcome = error


def _fail(
    db: LocalDatabase, group: list[StoreJob], cause: sqlite3.Error | OSError
) -> OnelogError | None:
    """Answer that nothing of a group was done."""
    full = is_full(cause)
    try:
        db.rollback()
    except sqlite3.Error:
        full = False
    for job in group:
        job.outcome, job.revision = Unavailable(f"the metadata store cannot write: {cause}"), ()
    return None if full else _stopped(cause)


def _stop(db: LocalDatabase, group: list[StoreJob], unknown: OutcomeUnknown) -> OnelogError:
    """A group was done as a whole, or not at all. Jobs that were refused or only read did
    nothing."""
    with contextlib.suppress(sqlite3.Error):
        db.rollback()
    stopped = _stopped(unknown)
    for job in group:
        has_tried = job.mutates and not isinstance(job.outcome, BaseException)
        job.outcome, job.revision = unknown if has_tried else stopped, ()
    return stopped


def _stopped(cause: BaseException) -> Unavailable:
    return Unavailable(f"the metadata store stopped after an I/O error ({cause}): restart it")
