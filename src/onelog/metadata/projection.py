"""A projection: the rows under one prefix of the metadata store, in memory, changed by the watch.

Rules:
- The rows are loaded whole at one revision. After that only the watch changes them, in the order of
  the store's revisions. So all projections of a store get the same rows, and a write that the store
  refused changes nothing.
- A write compares each of its rows with a revision, the one known here by default. It returns when
  its own revision applies here. When another writer was faster it raises Conflict, after the other
  change applies here.
- If the outcome of a write is unknown, the first change of one of its rows shows whose it was.
  Until then the write is repeated with the same compares, if it changes an existing row: so it is
  made at most once. A new row may have come and gone, so its write is not repeated (I9).
- If the watch's history ends, the rows are loaded again. While the store cannot be reached, the
  last known rows count, and a standing trouble says so.
- A store across the network names a time (`reconcile_s`) after which the rows are compared with all
  keys. A difference that stays means that the watch lost a change: an incident says so, and the
  rows are loaded again.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from onelog.base.errors import (
    Closed,
    Conflict,
    OffsetOutOfRange,
    OutcomeUnknown,
    Timeout,
    Unavailable,
)
from onelog.metadata.store import (
    Compare,
    Delete,
    Entry,
    Event,
    MetadataStore,
    Op,
    Put,
    Range,
    Watch,
)
from onelog.observe.troubles import Troubles

NOT_WATCHED: Final = "metadata-watch"
"""Standing: changes of these rows are not seen at the moment."""

LISTENER: Final = "metadata-listener"
"""Incidents: the listener of a projection raised."""

LOST: Final = "metadata-lost-change"
"""Incidents: the watch did not show a change."""

RETRY_S: Final = 1.0
"""Wait before a watch that broke is tried again."""

ASK_AGAIN_S: Final = (0.05, 0.2, 1.0)
"""How long a write of unknown outcome waits for the watch to show it, after each attempt."""

REACH_TIMEOUT_S: Final = 5.0
"""How long a change may take until it applies here."""

V = TypeVar("V")


class ProjectedRow(NamedTuple, Generic[V]):
    """A row as it is known here."""

    revision: int
    """Its mod revision, with which a write of it compares."""
    value: V


class Change(NamedTuple, Generic[V]):
    """A row that is new, other or gone."""

    key: str
    before: V | None
    after: V | None


class _PendingWrite:
    """A write under way. The first change of its rows decides about it."""

    __slots__ = ("base", "first", "rows")

    def __init__(self, rows: dict[str, bytes | None], base: dict[str, int]) -> None:
        self.rows = rows
        """The new value of each row; None: it is deleted."""
        self.base = base
        """The revision that each row is compared with."""
        self.first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The revision that changed one of them first, if this write made it; 0: another write made
        it, and this one can never be made, -1: unknown."""

    def saw(self, events: Sequence[Event]) -> None:
        """Note the changes of a revision."""
        revision = events[0].entry.mod_revision
        found = {
            event.entry.key: None if event.kind == "delete" else event.entry.value
            for event in events
        }
        changed = [key for key in found if self.base.get(key, revision) < revision]
        if self.first.done() or not changed:
            return
        if all(key in found and found[key] == value for key, value in self.rows.items()):
            self.first.set_result(revision)
        else:
            # A row that did not exist may be deleted again. Then a write that is late still holds.
            self.first.set_result(0 if any(self.base[key] for key in changed) else -1)

    def saw_all(self, entries: dict[str, Entry], revision: int) -> None:
        """Note rows that were loaded again, which hides the changes in between."""
        at = {
            key: 0 if (row := entries.get(key)) is None else row.mod_revision for key in self.base
        }
        if self.first.done() or at == self.base:
            return
        now = {key: None if (row := entries.get(key)) is None else row.value for key in self.rows}
        made = {entries[key].mod_revision for key in self.rows if key in entries}
        if now != self.rows or len(made) > 1:
            self.first.set_result(-1)
        else:  # a deletion leaves no revision behind
            self.first.set_result(made.pop() if made else revision)

    @property
    def is_made_once(self) -> bool:
        """Whether its compares cannot hold again once it was made, whatever came after it."""
        return any(self.base[key] for key in self.rows)


class Projection(Generic[V]):
    """The rows of a prefix; made by `open`, ended by `close`. `decode` makes a row's value."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        decode: Callable[[Entry], V],
        troubles: Troubles,
        changed: Callable[[Sequence[Change[V]]], None] | None = None,
    ) -> None:
        self.prefix = prefix
        self._store = store
        self._decode = decode
        self._troubles = troubles
        self._changed = changed
        """Called after each revision with its changes."""
        self._rows: dict[str, ProjectedRow[V]] = {}
        self._revision = 0
        self._asked: dict[str, set[_PendingWrite]] = {}
        """Writes under way, by the keys that they compare."""
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap: the revision, and the number of the call that waits for it."""
        self._waiter_count = 0
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self) -> None:
        """Load every row and begin to watch."""
        await self._load()
        self._task = asyncio.create_task(self._follow(), name=f"metadata-watch {self.prefix}")
        if self._store.reconcile_s:
            name = f"metadata-reconcile {self.prefix}"
            self._reconciling = asyncio.create_task(self._reconcile_often(), name=name)

    async def close(self) -> None:
        """End the watch; the store stays open. Idempotent."""
        self._closing = True
        if self._watch is not None:
            self._watch.close()
        for task in (self._task, self._reconciling):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._task = self._reconciling = None
        for *_, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Closed("the change is stored; the server stops"))

    # -- looking up

    def get(self, key: str) -> ProjectedRow[V] | None:
        """A row."""
        return self._rows.get(key)

    def rows(self) -> Iterator[tuple[str, V]]:
        """Every key and its value, in the order they came."""
        return ((key, row.value) for key, row in self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def revision(self) -> int:
        """The last revision that is applied here."""
        return self._revision

    # -- changing

    async def write(self, ops: Sequence[Op], *, known: Mapping[str, int] | None = None) -> int:
        """Write rows if each of them is still as it is known here; all of them or none.

        `known` says otherwise with which revision a row is compared (0: there is none), also of
        rows that are not written. An operation outside the prefix is done along with the others,
        whatever was there. All rows under a longer prefix go if one of them is compared. The
        revision, once it applies here.
        Raises Conflict when another changed a row meanwhile (that applies here then), Unavailable
        when nothing was written, OutcomeUnknown when it was perhaps, and Timeout when it was
        written but does not apply here yet.
        """
        rows: dict[str, bytes | None] = {}
        base = dict(known or {})
        for op in ops:
            if isinstance(op, Delete) and op.prefix:
                guards = [key for key in base if base[key] and key.startswith(op.key)]
                assert guards, "rows that are not known go only with one that is compared"
                rows.update(dict.fromkeys(guards))
            elif op.key.startswith(self.prefix):
                rows[op.key] = op.value if isinstance(op, Put) else None
                row = self._rows.get(op.key)
                base.setdefault(op.key, 0 if row is None else row.revision)
        # The deletion of a row that did not exist makes no event.
        told = {key: value for key, value in rows.items() if value is not None or base[key]}
        assert told, "a write that changes nothing"
        asked = _PendingWrite(told, base)
        for key in base:
            self._asked.setdefault(key, set()).add(asked)
        try:
            revision = await self._ask(asked, ops)
        finally:
            for key in base:
                self._asked[key].discard(asked)
                if not self._asked[key]:
                    del self._asked[key]
        await self.reached(revision)
        return revision

    async def put(self, key: str, value: bytes) -> int:
        """Write one row, as `write` does."""
        return await self.write([Put(key, value)])

    async def delete(self, key: str) -> int:
        """Delete one row, as `write` does."""
        return await self.write([Delete(key)])

    async def _ask(self, asked: _PendingWrite, ops: Sequence[Op]) -> int:
        compares = [Compare(key, "mod_revision", "==", at) for key, at in asked.base.items()]
        unknown: OutcomeUnknown | None = None
        for pause_s in ASK_AGAIN_S:
            wait_s = pause_s
            if unknown is None or asked.is_made_once:
                try:
                    result = await self._store.txn(compares, ops)
                except OutcomeUnknown as error:
                    unknown = error
                except (Unavailable, Closed):
                    if unknown is None:
                        raise
                else:
                    if result.succeeded:
                        return result.revision
                    wait_s = REACH_TIMEOUT_S  # the change that refused it is on its way here
            await asyncio.wait([asked.first], timeout=wait_s)
            first = asked.first.result() if asked.first.done() else None
            if unknown is None or first == 0:
                raise Conflict(
                    f"another command changed rows of {self.prefix} meanwhile; try again"
                )
            if first is not None:
                if first < 0:
                    break
                return first
        assert unknown is not None
        raise unknown

    async def reached(self, revision: int) -> None:
        """Wait until a revision that changed a row of this prefix applies here."""
        if revision <= self._revision:
            return
        if self._closing:
            raise Closed("the change is stored; the server stops")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter_count += 1
        heapq.heappush(self._waiters, (revision, self._waiter_count, waiter))
        try:
            async with asyncio.timeout(REACH_TIMEOUT_S):
                await waiter
        except TimeoutError:
            raise Timeout(
                "the change is stored, but is not in effect yet; the server's log says why"
            ) from None

    # -- following the store

    async def _load(self) -> None:
        found = await self._store.range(self.prefix)
        self._watch = await self._store.watch(self.prefix, found.revision + 1)
        before = self._rows
        entries = {entry.key: entry for entry in found.entries}
        changed = {
            key
            for key in before.keys() | entries.keys()
            if key not in before
            or key not in entries
            or before[key].revision != entries[key].mod_revision
        }
        self._rows = {
            key: ProjectedRow(entry.mod_revision, self._decode(entry))
            if key in changed
            else before[key]
            for key, entry in entries.items()
        }
        for asked in set[_PendingWrite]().union(*self._asked.values()):
            asked.saw_all(entries, found.revision)
        changes = [Change(key, _value(before, key), _value(self._rows, key)) for key in changed]
        self._advance(found.revision, sorted(changes, key=lambda change: change.key))

    async def _follow(self) -> None:
        while not self._closing:
            try:
                if self._watch is None:
                    await self._load()
                assert self._watch is not None
                self._troubles.clear(NOT_WATCHED, self.prefix)
                async for events in self._watch:
                    self._apply(events)
            except OffsetOutOfRange:
                self._watch = None
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - a row that cannot be read, for one
                self._troubles.stand(NOT_WATCHED, self.prefix, error, blocks=False)
                if self._watch is not None:
                    self._watch.close()
                self._watch = None
                await asyncio.sleep(RETRY_S)
            else:
                self._watch = None  # the store was closed, as loading finds, or the watch was

    # -- comparing with all keys

    async def _reconcile_often(self) -> None:
        while True:
            await asyncio.sleep(self._store.reconcile_s)
            with contextlib.suppress(Unavailable, Closed):
                await self.reconcile()

    async def reconcile(self) -> int:
        """Compare the rows with all keys. How many differ for longer than the watch may take; if
        any do, all rows are loaded again."""
        before = self._differences(await self._store.range(self.prefix))
        if not before:
            return 0
        await asyncio.sleep(REACH_TIMEOUT_S)
        after = self._differences(await self._store.range(self.prefix))
        lost = before & after
        if lost:
            keys = ", ".join(sorted(key for key, *_ in lost)[:5])
            text = f"the watch did not show {len(lost)} changes, such as those of {keys}"
            self._troubles.note(LOST, self.prefix, Conflict(text))
            if self._watch is not None:
                self._watch.close()  # whoever follows it loads all rows
        return len(lost)

    def _differences(self, found: Range) -> set[tuple[str, int, int]]:
        """Rows that are older here than there: the key, its revision here, and there (0: none)."""
        there = {entry.key: entry.mod_revision for entry in found.entries}
        here = {key: row.revision for key, row in self._rows.items()}
        older = {(key, here.get(key, 0), at) for key, at in there.items() if here.get(key, 0) < at}
        return older | {(key, at, 0) for key, at in here.items() if key not in there}

    def _apply(self, events: Sequence[Event]) -> None:
        revision = events[0].entry.mod_revision
        if revision <= self._revision:
            return  # loaded with the rest
        decoded = {
            event.entry.key: None
            if event.kind == "delete"
            else ProjectedRow(event.entry.mod_revision, self._decode(event.entry))
            for event in events
        }
        changes = []
        for key, row in decoded.items():
            before = _value(self._rows, key)
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row
            changes.append(Change(key, before, None if row is None else row.value))
        for key in decoded:
            for asked in self._asked.get(key, ()):
                asked.saw(events)
        self._advance(revision, changes)

    def _advance(self, revision: int, changes: Sequence[Change[V]]) -> None:
        self._revision = max(self._revision, revision)
        if changes and self._changed is not None:
            self._troubles.tell(LISTENER, (self._changed,), changes)
        while self._waiters and self._waiters[0][0] <= self._revision:
            waiter = heapq.heappop(self._waiters)[-1]
            if not waiter.done():
                waiter.set_result(None)


def _value(rows: dict[str, ProjectedRow[V]], key: str) -> V | None:
    row = rows.get(key)
    return None if row is None else row.value
