"""The rows of streams in the metadata store: one per stream, seen through a projection.

Rules:
- A row is written only over the revision that is in force here, so that a writer has seen the
  changes of all others. Otherwise the write raises `Conflict`, and nothing is written.
- A stream's row is deleted in the transaction that writes which data is left to delete, so that the
  next start can finish after a crash. On a cluster each node notes there that it has nothing of it
  any more, and the last one ends the note: a node that is away finds it when it comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from onelog.base.errors import Conflict, StreamNotFound
from onelog.log.begun import BEGUN
from onelog.log.config import StreamConfig
from onelog.log.hosting import Hosting
from onelog.log.opening import Deleting
from onelog.log.stream import StreamRecord
from onelog.metadata.parts import in_parts
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Compare, Delete, Entry, MetadataStore, Op, Put
from onelog.observe.troubles import Troubles

_STREAMS: Final = "streams/"
_DELETING: Final = "deleting/"
_TRIES: Final = 20
"""Attempts to note a deletion that other nodes note at the same time."""
_START_OVER: Final = "start-over/"
"""Streams whose data the next start gives up."""


class StreamRows:
    """The rows of streams in the store. `changed` is called with the names of those that
    changed."""

    def __init__(
        self, store: MetadataStore, troubles: Troubles, changed: Callable[[set[str]], None]
    ) -> None:
        self._store = store
        self._changed = changed
        self._rows = Projection(store, _STREAMS, _decode, troubles, self._tell)
        self._in_force: dict[str, int] = {}
        """For each stream here, the revision of the row that it was made from."""

    async def open(self) -> None:
        """Read every row, and watch for changes."""
        await self._rows.open()

    async def close(self) -> None:
        """Stop watching."""
        await self._rows.close()

    def _tell(self, changes: Sequence[Change[StreamRecord]]) -> None:
        self._changed({change.key.removeprefix(_STREAMS) for change in changes})

    async def refresh(self) -> None:
        """Wait until every row that the store has now is known here. Raises Unavailable,
        Timeout."""
        entries = (await self._store.range(_STREAMS)).entries
        if entries:
            await self._rows.reached(max(entry.mod_revision for entry in entries))

    def names(self) -> set[str]:
        """Every stream that the store knows."""
        return {key.removeprefix(_STREAMS) for key, _record in self._rows.rows()}

    def take_all(self) -> list[StreamRecord]:
        """Every record, by name: the streams here are made from them."""
        names = sorted(self.names())
        for name in names:
            self.take(name)
        return [record for name in names if (record := self.find(name)) is not None]

    def find(self, name: str) -> StreamRecord | None:
        """The record of a stream, which may not be open here yet."""
        row = self._rows.get(_STREAMS + name)
        return None if row is None else row.value

    def is_in_force(self, name: str) -> bool:
        """Whether the stream here was made from the current row."""
        row = self._rows.get(_STREAMS + name)
        return self._in_force.get(name) == (None if row is None else row.revision)

    def take(self, name: str) -> None:
        """The stream here is made from the current row."""
        row = self._rows.get(_STREAMS + name)
        if row is None:
            self._in_force.pop(name, None)
        else:
            self._in_force[name] = row.revision

    async def save(self, records: Sequence[StreamRecord]) -> None:
        """Write records in parts, in their order.

        A crash in between leaves moves that did not happen. The next start corrects them.
        """
        puts = [Put(_STREAMS + row.config.name, msgspec.json.encode(row)) for row in records]
        for part in in_parts(puts):
            names = [put.key.removeprefix(_STREAMS) for put in part]
            await self._write(part, names, records[-1].config.name)

    async def delete(self, name: str, deleting: Deleting) -> None:
        """Delete a stream's row, and write which data is left to delete."""
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
        """Remove the row of a stream that could not be made: its name is free again."""
        await self._rows.delete(_STREAMS + name)
        self.take(name)

    # -- what is left to do at the next start

    async def deletions(self) -> list[Deleting]:
        """Streams whose data is left to delete."""
        entries = (await self._store.range(_DELETING)).entries
        return [msgspec.json.decode(entry.value, type=Deleting) for entry in entries]

    async def deletion(self, stream_id: str) -> Deleting | None:
        """The data of this stream that is left to delete; None: there is none."""
        entry = await self._store.get(_DELETING + stream_id)
        return None if entry is None else msgspec.json.decode(entry.value, type=Deleting)

    async def deleted(self, deleting: Deleting, hosting: Hosting) -> None:
        """Note that the data of a stream is gone here. The last node ends the note."""
        await hosting.deleted(deleting.keys())
        key, nodes = _DELETING + deleting.id, set(await hosting.nodes())
        for _ in range(_TRIES):
            entry = await self._store.get(key)
            if entry is None:
                return
            row = msgspec.json.decode(entry.value, type=Deleting)
            done = {*row.done, hosting.node}
            noted = msgspec.structs.replace(row, done=tuple(sorted(done)))
            op: Op = Delete(key) if done >= nodes else Put(key, msgspec.json.encode(noted))
            compare = Compare(key, "mod_revision", "==", entry.mod_revision)
            if (await self._store.txn([compare], [op])).succeeded:
                return
        raise Conflict(
            f"nodes note all the time that {deleting.id} is gone; the next start goes on"
        )

    async def give_up(self, name: str) -> None:
        """Note that the next start makes a stream new."""
        await self._store.put(_START_OVER + name, b"")

    async def given_up(self) -> set[str]:
        """Streams that this start makes new."""
        entries = (await self._store.range(_START_OVER)).entries
        return {entry.key.removeprefix(_START_OVER) for entry in entries}

    async def started_over(self, name: str) -> None:
        """Note that a stream was made new."""
        await self._store.delete(_START_OVER + name)


def _decode(entry: Entry) -> StreamRecord:
    return msgspec.json.decode(entry.value, type=StreamRecord)


async def stored_configs(store: MetadataStore) -> list[StreamConfig]:
    """The configuration of every stream that a store knows, whether they are open or not."""
    return [_decode(entry).config for entry in (await store.range(_STREAMS)).entries]


async def names_in_engine(store: MetadataStore, engine: str) -> tuple[list[str], list[str]]:
    """Streams of an engine, and those of them that held durable records; streams that are being
    deleted count as the former."""
    streams = [_decode(entry) for entry in (await store.range(_STREAMS)).entries]
    of_engine = {row.id: row.config.name for row in streams if row.config.engine == engine}
    begun = {
        of_engine[entry.key.split("/")[1]]
        for entry in (await store.range(BEGUN)).entries
        if entry.key.split("/")[1] in of_engine
    }
    deleting = [
        msgspec.json.decode(entry.value, type=Deleting)
        for entry in (await store.range(_DELETING)).entries
    ]
    leaving = [row.id for row in deleting if row.engine == engine]
    return [*of_engine.values(), *leaving], sorted(begun)
