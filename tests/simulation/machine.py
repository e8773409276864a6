"""A machine of one thread: a loop of virtual time, a syncer without threads, a store in memory.

Rules: everything is decided by the seed. When nothing is to be done now, time jumps to what is due
next. A job of the syncer is done in one go at some later moment and answered at another: between
both anything else may happen, as with threads.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
import selectors
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from onelog.base.clock import ManualClock
from onelog.log.pool import answer_of
from onelog.metadata.rules import check_txn
from onelog.metadata.store import Compare, Delete, Entry, Event, Op, Put, Range, TxnResult
from onelog.observe.troubles import Troubles

T = TypeVar("T")
RESOLUTION_S = 1e-9
"""What is due within it is due now, as asyncio has it."""


class Stuck(Exception):
    """Nothing is to be done, now or ever, and somebody waits."""


class _NoSelector(selectors.BaseSelector):
    """Nothing comes from outside of this process."""

    def select(self, timeout: float | None = None) -> list[Any]:
        raise NotImplementedError(timeout)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on a clock that jumps."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, clock: ManualClock) -> None:
        self._virtual = clock
        self.time = clock.monotonic  # type: ignore[method-assign]
        super().__init__(_NoSelector())

    def _run_once(self) -> None:
        """One turn, as asyncio takes it: what is ready now; without that, what is due next.

        A seed takes hundreds of turns, and asyncio's own costs as much as what is done in one.
        """
        ready, scheduled = self._ready, self._scheduled
        if not ready and not self._stopping:
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)
            if not scheduled:
                raise Stuck
            self._virtual.advance(max(0.0, scheduled[0]._when - self.time()))
        now = self.time() + RESOLUTION_S
        while scheduled and scheduled[0]._when < now:
            ready.append(heapq.heappop(scheduled))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


class SimulatedTicket:
    """What the kernel's `SyncTicket` is; who waits for it does the sync."""

    def __init__(self, file: Any) -> None:
        self.error = 0
        self._file = file
        self._is_over = False

    def wait(self) -> None:
        """Sync, unless that was done before."""
        if not self._is_over:
            self._is_over = True
            try:
                os.fdatasync(self._file.fd)
            except OSError as error:
                self.error = error.errno or 1


class SimulatedSyncer:
    """What `log.syncer.Syncer` does, on the loop's own thread."""

    chance = random.Random(0)
    disk = None

    def __init__(
        self, threads: int = 4, troubles: Troubles | None = None, *, chores: int | None = None
    ) -> None:
        del threads, troubles, chores
        self.chores = self
        self._loop = asyncio.get_running_loop()

    def start(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Do it at some moment, answer at another."""

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is handed to `done`
                failure = error
            self._loop.call_later(self.chance.random() * 0.01, done, result, failure)

        self._loop.call_later(self.chance.random() * 0.01, run)

    def ask(self, file: Any, done: Callable[[Any], None]) -> SimulatedTicket:
        """Sync a file at some moment, answer at another."""
        ticket = SimulatedTicket(file)

        def run() -> None:
            ticket.wait()
            self._loop.call_later(self.chance.random() * 0.01, done, ticket)

        self._loop.call_later(self.chance.random() * 0.01, run)
        return ticket

    async def run(self, work: Callable[[], T]) -> T:
        """Do it and wait for it."""
        return await answer_of(self.start, work)

    async def close(self) -> None:
        """There are no threads."""


class MemoryStore:
    """A metadata store whose every answer is durable; its rows outlive a crash."""

    reconcile_s = 0.0

    def __init__(self, rows: dict[str, Entry] | None = None) -> None:
        self.rows = {} if rows is None else rows
        self._revision = max((row.mod_revision for row in self.rows.values()), default=0)
        self._history: list[tuple[Event, ...]] = []
        """Changes since it was opened, a revision each."""
        self._watches: list[_News] = []

    async def get(self, key: str) -> Entry | None:
        await asyncio.sleep(0)
        return self.rows.get(key)

    async def range(self, prefix: str, limit: int = 0) -> Range:
        await asyncio.sleep(0)
        found = [self.rows[key] for key in sorted(self.rows) if key.startswith(prefix)]
        return Range(tuple(found[:limit] if limit else found), self._revision)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        check_txn(tuple(compares), tuple(then), tuple(otherwise))
        await asyncio.sleep(0.001)
        held = all(map(self._holds, compares))
        self._apply(then if held else otherwise)
        revision = self._revision
        await asyncio.sleep(0.001)  # a crash may come between the commit and its answer
        return TxnResult(held, revision)

    def _holds(self, compare: Compare) -> bool:
        row = self.rows.get(compare.key)
        have: Any = getattr(row, compare.target) if row is not None else 0
        want: Any = compare.operand
        if compare.target == "value" and row is None:
            return False
        return bool(
            {"==": have == want, "!=": have != want}.get(compare.op)
            if compare.op in ("==", "!=")
            else (have < want if compare.op == "<" else have > want)
        )

    def _apply(self, ops: Sequence[Op]) -> None:
        self._revision += bool(ops)
        events: list[Event] = []
        for op in ops:
            if isinstance(op, Put):
                old = self.rows.get(op.key)
                created, version = (old.create_revision, old.version) if old else (0, 0)
                row = Entry(
                    op.key, op.value, created or self._revision, self._revision, version + 1
                )
                self.rows[op.key] = row
                events.append(Event("put", row))
            elif isinstance(op, Delete):
                for key in [
                    k for k in self.rows if k == op.key or (op.prefix and k.startswith(op.key))
                ]:
                    gone = msgspec.structs.replace(self.rows.pop(key), mod_revision=self._revision)
                    events.append(Event("delete", gone))
        self._history.append(tuple(events))
        for watch in self._watches:
            watch.tell_later(tuple(events))

    async def write(self, ops: Sequence[Op]) -> None:
        for op in ops:
            await self.txn((), (op,))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.txn((), (Put(key, value, lease),))).revision

    async def delete(self, key: str, *, prefix: bool = False) -> int:
        before = len(self.rows)
        await self.txn((), (Delete(key, prefix),))
        return before - len(self.rows)

    async def grant(self, ttl_s: float) -> int:
        return int(ttl_s) + 1

    async def keep_alive(self, lease: int) -> None:
        del lease

    async def revoke(self, lease: int) -> None:
        del lease

    async def watch(self, prefix: str, from_revision: int = 0) -> _News:
        made = _News(prefix)
        since = from_revision or self._revision + 1
        for events in self._history:
            if events and events[0].entry.mod_revision >= since:
                made.tell_later(events)
        self._watches.append(made)
        return made

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()


class _News:
    """A watch: changes come in their order, before or after the answer to who made them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._coming: deque[tuple[Event, ...]] = deque()
        self._here: asyncio.Queue[tuple[Event, ...]] = asyncio.Queue()

    def tell_later(self, events: Sequence[Event]) -> None:
        """Let a revision come at some moment."""
        mine = tuple(event for event in events if event.entry.key.startswith(self._prefix))
        if mine:
            self._coming.append(mine)
            delay_s = SimulatedSyncer.chance.random() * 0.003
            asyncio.get_running_loop().call_later(delay_s, self._tell)

    def _tell(self) -> None:
        self._here.put_nowait(self._coming.popleft())

    async def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        while events := await self._here.get():
            yield events

    def close(self) -> None:
        self._here.put_nowait(())
