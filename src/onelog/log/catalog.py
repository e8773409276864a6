"""The catalog: the streams of this node, created, changed and deleted through the metadata store.

Rules:
- The metadata store decides. A command writes rows, waits until they are known here, and lets them
  take effect; rows that it did not write are adopted (I9). One change takes effect at a time.
- A deletion is written down before data goes, so that the next start can finish it after a crash.
  Data that the store does not know is reported and left alone.
- A change takes effect in one moment. A stream that gains topics keeps, in its record, the offsets
  at which the streams that lose those topics ended at that moment (`moves`).
- Opening runs in threads, so that recovery of a large log does not hold the loop.
- A damaged partition is opened as stopped: it refuses work, the others run. A partition that held
  records and whose files are gone is damaged (`begun`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import (
    Conflict,
    NotAuthorized,
    OnelogError,
    StreamNotFound,
    Timeout,
    Unavailable,
)
from onelog.base.ids import PartitionId
from onelog.log.begun import Begun
from onelog.log.changes import Changes
from onelog.log.config import StreamConfig
from onelog.log.directory import Directory
from onelog.log.hosting import Hosting
from onelog.log.internal import Placement
from onelog.log.moves import Move, bring, is_covered, moves_by, with_move
from onelog.log.opening import Deleting, Opener
from onelog.log.partition import Durability, Partition, Timestamps
from onelog.log.room import has_room
from onelog.log.shared import Shared
from onelog.log.stream import (
    Assigned,
    Stream,
    StreamRecord,
    begun_anew,
    changed_record,
    settle_records,
)
from onelog.log.stream_checks import StreamChecks
from onelog.log.stream_rows import StreamRows
from onelog.log.syncer import Syncer
from onelog.log.touched import Touched
from onelog.metadata.store import MetadataStore
from onelog.observe.troubles import Troubles
from onelog.storage.engine import Engine, PartitionKey

LISTENER: Final = "streams-listener"
"""Incidents: a listener for changed streams raised."""
_JOBS_MAX: Final = 256
"""Jobs in threads at once for the partitions of one stream. Further partitions share these jobs."""


class Catalog:
    """All streams."""

    def __init__(
        self,
        store: MetadataStore,
        engines: Mapping[str, Engine],
        syncer: Syncer,
        clock: Clock,
        troubles: Troubles,
        local: MetadataStore | None = None,
    ) -> None:
        """`local` keeps what is true of this node alone; None: `store` does."""
        self._directory = directory = Directory(clock)
        self.resolver = directory.resolver
        # A look-up goes to the directory itself: publishes and fetches pay no frame of ours.
        self.get, self.find, self.streams = directory.get, directory.find, directory.streams
        self.home, self.holders = directory.home, directory.holders
        self.placement = Placement()
        """In which partition of an internal stream the rows of a name lie."""
        self.orphans: list[PartitionKey] = []
        self.before_change: list[Callable[[], None]] = []
        """Called before a stream changes: whoever has staged records writes them now."""
        self.on_change: list[Callable[[], None]] = []
        """Called after a change. `changed` and `touched` say what changed."""
        self.changed: frozenset[str] = frozenset()
        """The streams, by name, that are new, other or gone since `on_change` was called."""
        self.touched = Touched()
        """The filters that the change concerns: whatever is known of others stays valid."""
        self._changes = Changes(self._adopt, troubles)
        self._rows = StreamRows(store, troubles, self._changes.tell)
        self._engines = engines
        self._clock = clock
        self.troubles = troubles
        self.shared = Shared(syncer, clock, troubles)
        """The objects that all partitions share."""
        self.begun = Begun(local or store, troubles)
        """Partitions that have held durable records, and so must not be empty."""
        self.own_engine = "segment"
        """The engine of streams that the broker makes for itself."""
        self.shared.begun = self._partition_begun
        self._opener = Opener(engines, self.shared, self.begun)
        self.checks = checks = StreamChecks(directory, self._rows, self._opener)
        """What a configuration has to keep."""
        self.check_new, self.check_altered = checks.new, checks.altered
        self._unsure: set[str] = set()
        """Streams with a change of ours that may have been written, and did not take effect."""

    @property
    def hosting(self) -> Hosting:
        """Which partitions lie on this node; set before `open`."""
        return self._opener.hosting

    @hosting.setter
    def hosting(self, hosting: Hosting) -> None:
        self._opener.hosting = hosting

    async def open(self) -> None:
        """Open every stream that the store knows, after finishing interrupted deletions."""
        for deleting in await self._rows.deletions():
            await self._opener.delete(deleting)
            await self._rows.deleted(deleting, self.hosting)
        await self.begun.load()
        there = await self._opener.look()
        anew = await self._rows.given_up()
        await self._rows.open()
        known: set[PartitionKey] = set()
        for record in self._rows.take_all():
            stream = await self._restore(record, given_up=record.config.name in anew)
            self._apply(stream)
            known.update(stream.key(partition.id) for partition in stream.partitions)
        if not self.hosting.is_shared:  # what is here may be less than what its leader has
            await self._settle_moves()
        self.orphans = sorted(there - known)
        await self.begun.forget_strangers(known)
        self._note_begun()
        await self.begun.settle()
        self._changes.open()
        self._changes.tell(self._rows.names() | self._directory.by_name.keys())

    async def _restore(self, record: StreamRecord, *, given_up: bool) -> Stream:
        """Open a stream of an earlier run."""
        is_volatile = self._opener.engine(record.config).volatile and not self.hosting.is_shared
        if given_up or is_volatile:
            # Its offsets begin at 0 again: old positions must not fit the new log.
            record = begun_anew(record, _new_id(record.config))
            await self._save([record])
        if given_up:
            await self._rows.started_over(record.config.name)
        return await self._open_stream(record)

    # -- changing

    async def create(self, config: StreamConfig, assigned: Assigned = ()) -> Stream:
        """Create a stream, with its partitions on these nodes. Raises AlreadyExists or Conflict."""
        stream = await self._changes.carry_through(self._create(config, assigned))
        await self._until_led(stream)
        return stream

    async def _until_led(self, stream: Stream) -> None:
        with contextlib.suppress(Timeout):  # it is there; its leaders come when nodes allow it
            await self.hosting.until_led(stream.record)

    async def adopted(self, name: str) -> Stream:
        """A stream that another writer made: here as soon as this returns. Raises
        StreamNotFound."""
        async with self._changes.lock:
            await self._adopt(name)
        return self.get(name)

    async def refresh(self) -> None:
        """Have every stream that the store knows now as its row says. Raises Unavailable,
        Timeout."""
        await self._rows.refresh()
        async with self._changes.lock:
            for name in sorted(self._rows.names()):
                await self._adopt(name)

    async def _create(self, config: StreamConfig, assigned: Assigned) -> Stream:
        async with self._changes.lock:
            if config.internal or self.checks.is_reserved(config.name):
                config = msgspec.structs.replace(config, engine=self.own_engine)
            self.check_new(config)
            chosen = self.hosting.place(config, 0)
            assigned = [own or other for own, other in zip_longest(assigned, chosen, fillvalue=())]
            record = StreamRecord(
                id=_new_id(config),
                config=config,
                created_ms=self._directory.next_birth_ms(),
                fixed_topic=config.single_topic,
                assigned=tuple(assigned),
            )
            await bring(None, config, self._directory.near(None, config))
            moves = moves_by(Stream(record, []), None, config, self._directory.near(None, config))
            await self._plan(record, moves)
            try:
                stream = await self._open_stream(record)
            except BaseException:
                # For example, the disk is full. The name is free; the files are orphans.
                await self._rows.undo(config.name)
                raise
            await self._carry_out(stream, record, moves, old=None)
            return stream

    async def take_in(self, record: StreamRecord) -> Stream:
        """Have a stream of an earlier broker, whose partitions the engine holds already."""
        return await self._changes.carry_through(self._take_in(record))

    async def _take_in(self, record: StreamRecord) -> Stream:
        async with self._changes.lock:
            self.check_new(record.config)
            await self._save([record])
            stream = await self._open_stream(record)
            self._apply(stream)
            self._note_begun()
            return stream

    async def alter(self, config: StreamConfig, assigned: Assigned = ()) -> Stream:
        """Give a stream another configuration while it runs; new partitions lie on these nodes."""
        stream = await self._changes.carry_through(self._alter(config, assigned))
        await self._until_led(stream)
        return stream

    async def _alter(self, config: StreamConfig, assigned: Assigned) -> Stream:
        async with self._changes.lock:
            stream = self.get(config.name)
            old = stream.record
            self.check_altered(config)
            self._before_change()
            chosen = self.hosting.place(config, len(stream.partitions))
            assigned = [own or other for own, other in zip_longest(assigned, chosen, fillvalue=())]
            record = changed_record(stream, config, self._directory.next_birth_ms(), assigned)
            near = self._directory.near(old.config, config)
            moves = moves_by(stream, old.config, config, near, is_plan=True)
            if record.fixed_until != old.fixed_until:
                self._tag_from_now(stream, record)
            try:
                await self._plan(record, moves)
            except Timeout:  # perhaps written: then records from now on carry their topic
                raise
            except BaseException:
                stream.record = old
                self._changed({stream.name}, self._directory.all_captures(stream))
                raise
            fresh = await self._opener.open(record, len(stream.partitions))
            await self._carry_out(stream, record, moves, old=old.config, fresh=fresh)
            was, now = old.config.durability, config.durability
            if now is Durability.FSYNC and was is not now:
                await stream.make_durable()
            return stream

    def _tag_from_now(self, stream: Stream, record: StreamRecord) -> None:
        """From now on, records of a stream that was made for one topic carry their topic."""
        stream.record = msgspec.structs.replace(stream.record, fixed_until=record.fixed_until)
        for partition in stream.local:
            if partition.stopped is None:
                partition.log.reconfigure(record.config.log_settings())
        self._changed({stream.name}, self._directory.all_captures(stream))

    async def _plan(self, record: StreamRecord, moves: dict[str, Move]) -> None:
        """Write down a change, and which moves it makes, before it takes effect."""
        others = [self.get(name).record for name in moves if name != record.config.name]
        rows = [self._moved(row, moves, is_exact=False) for row in (*others, record)]
        try:
            await self._save(rows)
        except Timeout:
            self._unsure.add(record.config.name)
            raise
        self._unsure.discard(record.config.name)

    def _moved(
        self, record: StreamRecord, moves: Mapping[str, Move], *, is_exact: bool = True
    ) -> StreamRecord:
        """A stream's record, with the move if the stream gained topics by it."""
        name = record.config.name
        if name not in moves:
            return record
        move = msgspec.structs.replace(moves[name], is_exact=is_exact)
        found = with_move(record.moves, move, self._directory.partitions(), name)
        # A stream that is not the first to hold its one topic writes the topic beside each record.
        fixed = record.fixed_topic if name in self._directory.by_name else None
        return msgspec.structs.replace(record, moves=found, fixed_topic=fixed)

    async def _carry_out(
        self,
        stream: Stream,
        record: StreamRecord,
        planned: dict[str, Move],
        *,
        old: StreamConfig | None,
        fresh: Sequence[Partition] = (),
    ) -> None:
        """Let a change that the store has take effect, then write the offsets of that moment."""
        await bring(old, record.config, self._directory.near(old, record.config))
        while True:
            self._before_change()
            moves = moves_by(stream, old, record.config, self._directory.near(old, record.config))
            if is_covered(moves, planned):
                break
            planned = moves  # a topic was written for the first time since the plan
            await self._plan(record, planned)
        for name in moves.keys() - {stream.name}:
            other = self.get(name)
            other.record = self._moved(other.record, moves)
        self._take_effect(stream, self._moved(record, moves), fresh, moves.keys())
        if planned:
            await self._save([self.get(name).record for name in planned])

    def _take_effect(
        self,
        stream: Stream,
        record: StreamRecord,
        fresh: Sequence[Partition],
        gained: Iterable[str] = (),
    ) -> None:
        """From this moment on, a stream is what its record says."""
        stream.record = record
        config = record.config
        for partition in stream.local:
            partition.promise(config.durability)
            partition.message_bytes_max = config.batch_bytes_max
            partition.stamps = config.timestamps is Timestamps.APPEND
            if partition.stopped is None:
                partition.log.reconfigure(config.log_settings())
        stream.add_partitions(fresh)
        self._apply(stream, gained)

    async def _settle_moves(self) -> None:
        """Correct moves at a start: the process ended inside a change, or logs lost their end."""
        settled = await settle_records(
            self.streams(), lambda config: self._directory.near(None, config)
        )
        if settled:
            await self._save(settled)

    async def delete(self, name: str) -> None:
        """Delete a stream and its data."""
        await self._changes.carry_through(self._delete(name))

    async def _delete(self, name: str) -> None:
        async with self._changes.lock:
            stream = self.get(name)
            if stream.is_internal:
                raise NotAuthorized(f"the stream {name!r} belongs to the broker and stays")
            record = stream.record
            deleting = Deleting(record.id, record.config.engine, len(stream.partitions))
            await self._rows.delete(name, deleting)
            await self._take_down(stream)
            await self._opener.delete(deleting)
            await self._rows.deleted(deleting, self.hosting)
            await self.begun.forget(record.id)

    async def _take_down(self, stream: Stream) -> None:
        """Let nobody find a stream any more, and fail everybody who waits for it."""
        name = stream.name
        touched = self._directory.remove(stream)
        gone = StreamNotFound(f"the stream {name!r} was deleted")
        for partition in stream.partitions:
            partition.stop(gone)
        self._changed({name}, touched)
        await self.hosting.gone(stream)
        await self._opener.in_chunks(stream.local, Partition.close_deleted)
        for row in stream.local:
            row.arrivals.deleted()

    # -- rows that another writer made

    async def _adopt(self, name: str) -> None:
        """Let a stream be what its row says, unless a command of ours has done so."""
        if self._rows.is_in_force(name):
            return
        self._rows.take(name)
        record, stream = self._rows.find(name), self.find(name)
        is_ours = name in self._unsure
        self._unsure.discard(name)
        if stream is not None and (record is None or record.id != stream.record.id):
            await self._take_down(stream)
            deleting = await self._rows.deletion(stream.record.id)
            if deleting is not None:  # otherwise its data stays, as data of an unknown stream
                await self._opener.delete(deleting)
                await self.begun.forget(deleting.id)
                with contextlib.suppress(OnelogError):  # the next start notes it
                    await self._rows.deleted(deleting, self.hosting)
            stream = None
        if record is None:
            return
        old = None if stream is None else stream.config
        fresh: list[Partition] = []
        if stream is None:
            stream = await self._open_stream(record)
        else:
            fresh = await self._opener.open(record, len(stream.partitions))
        if is_ours:  # no other writer sets the offsets of its moves
            moves = tuple(move for move in record.moves if move.is_exact)
            record = msgspec.structs.replace(record, moves=moves)
            await self._carry_out(stream, record, {}, old=old, fresh=fresh)
        else:
            self._before_change()
            self._take_effect(stream, record, fresh)
        if record.config.durability is Durability.FSYNC:
            await stream.make_durable()

    async def remake(self, stream: Stream, number: PartitionId) -> Partition:
        """Drop what a partition holds here; what lies here from now on takes its place. For
        `hosting`, which brings its records again."""
        old = stream.local[number]
        old.stop(Unavailable(f"{old.place} is copied anew from its leader"))
        if old.jobs.held is not None:
            await asyncio.wait([old.jobs.held])
        fresh = await self._opener.remake(stream.record, old)
        if self.find(stream.name) is not stream:
            raise StreamNotFound(f"the stream {stream.name!r} was deleted")
        stream.local[number] = fresh
        self._changed({stream.name}, self._directory.all_captures(stream))
        return fresh

    async def start_over(self, name: str) -> None:
        """Give up the data of a damaged stream: the next start makes it new, under another id.

        The data that is left stays on the disk, as data of an unknown stream.
        """
        stream = self.get(name)
        if all(partition.stopped is None for partition in stream.partitions):
            raise Conflict(f"the stream {name!r} is sound: only a damaged one can start over")
        await self._rows.give_up(name)

    async def look_for_room(self) -> None:
        """After the disk was full for a write: find out whether there is room again."""
        if await self.shared.syncer.chores.run(lambda: has_room(self._engines.values())):
            self.shared.room.found()

    async def close(self) -> None:
        """Close every partition cleanly, also when one of them fails to close."""
        await self._changes.close()
        await self._rows.close()
        rows = [row for stream in self._directory.by_name.values() for row in stream.local]
        failures: list[BaseException] = []
        for at in range(0, len(rows), _JOBS_MAX):
            closing = (partition.close() for partition in rows[at : at + _JOBS_MAX])
            done = await asyncio.gather(*closing, return_exceptions=True)
            failures += [error for error in done if error is not None]
        self._note_begun()
        await self.begun.settle()
        await self.shared.couriers.close()
        if failures:
            raise failures[0]

    # -- inside

    def _note_begun(self) -> None:
        """Write down which partitions hold durable records."""
        self.begun.note(
            stream.key(partition.id)
            for stream in self._directory.by_name.values()
            if not self._opener.engine(stream.config).volatile
            for partition in stream.local
            if partition.log.durable_offset > 0
        )

    def _partition_begun(self, partition: Partition) -> None:
        stream = self.find(partition.stream)
        if stream is not None and not self._opener.engine(stream.config).volatile:
            self.begun.note([stream.key(partition.id)])

    async def _save(self, records: Sequence[StreamRecord]) -> None:
        """Write records; the record of the stream that changes comes last."""
        await self._rows.save(records)

    def _apply(self, stream: Stream, gained: Iterable[str] = ()) -> None:
        """Let a stream be found as it is now; `gained` names those that took over its topics."""
        touched = self._directory.put(stream)
        self.hosting.seen(stream)
        self._changed({stream.name, *gained}, touched)

    def _before_change(self) -> None:
        self.troubles.tell(LISTENER, self.before_change)

    def _changed(self, names: set[str], filters: set[str]) -> None:
        self.changed, self.touched = frozenset(names), Touched(filters)
        # A listener that raises does not undo the change.
        self.troubles.tell(LISTENER, self.on_change)

    async def _open_stream(self, record: StreamRecord) -> Stream:
        return Stream(record, await self._opener.open(record, 0))


def _new_id(config: StreamConfig) -> str:
    """An id that no stream has had before."""
    return f"{config.name[:200]}-{secrets.token_hex(4)}"
