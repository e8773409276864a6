"""Sessions: which connection speaks for a client, and how long its state outlives it.

Rules: a client id has one connection at a time; a second one takes over, and the first is closed. A
session belongs to the user who made it: nobody else takes it over, resumes it or ends it. A
persistent session is a row of the internal stream `~sessions`, written when it begins, when its
peer goes, and when it ends; it expires by a timer, also when the broker was down in between. When
that stream is damaged, no session is known: no client is attached, because a kept session must not
count as absent (ADR 14). The sessions of a shard are known while this node owns it; after an
election, clients of the earlier owner count as gone from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import (
    Conflict,
    LimitExceeded,
    NotAuthorized,
    NotFound,
    NotLeader,
    OnelogError,
    StateUnknown,
    StorageFull,
    again,
)
from onelog.broker.kept import KeptRow, KeptTable
from onelog.broker.kept_runs import KeptRuns
from onelog.broker.shards import STATE_UNKNOWN, Shards
from onelog.log.catalog import Catalog
from onelog.metadata.store import MetadataStore

STREAM: Final = "~sessions"
NEVER_MS = -1
RECORD_BYTES_MAX: Final = 1_500_000
"""Bytes of one kept session."""
_OLD_PREFIX: Final = "sessions/"
"""Where older versions kept sessions in the metadata store."""
_AT_ONCE: Final = 2000
"""Sessions that are looked at before others have a turn."""
_CHUNK_BYTES: Final = 1024 * 1024
"""Rows of the metadata store that become one batch, plus at most one more."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A persistent session as it is kept."""

    client_id: str
    protocol: str
    owner: str = ""
    """The user that it belongs to; empty: an older version wrote it, and the next user to attach
    has it."""
    expiry_ms: int
    """How long it outlives its connection; 0: not at all, NEVER_MS: for ever."""
    detached_at_ms: int | None = None
    cursors: tuple[str, ...] = ()
    """Cursors that end with it."""
    body: bytes = b""
    """State that only the protocol understands."""


class Session:
    """An attached session."""

    __slots__ = ("on_takeover", "record", "resumed")

    def __init__(
        self, record: SessionRecord, on_takeover: Callable[[], Awaitable[None]], *, resumed: bool
    ) -> None:
        self.record = record
        self.on_takeover = on_takeover
        self.resumed = resumed

    @property
    def is_kept(self) -> bool:
        """Whether it outlives its connection."""
        return self.record.expiry_ms != 0


class _Turn:
    """Lets one task at a time act for a client; forgotten when no task waits for it."""

    __slots__ = ("_client_id", "_lock", "_turns", "_waiting")

    def __init__(self, turns: dict[str, _Turn], client_id: str) -> None:
        self._turns = turns
        self._client_id = client_id
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def __aenter__(self) -> None:
        self._waiting += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_error: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            del self._turns[self._client_id]


class Sessions:
    """All sessions that this node owns."""

    name = "sessions"
    """See `ShardService`."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        end: Callable[[SessionRecord], Awaitable[None]],
        shards: Shards,
    ) -> None:
        self._catalog = catalog
        self._shards = shards
        self._store: MetadataStore
        self._old: dict[bytes, bytes] = {}
        """Rows that an older version wrote to the metadata store."""
        self._unknown: dict[int, StateUnknown] = {}
        """Shards of which no kept session is known, and why."""
        self._table: KeptTable | None = None
        self._runs: KeptRuns | None = None
        """The rows on their way into the table."""
        self._opening = asyncio.Lock()
        self._clock = clock
        self._end = end
        self._attached: dict[str, Session] = {}
        self._kept: dict[str, SessionRecord] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: dict[str, _Turn] = {}
        self.takeovers = 0
        self.on_error: Callable[[OnelogError], None] = lambda _error: None

    async def open(self, store: MetadataStore, *, made_now: bool = False) -> None:
        """Find out where sessions are kept. `made_now`: the stream is made at once, and not with
        the first session: elections need it."""
        self._store = store
        entries = (await store.range(_OLD_PREFIX)).entries
        self._old = {entry.key.removeprefix(_OLD_PREFIX).encode(): entry.value for entry in entries}
        if made_now:
            await self._open_table()

    async def take(self, shard: int) -> None:
        """Read the kept sessions of a shard. The time that the broker was down counts. Rows that
        cannot be read are a trouble, and are not raised."""
        try:
            rows = await self._recover(shard)
        except StateUnknown as error:
            self._not_known(shard, error)
            return
        except StorageFull as error:
            text = (
                f"there is no room to write sessions to {STREAM} ({error}): make room, then restart"
            )
            self._not_known(shard, StateUnknown(text))
            return
        now_ms = self._clock.now_ms()
        for number, row in enumerate(rows, 1):
            since_ms = row.detached_at_ms
            if since_ms is None:  # its owner stopped before the client left
                since_ms = now_ms
            record = msgspec.structs.replace(row, detached_at_ms=since_ms)
            self._kept[record.client_id] = record
            self._arm(record)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _not_known(self, shard: int, error: StateUnknown) -> None:
        self._unknown[shard] = error
        self._catalog.troubles.stand(STATE_UNKNOWN, STREAM, error, blocks=True)

    async def drop(self, shard: int) -> None:
        """See `ShardService`. Connections that a protocol has not let go yet are let go."""
        if self._unknown.pop(shard, None) is not None and not self._unknown:
            self._catalog.troubles.clear(STATE_UNKNOWN, STREAM)
        lost: list[Session] = []
        for number, client_id in enumerate({*self._kept, *self._attached}, 1):
            if self._shards.of(client_id.encode()) == shard:
                self._disarm(client_id)
                self._kept.pop(client_id, None)
                attached = self._attached.pop(client_id, None)
                lost += [] if attached is None else [attached]
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for session in lost:
            await session.on_takeover()

    async def _recover(self, shard: int) -> list[SessionRecord]:
        """Every kept session of a shard, including those that the metadata store holds.

        An older version wrote them there. They are deleted there once they are durable in the
        stream. After a crash before that, the next start takes them over again.
        """
        if not self._old and self._table is None and self._catalog.find(STREAM) is None:
            return []  # the stream is made with the first session
        table = await self._open_table()
        rows = await table.load(shard)
        old = {key: row for key, row in self._old.items() if self._shards.of(key) == shard}
        for chunk in _chunks(old):
            await table.put(chunk)
        for key in old:
            del self._old[key]
        if old and not self._old:
            await self._store.delete(_OLD_PREFIX, prefix=True)
        return [_decode(*row) for row in (rows | old).items()]

    async def _open_table(self) -> KeptTable:
        async with self._opening:
            if self._table is None:
                self._table = await KeptTable.make(self._catalog, self._clock, STREAM)
        return self._table

    async def _put(self, client_id: str, row: bytes | None) -> None:
        if self._runs is None:
            table = await self._open_table()
            self._runs = self._runs or KeptRuns(table.put)
        key = client_id.encode()
        await self._runs.put(self._shards.of(key), key, row)

    def check_known(self) -> None:
        """Raise StateUnknown when kept sessions cannot be read."""
        for unknown in self._unknown.values():
            raise again(unknown)

    def check(self, client_id: str) -> None:
        """Raise NotOwner, StateLoading or StateUnknown unless the sessions of this client's shard
        are known here."""
        self._shards.check(self, client_id.encode())
        unknown = self._unknown.get(self._shards.of(client_id.encode()))
        if unknown is not None:
            raise again(unknown)

    def __len__(self) -> int:
        return len(self._attached)

    def count(self) -> int:
        """Sessions, attached or kept."""
        return len(self._attached.keys() | self._kept.keys())

    def all(self) -> list[tuple[SessionRecord, bool]]:
        """Every session, and whether a connection speaks for it; in no order."""
        rows = {name: (record, False) for name, record in self._kept.items()}
        rows |= {name: (session.record, True) for name, session in self._attached.items()}
        return list(rows.values())

    @property
    def kept_count(self) -> int:
        """Sessions that outlive their connection, whether or not they have one now."""
        return len(self._kept)

    def keeps(self, client_id: str) -> bool:
        """Whether a client has a session that outlives its connection."""
        return client_id in self._kept

    def get(self, client_id: str) -> SessionRecord | None:
        """The session of a client, attached or kept."""
        session = self._attached.get(client_id)
        return session.record if session is not None else self._kept.get(client_id)

    async def attach(
        self,
        client_id: str,
        *,
        protocol: str,
        owner: str,
        expiry_ms: int,
        clean: bool,
        on_takeover: Callable[[], Awaitable[None]],
        cursors: tuple[str, ...] = (),
    ) -> Session:
        """Let a connection of `owner` speak for a client; `clean` ends an earlier session.

        `cursors` are written with the session's row, before any of them is kept: no cursor is left
        without a session that ends it.

        Raises NotAuthorized, and touches nothing, when the session is another user's.
        """
        self.check(client_id)
        if expiry_ms == 0 and self._is_new(client_id):  # there is nothing to wait for
            record = SessionRecord(
                client_id=client_id, protocol=protocol, owner=owner, expiry_ms=0, cursors=cursors
            )
            session = self._attached[client_id] = Session(record, on_takeover, resumed=False)
            return session
        async with self._turn(client_id):
            self.check(client_id)  # the shard may be lost by now
            known = self.get(client_id)
            if known is not None and known.owner not in ("", owner):
                raise NotAuthorized("there is a session of another user under this client id")
            old = self._attached.pop(client_id, None)
            if old is not None:
                self.takeovers += 1
                await old.on_takeover()
                self.check(client_id)
            self._disarm(client_id)
            kept = self._kept.get(client_id)
            ending = old.record if old is not None else kept
            if ending is not None and (clean or ending.expiry_ms == 0):
                await self._finish(ending)  # without expiry it lasts as long as its connection
                kept = None
            base = kept or SessionRecord(
                client_id=client_id, protocol=protocol, expiry_ms=expiry_ms
            )
            record = msgspec.structs.replace(
                base,
                owner=owner,
                expiry_ms=expiry_ms,
                detached_at_ms=None,
                cursors=cursors or base.cursors,
            )
            session = Session(record, on_takeover, resumed=kept is not None)
            self._attached[client_id] = session
            if expiry_ms != 0:
                try:
                    await self._keep(record)
                except NotLeader:
                    del self._attached[client_id]
                    raise
            return session

    def _is_new(self, client_id: str) -> bool:
        """Whether a client has no session, and nobody acts for it."""
        return not (
            client_id in self._attached or client_id in self._kept or client_id in self._turns
        )

    def _turn(self, client_id: str) -> _Turn:
        """One connection at a time attaches, detaches or expires for a client."""
        turn = self._turns.get(client_id)
        if turn is None:
            turn = self._turns[client_id] = _Turn(self._turns, client_id)
        return turn

    async def update(self, session: Session, record: SessionRecord) -> None:
        """Keep the changes of an attached session."""
        session.record = record
        if record.expiry_ms != 0 and self._attached.get(record.client_id) is session:
            await self._keep(record)

    async def detach(self, session: Session, *, expiry_ms: int | None = None) -> None:
        """The connection is gone. The session ends now, or when its time is over."""
        client_id = session.record.client_id
        if self._attached.get(client_id) is not session:
            return  # another connection took over, and may wait for this one
        async with self._turn(client_id):
            record = session.record
            if self._attached.get(client_id) is not session:
                return
            del self._attached[client_id]
            if expiry_ms is not None:
                record = msgspec.structs.replace(record, expiry_ms=expiry_ms)
            if record.expiry_ms == 0:
                await self._finish(record)
                return
            record = msgspec.structs.replace(record, detached_at_ms=self._clock.now_ms())
            await self._keep(record)
            self._arm(record)

    async def end(self, client_id: str) -> None:
        """End a session that has no connection now. Raises NotFound, Conflict."""
        async with self.detached(client_id) as record:
            self._disarm(client_id)
            await self._finish(record)

    @asynccontextmanager
    async def detached(self, client_id: str) -> AsyncIterator[SessionRecord]:
        """A session without a connection; nobody attaches it for the length of the block.

        Raises NotFound, Conflict.
        """
        self.check(client_id)
        async with self._turn(client_id):
            if client_id in self._attached:
                raise Conflict(
                    f"a connection speaks for the session {client_id!r}: end the connection first"
                )
            record = self._kept.get(client_id)
            if record is None:
                raise NotFound(f"there is no session {client_id!r}")
            yield record

    async def replace(self, record: SessionRecord) -> None:
        """Keep a change of a session in a block of `detached`."""
        self._disarm(record.client_id)
        await self._keep(record)
        self._arm(record)

    def _disarm(self, client_id: str) -> None:
        timer = self._timers.pop(client_id, None)
        if timer is not None:
            timer.cancel()

    async def _keep(self, record: SessionRecord) -> None:
        row = msgspec.json.encode(record)
        if len(row) > RECORD_BYTES_MAX:
            raise LimitExceeded(
                f"a kept session has at most {RECORD_BYTES_MAX} bytes, this one {len(row)}:"
                " subscribe to fewer filters"
            )
        await self._put(record.client_id, row)
        self._kept[record.client_id] = record

    async def _finish(self, record: SessionRecord) -> None:
        # Its cursors first: a crash in between leaves a session that ends later. The other order
        # would leave cursors that nobody owns and that pin the log for ever.
        await self._end(record)
        if record.client_id in self._kept:
            await self._put(record.client_id, None)
            self._kept.pop(record.client_id, None)

    def _arm(self, record: SessionRecord) -> None:
        if record.expiry_ms == NEVER_MS or record.detached_at_ms is None:
            return
        left_ms = record.detached_at_ms + record.expiry_ms - self._clock.now_ms()
        # A wall clock that jumped back must not keep a session longer than promised.
        delay_s = min(max(left_ms, 0), record.expiry_ms) / 1000
        loop = asyncio.get_running_loop()
        self._timers[record.client_id] = loop.call_later(delay_s, self._expire, record)

    def _expire(self, record: SessionRecord) -> None:
        self._timers.pop(record.client_id, None)
        task = asyncio.get_running_loop().create_task(self._finish_quietly(record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish_quietly(self, record: SessionRecord) -> None:
        async with self._turn(record.client_id):
            if self._kept.get(record.client_id) is not record:
                return  # the client came back at the last moment
            try:
                await self._finish(record)
            except NotLeader:
                pass  # the shard is lost: its next owner ends the session
            except OnelogError as error:
                self.on_error(error)

    async def close(self) -> None:
        """Stop the timers; attached sessions count as detached at the next start."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._tasks:
            await asyncio.gather(*self._tasks)


def _decode(key: bytes, value: bytes) -> SessionRecord:
    try:
        return msgspec.json.decode(value, type=SessionRecord)
    except msgspec.MsgspecError as error:
        raise StateUnknown(
            f"the stream {STREAM} holds a row that cannot be read ({key!r}: {error})."
            " Restore the stream from a backup, then restart"
        ) from None


def _chunks(rows: dict[bytes, bytes]) -> Iterator[list[KeptRow]]:
    chunk: list[KeptRow] = []
    size = 0
    for key, value in rows.items():
        chunk.append((key, value))
        size += len(key) + len(value)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
