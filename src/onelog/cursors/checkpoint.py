"""The checkpoint: cursor state in the internal stream `~cursors`, so that it recovers like data.

Rules:
- What `save` has answered survives as the stream's durability says (I4). Marked cursors are saved
  together, one batch for all of them, at most one interval later; nothing polls.
- A cursor and its parts are written in one batch, so they are never apart after a crash.
- Kept positions pin retention, whether the cursor is open or its consumer is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.ids import Offset
from onelog.cursors.cursor import Cursor, CursorKind, CursorState
from onelog.cursors.table import TableCursor
from onelog.kernel import BatchBuilder
from onelog.log.catalog import Catalog
from onelog.log.config import Cleanup, Retention, StreamConfig
from onelog.log.partition import Partition
from onelog.record.batch import iterate_batches

STREAM: Final = "~cursors"
PINNING: Final = (CursorKind.QUEUE, CursorKind.SESSION)
_PART_SEPARATOR: Final = b"\0"
_READ_BYTES: Final = 4 * 1024 * 1024

STREAM_CONFIG: Final = StreamConfig(
    name=STREAM,
    cleanup=Cleanup.COMPACT,
    retention=Retention(age_ms=-1),
    segment_bytes=16 * 1024 * 1024,
)


class CheckpointStore:
    """Kept cursor states by name."""

    def __init__(self, partition: Partition, clock: Clock, interval_s: float) -> None:
        self._partition = partition
        self._clock = clock
        self._interval_s = interval_s
        self._kept: dict[str, CursorState] = {}
        self._parts: dict[str, dict[str, bytes]] = {}
        self._marked: dict[str, Cursor] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self.on_error: Callable[[BaseException], None] = lambda _error: None

    @classmethod
    async def open(cls, catalog: Catalog, clock: Clock, interval_s: float) -> CheckpointStore:
        """Read every kept state; the stream is created on the first start."""
        stream = catalog.find(STREAM) or await catalog.create(STREAM_CONFIG)
        store = cls(stream.partitions[0], clock, interval_s)
        await store._load()
        return store

    async def _load(self) -> None:
        partition = self._partition
        offset = partition.start_offset
        while offset < partition.high_watermark:
            data = partition.read(offset, _READ_BYTES)
            for info, slices in iterate_batches(data):
                for index in range(len(slices)):
                    self._apply(slices.key(index), slices.value(index))
                offset = Offset(info.last_offset + 1)
            await asyncio.sleep(0)

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        name, _, part = key.decode().partition(_PART_SEPARATOR.decode())
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
            self._kept[name] = msgspec.msgpack.decode(value, type=CursorState)

    # -- looking up

    def kept(self, name: str) -> CursorState | None:
        """The kept state of a cursor."""
        return self._kept.get(name)

    def parts(self, name: str) -> dict[str, bytes]:
        """The kept parts of a table cursor."""
        return self._parts.get(name, {})

    def names(self) -> list[str]:
        """Every cursor with a kept state."""
        return sorted(self._kept)

    def pins(self, open_cursors: Iterable[Cursor]) -> dict[tuple[str, int], int]:
        """The lowest offset that durable queues and sessions still need, per partition.

        Kept positions count, not the newer ones in memory: after a crash it is the kept ones
        that a cursor reads on from. Open cursors that were never saved count as they are.
        """
        lowest: dict[tuple[str, int], int] = {}
        states = list(self._kept.values())
        states += [c.state() for c in open_cursors if c.name not in self._kept]
        for state in states:
            if state.kind in PINNING:
                for row in state.positions:
                    key = (row.stream_id, row.partition)
                    lowest[key] = min(row.offset, lowest.get(key, row.offset))
        return lowest

    # -- saving

    def mark(self, cursor: Cursor) -> None:
        """Save this cursor within an interval."""
        self._marked[cursor.name] = cursor
        if self._timer is None and self._saving is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_s, self._save_marked)

    def _save_marked(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._save_all_marked())

    async def _save_all_marked(self) -> None:
        marked, self._marked = self._marked, {}
        try:
            await self.save(*marked.values())
        except Exception as error:  # noqa: BLE001 - reported; the cursors are saved again later
            self._marked = {**marked, **self._marked}
            self.on_error(error)
        finally:
            self._saving = None
        if self._marked:
            self.mark(next(iter(self._marked.values())))

    async def save(self, *cursors: Cursor) -> None:
        """Save these cursors now; returns when that is durable."""
        rows: list[tuple[bytes, bytes | None]] = []
        for cursor in cursors:
            key = cursor.name.encode()
            if isinstance(cursor, TableCursor):
                parts = cursor.take_parts()
                rows += (
                    (key + _PART_SEPARATOR + part.encode(), blob) for part, blob in parts.items()
                )
            rows.append((key, msgspec.msgpack.encode(cursor.state())))
        await self._write(rows)

    async def forget(self, name: str) -> None:
        """Delete a kept state, durably."""
        key = name.encode()
        parts = self._parts.get(name, {})
        rows: list[tuple[bytes, bytes | None]] = [(key, None)]
        rows += ((key + _PART_SEPARATOR + part.encode(), None) for part in parts)
        self._marked.pop(name, None)
        if name in self._kept:
            await self._write(rows)

    async def _write(self, rows: list[tuple[bytes, bytes | None]]) -> None:
        if not rows:
            return
        builder = BatchBuilder(False)
        now_ms = self._clock.now_ms()
        builder.extend([(None, key, value, (), now_ms) for key, value in rows])
        appended = self._partition.append_built(builder, index_topics=False)
        for key, value in rows:
            self._apply(key, value)
        await self._partition.wait_visible(Offset(appended.end_offset - 1))

    async def close(self) -> None:
        """Save what is marked, then stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._saving is not None:
            await self._saving
        await self.save(*self._marked.values())
        self._marked = {}
