"""Opening and closing cursors: names, durability.

Rules: a name is open once at a time. A durable cursor's state is in `~cursors` before `open`
answers, and after each change within the checkpoint interval; `save` makes it durable now.
Closing keeps the state, deleting forgets it. While the kept state of a cursor is moved, nobody
opens or deletes the cursor. The durable cursors of a shard are open only while this node owns it
(`take`, `drop`); cursors without kept state belong to no shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from onelog.base.clock import Clock
from onelog.base.errors import (
    AlreadyExists,
    Conflict,
    CursorNotFound,
    InvalidRequest,
    NotAuthorized,
)
from onelog.base.ids import Offset
from onelog.broker.dead_letters import DeadLetterWriter
from onelog.broker.hooks import Action, Authorizer, Principal
from onelog.broker.pins import Pins
from onelog.broker.publish import Publisher
from onelog.broker.record_desk import RecordDesk
from onelog.broker.shards import STATE_UNKNOWN
from onelog.cursors.checkpoint import STREAM, CheckpointStore
from onelog.cursors.cursor import Cursor, CursorKind, CursorState, Position, Reading, ignore_change
from onelog.cursors.delivery import QueueSettings
from onelog.cursors.offset import OffsetCursor
from onelog.cursors.queue import QueueCursor
from onelog.cursors.routed import RoutedCursor, is_routed
from onelog.cursors.session import SessionCursor, always
from onelog.cursors.sources import SourceRegistry
from onelog.cursors.start import EARLIEST, LATEST, Start
from onelog.cursors.table import TableCursor
from onelog.cursors.tail import TailCursor
from onelog.observe.troubles import Troubles
from onelog.record.record import Record

C = TypeVar("C", OffsetCursor, SessionCursor, QueueCursor, TableCursor)


class _SaveLater:
    """Marks a cursor to be saved. Every cursor has one, and it is a third the size of a closure."""

    __slots__ = ("_checkpoints", "_cursor")

    def __init__(self, checkpoints: CheckpointStore, cursor: Cursor) -> None:
        self._checkpoints = checkpoints
        self._cursor = cursor

    def __call__(self) -> None:
        self._checkpoints.mark(self._cursor)


class CursorDesk(RecordDesk):
    """Every cursor of this node."""

    name = "cursors"
    """See `ShardService`."""

    def __init__(
        self,
        registry: SourceRegistry,
        checkpoints: CheckpointStore,
        publisher: Publisher,
        clock: Clock,
        authorizer: Authorizer,
        troubles: Troubles,
    ) -> None:
        super().__init__(registry)
        self._troubles = troubles
        self._checkpoints = checkpoints
        self._clock = clock
        self._authorizer = authorizer
        self._open: dict[str, Cursor] = {}
        self._durable: set[str] = set()
        self._moving: dict[str, asyncio.Event] = {}
        self._tails = 0
        self.pins = Pins(checkpoints, clock, self._durable_cursors, registry)
        self.dead_letters = DeadLetterWriter(publisher)

    # -- shards

    async def take(self, shard: int) -> None:
        """See `ShardService`. States that cannot be read are a trouble, and are not raised."""
        await self._checkpoints.take(shard)
        self.pins.outdated()
        unknown = self._checkpoints.unknown_of(shard)
        if unknown is not None:
            self._troubles.stand(STATE_UNKNOWN, STREAM, unknown, blocks=True)

    async def drop(self, shard: int) -> None:
        """See `ShardService`: close the cursors of a shard without saving them."""
        for name in [*self._durable]:
            if self._checkpoints.shard_of(name) == shard:
                self._drop(name)
        await self._checkpoints.drop(shard)
        self.pins.outdated()
        if self._checkpoints.unknown is None:
            self._troubles.clear(STATE_UNKNOWN, STREAM)

    def shard_of(self, name: str) -> int:
        """The shard in which the state of a cursor is kept."""
        return self._checkpoints.shard_of(name)

    # -- opening

    def open_tail(
        self,
        filters: Sequence[str],
        *,
        start: Start = LATEST,
        lag_max: int | None = None,
        principal: Principal,
    ) -> TailCursor:
        """A live reader without state."""
        self._authorize(principal, filters)
        self._tails += 1
        name = f"tail-{self._tails}"
        cursor = TailCursor(name, self._registry, tuple(filters), start=start, lag_max=lag_max)
        self._open[name] = cursor
        return cursor

    async def open_offset(
        self,
        name: str,
        filters: Sequence[str],
        *,
        start: Start = EARLIEST,
        durable: bool = True,
        principal: Principal,
    ) -> OffsetCursor:
        """A committed position; `start` counts only when none is kept yet."""
        start = await start.settled(self._registry.resolve(filters).sources)
        return await self._open_kept(
            name,
            CursorKind.OFFSET,
            filters,
            lambda state: OffsetCursor.restore(self._registry, state),
            lambda: OffsetCursor.create(name, self._registry, tuple(filters), start),
            durable=durable,
            principal=principal,
        )

    async def open_session(
        self,
        name: str,
        filters: Sequence[str],
        *,
        start: Start = LATEST,
        window: int = 32,
        durable: bool = True,
        principal: Principal,
    ) -> SessionCursor:
        """A position with an in-flight window."""
        start = await start.settled(self._registry.resolve(filters).sources)
        return await self._open_kept(
            name,
            CursorKind.SESSION,
            filters,
            lambda state: SessionCursor.restore(
                self._registry, state, clock=self._clock, window=window
            ),
            lambda: SessionCursor.create(
                name, self._registry, tuple(filters), start, clock=self._clock, window=window
            ),
            durable=durable,
            principal=principal,
        )

    async def open_queue(
        self,
        name: str,
        filters: Sequence[str],
        *,
        start: Start = LATEST,
        settings: QueueSettings | None = None,
        durable: bool = True,
        principal: Principal,
    ) -> QueueCursor:
        """A shared backlog; settings that are given replace the kept ones."""
        start = await start.settled(self._registry.resolve(filters).sources)

        def restore(state: CursorState) -> QueueCursor:
            cursor = QueueCursor.restore(self._registry, state, clock=self._clock)
            cursor.settings = settings or cursor.settings
            return cursor

        cursor = await self._open_kept(
            name,
            CursorKind.QUEUE,
            filters,
            restore,
            lambda: QueueCursor.create(
                name, self._registry, tuple(filters), start, clock=self._clock, settings=settings
            ),
            durable=durable,
            principal=principal,
        )
        self.dead_letters.serve(cursor)
        return cursor

    async def open_table(
        self,
        name: str,
        filters: Sequence[str],
        *,
        start: Start = EARLIEST,
        accepts: Callable[[Record], bool] = always,
        follow: bool = True,
        durable: bool = True,
        near: bool = False,
        principal: Principal,
    ) -> TableCursor:
        """The latest record per topic. It has caught up when it is returned, and then follows.

        Without `follow`, its owner notes new records (`note`). With `near` it reads no history that
        is only in the object store: its owner has kept what it needs of that, or reads what the
        table never knew (`unread`) by itself.
        """
        kept = self._found(name, durable=durable)
        start = await start.settled(self._registry.resolve(filters).sources)
        table = await self._open_kept(
            name,
            CursorKind.TABLE,
            filters,
            lambda state: TableCursor.restore(
                self._registry,
                state,
                self._checkpoints.parts(name),
                clock=self._clock,
                accepts=accepts,
            ),
            lambda: TableCursor.create(
                name, self._registry, tuple(filters), start, clock=self._clock, accepts=accepts
            ),
            durable=durable,
            principal=principal,
        )
        if near:
            positions = () if kept is None else kept.positions
            known = {(row.stream_id, row.partition) for row in positions if row.offset >= 0}
            table.unread = _skip_cold(table.reading, known)
        try:
            await table.start_following(once=not follow)
        except BaseException:
            self._drop(name)
            raise
        return table

    async def _open_kept(
        self,
        name: str,
        kind: CursorKind,
        filters: Sequence[str],
        restore: Callable[[CursorState], C],
        create: Callable[[], C],
        *,
        durable: bool,
        principal: Principal,
    ) -> C:
        _check_name(name)
        self._authorize(principal, filters)
        await self._until_moved(name)
        if name in self._open:
            raise AlreadyExists(f"the cursor {name!r} is open already")
        kept = self._found(name, durable=durable)
        if kept is None:
            cursor = create()
        elif kept.kind is not kind:
            raise Conflict(f"the cursor {name!r} is a {kept.kind} cursor, not a {kind} cursor")
        elif set(kept.filters) != set(filters):
            raise Conflict(
                f"the cursor {name!r} reads {', '.join(kept.filters)}; delete it first"
                f" to read {', '.join(filters)}"
            )
        else:
            cursor = restore(kept)
        self._open[name] = cursor
        if durable:
            await self._keep(cursor)
        return cursor

    def _found(self, name: str, *, durable: bool) -> CursorState | None:
        """The kept state of a cursor. One that is not durable needs no owner."""
        if not durable and self._checkpoints.is_elsewhere(name):
            return None
        return self._checkpoints.kept(name)

    def _authorize(self, principal: Principal, filters: Sequence[str]) -> None:
        if not filters:
            raise InvalidRequest("a cursor reads at least one filter")
        for text in filters:
            # All of it: nobody asks for each record that the cursor reads.
            if not self._authorizer.allows(principal, Action.DELIVER, text):
                raise NotAuthorized(f"{principal.name} may not subscribe to {text}")

    # -- cursors that a protocol keeps itself

    def parts(self, name: str) -> dict[str, bytes]:
        """The kept parts of a cursor that is kept in parts."""
        return self._checkpoints.parts(name)

    async def adopt(self, cursor: Cursor, *, write: bool = True) -> None:
        """Keep a protocol's own cursor durably from now on.

        Without `write` nothing is written before its next change: its state is the one that is
        kept, or it has nothing to keep yet.
        """
        _check_name(cursor.name)
        await self._until_moved(cursor.name)
        if cursor.name in self._open:
            raise AlreadyExists(f"the cursor {cursor.name!r} is open already")
        if write:
            await self._keep(cursor)
        else:
            self._hold(cursor)
            self._checkpoints.take_over(cursor)

    async def _keep(self, cursor: Cursor) -> None:
        self._hold(cursor)
        try:
            await self._checkpoints.save(cursor)
        except BaseException:
            self._drop(cursor.name)
            raise

    def _hold(self, cursor: Cursor) -> None:
        self._open[cursor.name] = cursor
        self._durable.add(cursor.name)
        self.pins.outdated()
        is_new = self._checkpoints.kept(cursor.name) is None
        if is_new and not isinstance(cursor, RoutedCursor) and cursor.lag():
            self.pins.claim()
        cursor.on_change = _SaveLater(self._checkpoints, cursor)

    # -- keeping and closing

    async def save(self, *cursors: Cursor) -> None:
        """Make these cursors' state durable now."""
        await self._checkpoints.save(*cursors)

    async def close_cursor(self, cursor: Cursor) -> None:
        """Close a cursor. The state of a durable one is saved and stays."""
        if self._open.get(cursor.name) is cursor:
            durable = cursor.name in self._durable
            self._drop(cursor.name)
            if durable:
                await self._checkpoints.save(cursor)
                self._checkpoints.let_go(cursor)

    def abandon(self, cursor: Cursor) -> None:
        """Close a cursor without saving it: the last saved state stays."""
        if self._open.get(cursor.name) is cursor:
            self._drop(cursor.name)
            self._checkpoints.let_go(cursor)

    async def delete(self, name: str) -> None:
        """Close a cursor if it is open and forget its state."""
        await self._until_moved(name)
        if name not in self._open and self._checkpoints.kept(name) is None:
            raise CursorNotFound(f"there is no cursor {name!r}")
        self._drop(name)
        await self._checkpoints.forget(name)

    # -- moving

    @asynccontextmanager
    async def moving(
        self, name: str, restore: Callable[[CursorState], Cursor] | None = None
    ) -> AsyncIterator[Cursor]:
        """A cursor to be moved in the block: open, or made of its kept state. Saved at the end.

        `restore` makes a cursor that a protocol keeps itself. Raises CursorNotFound, Conflict.
        """
        await self._until_moved(name)
        cursor = self._open.get(name)
        if cursor is not None:
            yield cursor
            if name in self._durable and self._open.get(name) is cursor:
                await self._checkpoints.save(cursor)
        else:
            kept = self._checkpoints.kept(name)
            if kept is None:
                raise CursorNotFound(f"there is no cursor {name!r}")
            cursor = (restore or self._restored)(kept)
            self._moving[name] = asyncio.Event()
            try:
                yield cursor
                await self._checkpoints.save(cursor)
            finally:
                self._checkpoints.let_go(cursor)
                cursor.close()
                self._moving.pop(name).set()
        self.pins.outdated()
        self.pins.claim()

    async def _until_moved(self, name: str) -> None:
        while (moved := self._moving.get(name)) is not None:
            await moved.wait()

    def _restored(self, kept: CursorState) -> Cursor:
        match kept.kind:
            case CursorKind.OFFSET:
                return OffsetCursor.restore(self._registry, kept)
            case CursorKind.SESSION:
                return SessionCursor.restore(self._registry, kept, clock=self._clock)
            case CursorKind.QUEUE:
                return QueueCursor.restore(self._registry, kept, clock=self._clock)
        raise Conflict(f"the cursor {kept.name!r} is of kind {kept.kind}, which is not moved")

    def _drop(self, name: str) -> None:
        cursor = self._open.pop(name, None)
        self._durable.discard(name)
        if cursor is not None:
            # A late ack must not bring a deleted cursor back, nor overwrite the state of the next
            # cursor of this name.
            cursor.on_change = ignore_change
            cursor.close()

    async def close(self) -> None:
        """Close every cursor, then save changed states."""
        for name in list(self._open):
            self._drop(name)
        await self._checkpoints.close()

    # -- looking

    def find(self, name: str) -> Cursor | None:
        """An open cursor."""
        return self._open.get(name)

    def open_cursors(self) -> list[Cursor]:
        """Every open cursor."""
        return list(self._open.values())

    def names(self) -> list[str]:
        """Every cursor, open or kept, by name."""
        return sorted({*self._open, *self._checkpoints.names()})

    def kept_names(self) -> list[str]:
        """Every cursor whose state is kept, in no order."""
        return self._checkpoints.names()

    def kept(self, name: str) -> CursorState | None:
        """The kept state of a cursor."""
        return self._checkpoints.kept(name)

    def kept_positions(self, kept: CursorState) -> list[Position]:
        """Where a cursor that is not open goes on: partitions that came since from their start."""
        if is_routed(kept):
            return kept.positions
        known = {(row.stream_id, row.partition) for row in kept.positions}
        late = (key for key in self._registry.keys(kept.filters) if key not in known)
        return [*kept.positions, *(Position(*key, Offset(0)) for key in late)]

    def _durable_cursors(self) -> list[Cursor]:
        return [cursor for name, cursor in self._open.items() if name in self._durable]


def _check_name(name: str) -> None:
    if not name or len(name.encode()) > 1024 or "\0" in name:
        raise InvalidRequest("a cursor name is 1 to 1024 bytes of UTF-8 without NUL")


def _skip_cold(reading: Reading, known: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Let a reading go on where the records on this machine begin. Returns which partitions that
    are not known have earlier ones, and where these begin."""
    unread: dict[tuple[str, int], int] = {}
    for index, source in enumerate(reading.sources.sources):
        near = 0
        if source.partition.stopped is None:
            near, first = source.partition.local_start_offset, source.partition.start_offset
            if source.key not in known and first < near:
                unread[source.key] = int(first)
        if reading.position(index) < near:
            reading.seek(index, near)
    return unread
