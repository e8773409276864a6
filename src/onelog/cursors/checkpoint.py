"""The checkpoint: cursor state in the internal stream `~cursors`, so that it recovers like data.

Rules:
- A state that `save` has answered survives as the stream's durability says (I4). Marked cursors are
  saved together, one batch for all of them, at most one interval later; nothing polls.
- A cursor's parts are written before its state, in the same batch unless they are very large. So
  after a crash the parts are never older than the state, and reading on from the state corrects
  them.
- The states of many cursors are alike: large batches are compressed, so that the bytes written to
  the disk hardly depend on the number of readers (I1).
- Kept positions pin retention, whether the cursor is open or its consumer is away.
- The states of a shard are known from `take` to `drop`. A cursor of another shard raises NotOwner,
  and never counts as new.
- When a shard's partition of `~cursors` is damaged, no cursor of it is known: no cursor counts as
  new, nothing is saved, and the pins are not known either (Unavailable).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotLeader, NotOwner, StateUnknown, Unavailable, again
from onelog.base.ids import Offset
from onelog.cursors.cursor import Cursor, CursorKind, CursorState, Position
from onelog.cursors.owners import owner_of
from onelog.cursors.routed import RoutedCursor, is_routed
from onelog.cursors.table import TableCursor
from onelog.kernel import BatchBuilder
from onelog.log.catalog import Catalog
from onelog.log.handle import PartitionHandle
from onelog.log.internal import Placement, internal_stream, kept_batches, rows_there
from onelog.log.stream import Stream
from onelog.record.batch import compress_batch
from onelog.record.compression import ZSTD

STREAM: Final = "~cursors"
PINNING: Final = (CursorKind.QUEUE, CursorKind.SESSION)
PART_SEPARATOR: Final = b"\0"

CHUNK_BYTES: Final = 32 * 1024
"""Bytes of state in one batch, unless one cursor alone has more. A session has some hundred, and to
write them down takes some ten microseconds of the loop (estimated)."""

_AT_ONCE: Final = 2000
"""Names that are looked at before others have a turn."""

PIECE_BYTES_MAX: Final = 16 * 1024 * 1024

COMPRESSED_BYTES_MIN: Final = 2 * 1024
"""A smaller batch is not compressed, so that a single settlement does not wait for the codec."""

Row = tuple[bytes, bytes | None]
Key = tuple[str, int]
"""A stream's id and a partition of it."""

Parts = Mapping[str, bytes | None]
"""Pieces of a large cursor's state by name, so that only changed pieces are written; None: the
piece is gone."""

IN_PARTS: Final = (TableCursor, RoutedCursor)


class CheckpointStore:
    """Kept cursor states by name."""

    def __init__(
        self, stream: Stream, placement: Placement, clock: Clock, interval_s: float
    ) -> None:
        self._stream = stream
        self._placement = placement
        self._clock = clock
        self._interval_s = interval_s
        self._kept: dict[str, Cursor | bytes] = {}
        """Each kept state as it was written, or the cursor itself while it is open."""
        self._parts: dict[str, dict[str, bytes]] = {}
        self._marked: dict[str, Cursor] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._closed = False
        self._taken: set[int] = set()
        self._unknown: dict[int, Unavailable] = {}
        """Shards of which no kept state is known, and why."""
        self.node_of: Callable[[bytes], int] = lambda _name: -1
        """The node that owns a name."""
        self.on_error: Callable[[BaseException], None] = lambda _error: None

    @classmethod
    async def make(cls, catalog: Catalog, clock: Clock, interval_s: float) -> CheckpointStore:
        """A store of which nothing is read yet. The stream is created at the first start."""
        stream = await internal_stream(catalog, STREAM)
        return cls(stream, catalog.placement, clock, interval_s)

    @classmethod
    async def open(cls, catalog: Catalog, clock: Clock, interval_s: float) -> CheckpointStore:
        """Read every kept state."""
        store = await cls.make(catalog, clock, interval_s)
        for partition in store._stream.partitions:
            await store.take(int(partition.id))
        return store

    # -- shards

    async def take(self, shard: int) -> None:
        """Read the kept states of a shard. Damage makes them unknown, and is not raised."""
        try:
            await rows_there(self._stream.partitions[shard])
            async for _info, slices in kept_batches(self._stream.partitions[shard]):
                for index in range(len(slices)):
                    self._apply(slices.key(index), slices.value(index))
        except StateUnknown as error:
            await self.drop(shard)
            self._unknown[shard] = error
        else:
            self._taken.add(shard)

    async def drop(self, shard: int) -> None:
        """Forget the states of a shard; nothing of it is written any more."""
        self._taken.discard(shard)
        self._unknown.pop(shard, None)
        names = {*self._kept, *self._parts, *self._marked}
        for number, name in enumerate(names, 1):
            if self.shard_of(name) == shard:
                for rows in (self._kept, self._parts, self._marked):
                    rows.pop(name, None)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def shard_of(self, name: str) -> int:
        """The shard that keeps the state of a cursor."""
        if self._placement.partitions == 1:
            return 0
        return self._placement.shard(self._owner(name))

    def _owner(self, name: str) -> bytes:
        return owner_of(name) if self._placement.by_owner else name.encode()

    @property
    def unknown(self) -> Unavailable | None:
        """An error because of which kept states are not known."""
        return next(iter(self._unknown.values()), None)

    def unknown_of(self, shard: int) -> Unavailable | None:
        """The error because of which no kept state of a shard is known."""
        return self._unknown.get(shard)

    def is_elsewhere(self, name: str) -> bool:
        """Whether another node owns a cursor."""
        shard = self.shard_of(name)
        return shard not in self._taken and shard not in self._unknown

    def knows(self, name: str) -> bool:
        """Whether the kept state of a cursor would be known here."""
        return self.shard_of(name) in self._taken

    def _check_known(self, name: str) -> None:
        shard = self.shard_of(name)
        if shard in self._taken:
            return
        if shard in self._unknown:
            raise again(self._unknown[shard])
        node = self.node_of(self._owner(name))
        whose = "its owner is being elected" if node < 0 else f"ask node {node}"
        raise NotOwner(f"this node does not own the cursor {name!r}: {whose}", node)

    def _check_all_known(self) -> None:
        if self.unknown is not None:
            raise again(self.unknown)

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        name, _, part = key.decode().partition(PART_SEPARATOR.decode())
        if part:
            parts = self._parts.setdefault(name, {})
            if value is None:
                parts.pop(part, None)
            else:
                parts[part] = value
        elif value is None:
            self._kept.pop(name, None)
            self._parts.pop(name, None)
        else:
            self._kept[name] = value

    # -- looking up

    def kept(self, name: str) -> CursorState | None:
        """The kept state of a cursor. For an open cursor: the state that the next save writes."""
        self._check_known(name)
        found = self._kept.get(name)
        if found is None:
            return None
        return decode_state(found) if isinstance(found, bytes) else found.state()

    def parts(self, name: str) -> dict[str, bytes]:
        """The kept parts of a cursor that has any."""
        self._check_known(name)
        return self._parts.get(name, {})

    def names(self) -> list[str]:
        """Every cursor with a kept state, in no order."""
        return list(self._kept)

    def late(self, keys_of: Callable[[Iterable[str]], Iterable[Key]]) -> dict[str, tuple[Key, ...]]:
        """The partitions that came while a queue or session was away, by its name.

        Its kept state does not name them. It reads them from their start when it is back.
        """
        self._check_all_known()
        found: dict[str, tuple[Key, ...]] = {}
        for name, kept in self._kept.items():
            if not isinstance(kept, bytes) and kept.kind is not CursorKind.SESSION:
                continue  # an open queue knows its partitions
            state = decode_state(kept) if isinstance(kept, bytes) else kept.state()
            if state.kind in PINNING and not is_routed(state):
                known = _keys(state.positions)
                late = tuple(key for key in keys_of(state.filters) if key not in known)
                if late:
                    found[name] = late
        return found

    def pins(
        self,
        open_cursors: Iterable[Cursor],
        apart: Container[str] = (),
        late: Mapping[str, Iterable[Key]] = MappingProxyType({}),
    ) -> dict[Key, int]:
        """The lowest offset that durable queues and sessions still need, per partition.

        Cursors named by `apart` are left out. `late` says what came while one was away. An open
        cursor counts with its current position, not the kept one, because everything below is
        settled: after a crash it reads on from its kept state and misses nothing that it still
        needs. Without that, a cursor with nothing to settle among other topics would pin the log
        for ever.
        """
        self._check_all_known()
        lowest: dict[Key, int] = {}
        alive = {cursor.name: cursor for cursor in open_cursors}
        rows = [cursor.positions() for cursor in alive.values() if cursor.kind in PINNING]
        for name, found in self._kept.items():
            if name not in alive and name not in apart:
                state = decode_state(found) if isinstance(found, bytes) else found.state()
                if state.kind in PINNING:
                    rows.append(state.positions)
                    if name in late:
                        known = _keys(state.positions)
                        rows.append([Position(*key, 0) for key in late[name] if key not in known])
        for row in (row for positions in rows for row in positions):
            key = (row.stream_id, row.partition)
            lowest[key] = min(row.offset, lowest.get(key, row.offset))
        return lowest

    # -- saving

    def mark(self, cursor: Cursor) -> None:
        """Save this cursor within an interval."""
        self._marked[cursor.name] = cursor
        if self._timer is None and self._saving is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_s, self._save_marked)

    def _save_marked(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._save_all_marked())

    async def _save_all_marked(self) -> None:
        try:
            await self._save_cursors(tuple(self._marked.values()), marked=True)
        except NotLeader:
            pass  # the shard is lost, and is dropped in a moment
        except Exception as error:  # noqa: BLE001 - reported; the cursors are saved again later
            self.on_error(error)
        finally:
            self._saving = None
        if self._marked:
            self.mark(next(iter(self._marked.values())))

    async def save(self, *cursors: Cursor) -> None:
        """Save these cursors now; returns when that is durable."""
        await self._save_cursors(cursors, marked=False)

    async def _save_cursors(self, cursors: Sequence[Cursor], *, marked: bool) -> None:
        if marked:  # those of a shard that is lost are not ours to write
            cursors = [cursor for cursor in cursors if self.knows(cursor.name)]
        for cursor in cursors:
            self._check_known(cursor.name)
        if len(self._stream.partitions) == 1:
            await self._save(self._stream.partitions[0], cursors, marked=marked)
            return
        parts: dict[PartitionHandle, list[Cursor]] = {}
        for cursor in cursors:
            parts.setdefault(self._home(cursor.name), []).append(cursor)
        saved = await asyncio.gather(
            *(self._save(*part, marked=marked) for part in parts.items()), return_exceptions=True
        )
        failures = [failure for failure in saved if failure is not None]
        # Only now: a caller that closes waits for all of them. A lost shard hides no failure.
        for failure in sorted(failures, key=lambda row: isinstance(row, NotLeader)):
            raise failure

    def _home(self, name: str) -> PartitionHandle:
        """The partition that keeps the state of a cursor."""
        return self._placement.home(self._stream, self._owner(name))

    async def _save(
        self, partition: PartitionHandle, cursors: Sequence[Cursor], *, marked: bool
    ) -> None:
        """`marked`: leave out cursors that are no longer marked when it is their turn.

        One that was saved meanwhile may be closed, and its name may have another cursor by then: an
        old state must not be written behind a newer one.
        """
        last: Offset | None = None
        rows: list[Row] = []
        chunk: list[tuple[Cursor, Parts]] = []
        size = 0
        for number, cursor in enumerate(cursors, 1):
            if not marked or self._marked.get(cursor.name) is cursor:
                parts: Parts = cursor.take_parts() if isinstance(cursor, IN_PARTS) else {}
                chunk.append((cursor, parts))
                made = _rows(cursor, parts)
                rows += made
                size += sum(len(value or b"") for _, value in made)
            if number == len(cursors) or size > CHUNK_BYTES:
                last = self._append_saved(partition, rows, chunk) if chunk else last
                rows, chunk, size = [], [], 0
                if number < len(cursors):
                    await asyncio.sleep(0)  # a hundred thousand cursors do not hold the loop
        if last is not None:
            await partition.wait_visible(last)

    def _append_saved(
        self, partition: PartitionHandle, rows: list[Row], chunk: list[tuple[Cursor, Parts]]
    ) -> Offset:
        last = Offset(-1)
        try:
            for piece in _pieces(rows):
                last = self._append(partition, piece)
        except BaseException:
            for cursor, parts in chunk:
                if isinstance(cursor, IN_PARTS):
                    cursor.put_back(parts)
            raise
        for cursor, _parts in chunk:
            self._kept[cursor.name] = cursor
            if self._marked.get(cursor.name) is cursor:
                del self._marked[cursor.name]
        return last

    def take_over(self, cursor: Cursor) -> None:
        """A cursor goes on from its kept state, if it has one: look it up in the cursor."""
        self._check_known(cursor.name)
        if cursor.name in self._kept:
            self._kept[cursor.name] = cursor

    def let_go(self, cursor: Cursor) -> None:
        """A cursor was closed and saved: keep its state without the object."""
        if self._kept.get(cursor.name) is cursor:
            self._kept[cursor.name] = msgspec.msgpack.encode(cursor.state())

    async def forget(self, name: str) -> None:
        """Delete a kept state, durably."""
        self._check_known(name)
        key = name.encode()
        rows: list[Row] = [
            (key + PART_SEPARATOR + part.encode(), None) for part in self._parts.get(name, {})
        ]
        self._marked.pop(name, None)
        if name in self._kept:
            home = self._home(name)
            await home.wait_visible(self._append(home, [*rows, (key, None)]))

    def _append(self, partition: PartitionHandle, rows: list[Row]) -> Offset:
        """Append one batch. Returns the offset of its last record."""
        builder = BatchBuilder(False)
        now_ms = self._clock.now_ms()
        builder.extend([(None, key, value, (), now_ms) for key, value in rows])
        try:
            if builder.size_bytes < COMPRESSED_BYTES_MIN:
                last = partition.append_built(builder, index_topics=False).last_offset
            else:
                batch = compress_batch(builder.seal(0, 0), ZSTD)
                last = Offset(partition.append_checked(bytearray(batch))[-1].last_offset)
        except NotLeader as error:
            raise NotOwner(str(error)) from error
        for key, value in rows:
            self._apply(key, value)
        return last

    async def close(self) -> None:
        """Save the marked cursors, then stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._saving is not None:
            await self._saving
        try:
            await self.save(*(row for row in self._marked.values() if self.knows(row.name)))
        except StateUnknown:
            raise
        except Unavailable as error:  # too few replicas are left: what was saved last counts
            self.on_error(error)


def _keys(positions: Iterable[Position]) -> set[Key]:
    return {(row.stream_id, row.partition) for row in positions}


def decode_state(blob: bytes) -> CursorState:
    """A kept state."""
    return msgspec.msgpack.decode(blob, type=CursorState)


def _pieces(rows: list[Row]) -> Iterator[list[Row]]:
    """The rows of one batch, or of several when a large table has too much for one."""
    piece: list[Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row[1] or b"")
        if size > PIECE_BYTES_MAX:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _rows(cursor: Cursor, parts: Parts) -> list[Row]:
    """A cursor's parts, then its state: a state never says more than the parts before it."""
    key = cursor.name.encode()
    rows: list[Row] = [(key + PART_SEPARATOR + part.encode(), blob) for part, blob in parts.items()]
    return [*rows, (key, msgspec.msgpack.encode(cursor.state()))]
