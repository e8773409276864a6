"""What a command does on a cluster before and after a change of captures: it finds out, with all
nodes, from which offsets on the change holds (`moves_over_nodes`).

Rules: no lock is held while other nodes are asked, since they may be asking this one. What a
command leaves open, because nodes did not answer or its process ended, the controller's node does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from onelog.base.errors import Conflict, OnelogError, Unavailable
from onelog.log.changes import Changes
from onelog.log.config import StreamConfig
from onelog.log.directory import Directory
from onelog.log.hosting import Hosting
from onelog.log.moves import UNKNOWN_END, SourceKey
from onelog.log.moves_over_nodes import HomeEnd, Plan, completed, keys_of, left_open
from onelog.log.stream import Stream, StreamRecord
from onelog.log.stream_rows import StreamRows

SETTLE_S: Final = 5.0
"""How long a command waits; the change holds, and readers of these topics may wait longer."""
TAG_S: Final = 20.0
"""How long a change may take that has to wait until all records carry their topic."""


class MoveSettling:
    """The moves of a catalog that are not settled. `applied` lets a stream be found as it is."""

    def __init__(
        self,
        directory: Directory,
        rows: StreamRows,
        changes: Changes,
        hosting: Callable[[], Hosting],
        applied: Callable[[Stream], None],
    ) -> None:
        self._directory = directory
        self._rows = rows
        self._changes = changes
        self._hosting = hosting
        self._applied = applied

    def unsettled(self) -> list[Stream]:
        """Streams with a move whose offsets are not known."""
        return [
            stream
            for stream in self._directory.by_name.values()
            if any(not move.is_exact for move in stream.record.moves)
        ]

    async def finish(self, changed: str, plan: Plan) -> None:
        """After a change of a stream: settle its moves. What does not come to an end in time is
        left to the controller's node."""
        if plan.homes:
            with contextlib.suppress(OnelogError, TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self.settle({changed, *plan.homes}, plan)

    async def settle(self, names: Iterable[str], plan: Plan | None = None) -> None:
        """Settle the moves of these streams; `plan` says which topics moved. Raises OnelogError."""
        streams = [row for name in names if (row := self._directory.find(name)) is not None]
        questions = left_open(streams).questions | (plan.questions if plan is not None else {})
        revisions = self._rows.revisions(row.name for row in streams)
        await self._hosting().until_adopted(revisions, list(questions))
        said = await self._hosting().ask(questions)
        for stream in streams:
            await self._complete(stream.name, said)

    async def _complete(self, name: str, said: Mapping[SourceKey, HomeEnd]) -> None:
        async with self._changes.lock:
            await self._changes.adopt(name)
            stream = self._directory.find(name)
            if stream is None:
                return
            open_keys = {
                key for move in stream.record.moves if not move.is_exact for key, _ in move.after
            }
            if open_keys and open_keys <= said.keys():
                await self._write(stream, completed(stream.record, said))

    async def tag(self, config: StreamConfig) -> None:
        """Before a stream that was made for one topic captures other topics: have its records carry
        their topic, and find out from where on. Raises OnelogError: then nothing else changed."""
        stream = self._directory.get(config.name)
        if is_tagged(stream.record, config):
            return
        unknown = (UNKNOWN_END,) * len(stream.partitions)
        async with self._changes.lock:
            stream = self._directory.get(config.name)
            await self._write(stream, msgspec.structs.replace(stream.record, fixed_until=unknown))
        keys = keys_of(stream)
        revisions = self._rows.revisions([stream.name])
        try:
            async with asyncio.timeout(TAG_S):
                await self._hosting().until_adopted(revisions, keys)
                said = await self._hosting().ask(dict.fromkeys(keys, ()))
        except TimeoutError:
            raise Unavailable(
                f"not every node knows stream {config.name} anew: try again"
            ) from None
        until = tuple(said[key].end for key in keys)
        async with self._changes.lock:
            stream = self._directory.get(config.name)
            if stream.record.fixed_until != unknown:
                raise Conflict(f"stream {config.name} was changed by somebody else; try again")
            await self._write(stream, msgspec.structs.replace(stream.record, fixed_until=until))

    async def _write(self, stream: Stream, record: StreamRecord) -> None:
        await self._rows.save([record])
        self._changes.before()
        stream.record = record
        for partition in stream.local:
            if partition.stopped is None:
                partition.log.reconfigure(record.config.log_settings())
        self._applied(stream)


def is_tagged(record: StreamRecord, config: StreamConfig) -> bool:
    """Whether a stream can have this configuration: it has no other topic than before, or it is
    known from where on its records carry their topic."""
    if record.fixed_topic in (None, config.single_topic):
        return True
    return record.fixed_until is not None and UNKNOWN_END not in record.fixed_until


def check_tagged(record: StreamRecord, config: StreamConfig) -> None:
    """Raise Conflict for a change that another one came before."""
    if not is_tagged(record, config):
        raise Conflict(f"stream {config.name} was changed by somebody else; try again")
