"""The embedded metadata store: one SQLite file, one thread that works on it, no other process.

Rules:
- The loop never touches the file: calls become jobs of the `Worker`, answered after the commit.
- Answers, watch events and lease changes reach the loop in the order of their commits.
- A lease's time runs on the monotonic clock, with one timer for the soonest deadline. It starts
  anew when the store opens, so a restart never kills a lease whose owner lives.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from onelog.base.clock import Clock
from onelog.base.errors import Closed, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from onelog.metadata.local_database import LocalDatabase, Revision
from onelog.metadata.local_leases import LeaseTable
from onelog.metadata.local_watch import LocalWatch
from onelog.metadata.local_worker import StoreJob, Worker
from onelog.metadata.rules import (
    check_key,
    check_lease,
    check_text,
    check_txn,
    check_write,
)
from onelog.metadata.store import Compare, Delete, Entry, Op, Put, Range, TxnResult, Watch

T = TypeVar("T")

HISTORY_REVISIONS = 10_000
"""Revisions that a watch can go back."""

EXPIRY_RETRY_S = 1.0
"""Wait before a lease whose expiry could not be written is tried again."""


class LocalStore:
    """The store; made by `LocalStore.open`."""

    reconcile_s = 0.0

    def __init__(self, path: Path, clock: Clock, make: Callable[[], LocalDatabase]) -> None:
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._clock = clock
        self._closing = False
        self._leases = LeaseTable(clock)
        self._timer: asyncio.TimerHandle | None = None
        self._watches: set[LocalWatch] = set()
        self._worker = Worker(make, self._finish)

    @classmethod
    async def open(
        cls, path: Path | str, clock: Clock, *, history_revisions: int = HISTORY_REVISIONS
    ) -> LocalStore:
        """Open or create the store's file. Raises DataDirLocked when a process has it."""
        assert history_revisions >= 1
        file = Path(path)
        return await cls.open_made(file, clock, partial(LocalDatabase, file, history_revisions))

    @classmethod
    async def open_made(cls, path: Path, clock: Clock, make: Callable[[], LocalDatabase]) -> Self:
        """Open the store on a database that `make` opens, in the store's own thread."""
        store = cls(path, clock, make)
        try:
            await store._submit(LocalDatabase.leases, store._start_leases)
        except BaseException:
            await store.close()
            raise
        return store

    # ---- the interface ----

    async def get(self, key: str) -> Entry | None:
        """One key, or None."""
        check_key(key)
        return await self._submit(lambda db: db.get(key))

    async def range(self, prefix: str, limit: int = 0) -> Range:
        """Every key that starts with `prefix`, in key order (limit 0: all)."""
        check_text(prefix)
        if limit < 0:
            raise InvalidRequest(f"a range's limit is 0 (all) or more, not {limit}")
        return await self._submit(lambda db: db.range(prefix, limit))

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """If all compares hold, apply `then`, otherwise `otherwise`; atomically.

        A compare of the value of a missing key never holds, as in etcd.
        """
        conditions, yes, no = tuple(compares), tuple(then), tuple(otherwise)
        check_txn(conditions, yes, no)

        def work(db: LocalDatabase) -> tuple[TxnResult, Revision]:
            held = all(map(db.holds, conditions))
            made = db.apply(yes if held else no)
            return TxnResult(held, db.revision), made

        return await self._mutate(work)

    async def write(self, ops: Sequence[Op]) -> None:
        """Apply any number of operations; this store does them in one transaction."""
        rows = tuple(ops)
        check_write(rows)

        def work(db: LocalDatabase) -> tuple[None, Revision]:
            return None, db.apply(rows)

        await self._mutate(work)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Write one key. Returns the new revision."""
        return (await self.txn((), (Put(key, value, lease),))).revision

    async def delete(self, key: str, *, prefix: bool = False) -> int:
        """Delete a key or a prefix. Returns how many keys were deleted."""
        ops = (Delete(key, prefix),)
        check_txn((), ops, ())

        def work(db: LocalDatabase) -> tuple[int, Revision]:
            made = db.apply(ops)
            return len(made), made

        return await self._mutate(work)

    async def grant(self, ttl_s: float) -> int:
        """A new lease."""
        if not (math.isfinite(ttl_s) and ttl_s > 0):
            raise InvalidRequest(f"a lease lives for a positive number of seconds, not {ttl_s}")

        def work(db: LocalDatabase) -> tuple[int, Revision]:
            return db.grant(ttl_s), ()

        return await self._mutate(work, lambda lease: self._add_lease(lease, ttl_s))

    async def keep_alive(self, lease: int) -> None:
        """Restart the lease's time. Raises NotFound when it is gone."""
        self._need_open()
        if not self._leases.renew(lease):
            raise NotFound(f"lease {lease} expired or was revoked; grant a new one")

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys."""
        check_lease(lease)
        await self._mutate(partial(_end_lease, lease), lambda _: self._leases.remove(lease))

    async def watch(self, prefix: str, from_revision: int = 0) -> Watch:
        """Changes under `prefix` with mod revision >= `from_revision` (0: from now on).

        Raises OffsetOutOfRange when the store no longer has that history: reload, then watch.
        """
        check_text(prefix)
        if from_revision < 0:
            raise InvalidRequest(f"a watch starts at revision 0 (now) or more, not {from_revision}")
        watch = LocalWatch(prefix, from_revision, self._refill, self._watches.discard)
        self._watches.add(watch)
        try:
            await self._refill(watch)
        except BaseException:
            watch.close()
            raise
        return watch

    async def snapshot(self, path: Path) -> int:
        """Write all of the store into a new file. Returns the revision that it holds."""
        return await self._submit(lambda db: db.copy(path), alone=True)

    async def close(self) -> None:
        """Finish waiting calls, then close everything. Idempotent."""
        if not self._closing:
            self._closing = True
            if self._timer is not None:
                self._timer.cancel()
            for watch in tuple(self._watches):
                watch.close()
            self._worker.stop()
        await self._worker.ended()

    # ---- inside, all on the loop ----

    def _need_open(self) -> None:
        if self._closing:
            raise Closed(f"the metadata store {self._path} was closed")

    async def _submit(
        self,
        work: Callable[[LocalDatabase], T],
        done: Callable[[T], None] | None = None,
        *,
        alone: bool = False,
    ) -> T:
        self._need_open()
        waiter: asyncio.Future[T] = self._loop.create_future()
        self._worker.submit(StoreJob(work, waiter, False, done, alone=alone))
        return await waiter

    async def _mutate(
        self,
        work: Callable[[LocalDatabase], tuple[T, Revision]],
        done: Callable[[T], None] | None = None,
    ) -> T:
        self._need_open()
        waiter: asyncio.Future[T] = self._loop.create_future()
        self._worker.submit(StoreJob(work, waiter, True, done))
        return await waiter

    async def _refill(self, watch: LocalWatch) -> None:
        first = watch.next_revision

        def work(db: LocalDatabase) -> tuple[list[Revision], int, int]:
            return (*db.history(watch.prefix, first or db.revision + 1), db.revision)

        await self._submit(work, lambda page: watch.take_page(*page))

    def _finish(self, group: list[StoreJob]) -> None:
        """Return the results of a committed (or failed) group, in the order in which it was
        done."""
        for job in group:
            if job.revision:
                for watch in tuple(self._watches):
                    watch.offer(job.revision)
            if job.done is not None and not isinstance(job.outcome, BaseException):
                job.done(job.outcome)
            job.answer()

    def _start_leases(self, leases: list[tuple[int, float]]) -> None:
        for lease, ttl_s in leases:
            self._leases.add(lease, ttl_s)
        self._arm()

    def _add_lease(self, lease: int, ttl_s: float) -> None:
        self._leases.add(lease, ttl_s)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        soonest = self._leases.soonest()
        if soonest is not None and not self._closing:
            wait_s = max(0.0, soonest - self._clock.monotonic())
            self._timer = self._loop.call_at(self._loop.time() + wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for lease in self._leases.take_due():
            waiter: asyncio.Future[Any] = self._loop.create_future()
            waiter.add_done_callback(partial(self._on_expired, lease))
            try:
                self._worker.submit(StoreJob(partial(_end_lease, lease), waiter, True))
            except Unavailable as busy:
                waiter.set_exception(busy)
        self._arm()

    def _on_expired(self, lease: int, waiter: asyncio.Future[Any]) -> None:
        if isinstance(waiter.exception(), (Unavailable, OutcomeUnknown)):
            self._add_lease(lease, EXPIRY_RETRY_S)


def _end_lease(lease: int, db: LocalDatabase) -> tuple[None, Revision]:
    return None, db.end_lease(lease)
