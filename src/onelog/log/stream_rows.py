"""The rows of streams in the metadata store: one per stream, seen through a projection.

Rules:
- A row is written only over the revision that is in force here: who changes a stream has seen all
  that others changed of it (`Conflict` otherwise, and nothing is written).
- A stream's row goes in the same transaction that writes down what is left to delete, so that a
  crash in between is finished at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from onelog.base.errors import Conflict, StreamNotFound
from onelog.log.config import StreamConfig
from onelog.log.opening import Deleting
from onelog.log.stream import StreamRecord
from onelog.metadata.parts import in_parts
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Delete, Entry, MetadataStore, Op, Put
from onelog.observe.troubles import Troubles

_STREAMS: Final = "streams/"
_DELETING: Final = "deleting/"
_START_OVER: Final = "start-over/"
"""Streams whose data is given up at the next start."""


class StreamRows:
    """What the store knows of streams; `changed` is told the names of those that changed."""

    def __init__(
        self, store: MetadataStore, troubles: Troubles, changed: Callable[[set[str]], None]
    ) -> None:
        self._store = store
        self._changed = changed
        self._rows = Projection(store, _STREAMS, _decode, troubles, self._tell)
        self._in_force: dict[str, int] = {}
        """The revision of each row that its stream here is made by."""

    async def open(self) -> None:
        """Read every row, and follow what changes."""
        await self._rows.open()

    async def close(self) -> None:
        """Follow no more."""
        await self._rows.close()

    def _tell(self, changes: Sequence[Change[StreamRecord]]) -> None:
        self._changed({change.key.removeprefix(_STREAMS) for change in changes})

    def names(self) -> set[str]:
        """Every stream that the store knows."""
        return {key.removeprefix(_STREAMS) for key, _record in self._rows.rows()}

    def take_all(self) -> list[StreamRecord]:
        """Every record, by name: from now on the streams here are made by them."""
        names = sorted(self.names())
        for name in names:
            self.take(name)
        return [record for name in names if (record := self.find(name)) is not None]

    def find(self, name: str) -> StreamRecord | None:
        """The record of a stream, which may not be open here yet."""
        row = self._rows.get(_STREAMS + name)
        return None if row is None else row.value

    def is_in_force(self, name: str) -> bool:
        """Whether the stream here is made by the row as it is."""
        row = self._rows.get(_STREAMS + name)
        return self._in_force.get(name) == (None if row is None else row.revision)

    def take(self, name: str) -> None:
        """From now on the stream here is made by the row as it is."""
        row = self._rows.get(_STREAMS + name)
        if row is None:
            self._in_force.pop(name, None)
        else:
            self._in_force[name] = row.revision

    async def save(self, records: Sequence[StreamRecord]) -> None:
        """Write records down in parts, in their order.

        A crash in between leaves moves of which nothing came; the next start settles them.
        """
        puts = [Put(_STREAMS + row.config.name, msgspec.json.encode(row)) for row in records]
        for part in in_parts(puts):
            names = [put.key.removeprefix(_STREAMS) for put in part]
            await self._write(part, names, records[-1].config.name)

    async def delete(self, name: str, deleting: Deleting) -> None:
        """Let a stream go; what is left to delete is written down with it."""
        key = _STREAMS + name
        ops: list[Op] = [Delete(key), Put(_DELETING + deleting.id, msgspec.json.encode(deleting))]
        try:
            await self._write(ops, [name], name)
        except Conflict:
            if self._rows.get(key) is None:
                raise StreamNotFound(f"there is no stream {name!r}") from None
            raise

    async def _write(self, ops: Sequence[Op], names: list[str], changed: str) -> None:
        other = f"stream {changed} was created, changed or deleted by somebody else; try again"
        if not all(map(self.is_in_force, names)):
            raise Conflict(other)
        try:
            await self._rows.write(ops)
        except Conflict:
            raise Conflict(other) from None
        for name in names:
            self.take(name)

    async def undo(self, name: str) -> None:
        """A stream that was just written down could not be made: its name is free again."""
        await self._rows.delete(_STREAMS + name)
        self.take(name)

    # -- what is left to do at the next start

    async def deletions(self) -> list[Deleting]:
        """Streams whose data is to go."""
        entries = (await self._store.range(_DELETING)).entries
        return [msgspec.json.decode(entry.value, type=Deleting) for entry in entries]

    async def deletion(self, stream_id: str) -> Deleting | None:
        """Whether the data of this stream is to go."""
        entry = await self._store.get(_DELETING + stream_id)
        return None if entry is None else msgspec.json.decode(entry.value, type=Deleting)

    async def deleted(self, deleting: Deleting) -> None:
        """The data of a stream is gone."""
        await self._store.delete(_DELETING + deleting.id)

    async def give_up(self, name: str) -> None:
        """The next start makes a stream new."""
        await self._store.put(_START_OVER + name, b"")

    async def given_up(self) -> set[str]:
        """Streams that this start makes new."""
        entries = (await self._store.range(_START_OVER)).entries
        return {entry.key.removeprefix(_START_OVER) for entry in entries}

    async def started_over(self, name: str) -> None:
        """A stream was made new."""
        await self._store.delete(_START_OVER + name)


def _decode(entry: Entry) -> StreamRecord:
    return msgspec.json.decode(entry.value, type=StreamRecord)


async def stored_configs(store: MetadataStore) -> list[StreamConfig]:
    """The configuration of every stream that a store knows, whether they are open or not."""
    return [_decode(entry).config for entry in (await store.range(_STREAMS)).entries]
