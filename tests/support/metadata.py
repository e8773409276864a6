"""A metadata store between a test and a real one: refusals, unknown outcomes, slow watches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from onelog.base.errors import OutcomeUnknown, Unavailable
from onelog.metadata.parts import in_parts
from onelog.metadata.store import Compare, Entry, Event, MetadataStore, Op, Range, TxnResult, Watch


class Fault(Enum):
    """What becomes of a mutation."""

    NONE = "none"
    REFUSED = "refused"
    """Unavailable: it is not made."""
    UNKNOWN_DONE = "unknown, done"
    UNKNOWN_NOT_DONE = "unknown, not done"
    UNKNOWN_LATE = "unknown, done later"
    """As a request to a cluster that elects a leader: made when `deliver` is called."""


class FaultyStore:
    """A node's way to a store; nodes of one cluster have one each, over the same real store."""

    reconcile_s = 0.0

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.faults: deque[Fault] = deque()
        """What becomes of the next mutations, in turn; without any more, all goes well."""
        self.late: list[Callable[[], Any]] = []
        self.watches: list[SlowWatch] = []
        self.is_slow = False
        """Whether watches that are opened from now on show nothing until `SlowWatch.show`."""

    async def deliver(self) -> None:
        """Let the late mutations through."""
        late, self.late = self.late, []
        for mutate in late:
            await mutate()

    async def _mutate(self, mutate: Callable[[], Any]) -> Any:
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is Fault.REFUSED:
            raise Unavailable("the test refuses this")
        if fault is Fault.UNKNOWN_LATE:
            self.late.append(mutate)
        if fault in (Fault.UNKNOWN_LATE, Fault.UNKNOWN_NOT_DONE):
            raise OutcomeUnknown("the test says nothing")
        made = await mutate()
        if fault is Fault.UNKNOWN_DONE:
            raise OutcomeUnknown("the test says nothing")
        return made

    # -- the interface

    async def get(self, key: str) -> Entry | None:
        return await self._store.get(key)

    async def snapshot(self, path: Path) -> int:
        """A copy of the store."""
        return await self._store.snapshot(path)

    async def range(self, prefix: str, limit: int = 0) -> Range:
        return await self._store.range(prefix, limit)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        made = await self._mutate(lambda: self._store.txn(compares, then, otherwise))
        assert isinstance(made, TxnResult)
        return made

    async def write(self, ops: Sequence[Op]) -> None:
        await self._mutate(lambda: self._store.write(ops))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return int(await self._mutate(lambda: self._store.put(key, value, lease)))

    async def delete(self, key: str, *, prefix: bool = False) -> int:
        return int(await self._mutate(lambda: self._store.delete(key, prefix=prefix)))

    async def grant(self, ttl_s: float) -> int:
        return int(await self._mutate(lambda: self._store.grant(ttl_s)))

    async def keep_alive(self, lease: int) -> None:
        await self._store.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        await self._mutate(lambda: self._store.revoke(lease))

    async def watch(self, prefix: str, from_revision: int = 0) -> Watch:
        watch = SlowWatch(await self._store.watch(prefix, from_revision))
        if not self.is_slow:
            watch.show()
        self.watches.append(watch)
        return watch

    async def close(self) -> None:
        await self._store.close()


class DyingStore(FaultyStore):
    """A store in parts, as etcd is, whose process ends after a number of mutations."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.left: int | None = None
        """Mutations that are still made; None: all of them."""

    async def _mutate(self, mutate: Callable[[], Any]) -> Any:
        if self.left is not None:
            if not self.left:
                raise Unavailable("the process ended here")
            self.left -= 1
        return await super()._mutate(mutate)

    async def write(self, ops: Sequence[Op]) -> None:
        for part in in_parts(ops):
            await self.txn((), part)


class SlowWatch:
    """A watch that shows changes when the test lets it, and breaks when the test says so."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._events = watch.__aiter__()
        self._gate = asyncio.Event()
        self._error: Exception | None = None
        self.is_closed = False

    def show(self) -> None:
        """Show what came, and what comes."""
        self._gate.set()

    def hide(self) -> None:
        """Show nothing from now on."""
        self._gate.clear()

    def end(self, error: Exception) -> None:
        """End with an error, as a link that is cut or a history that is gone."""
        self._error = error
        self._watch.close()
        self.show()

    def close(self) -> None:
        self.is_closed = True
        self._watch.close()
        self.show()

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        try:
            events = await anext(self._events)
            await self._gate.wait()
        except StopAsyncIteration:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error
        if self.is_closed:
            raise StopAsyncIteration
        return events
