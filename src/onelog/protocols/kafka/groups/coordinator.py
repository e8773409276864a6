"""All groups that this node owns: the rim around the state machines, with timers and kept rows.

Rules:
- After every call of a group its answers go out, the rows that it asks to keep go to the journal,
  and its timer is set. There is one timer per group; heartbeats do not touch it.
- A generation is kept when its assignments are handed out, so members go on after a restart.
- Groups, and the bytes that their members choose, are bounded in total (I8).
- A group without members and offsets is forgotten: at once when it never had a generation,
  otherwise at the next search for old offsets.
- The groups of a shard are known while this node owns it. When it is lost, everybody that waits
  hears NOT_COORDINATOR, and nothing is written any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar, cast

from onelog.base.clock import Clock
from onelog.base.errors import NotOwner, OnelogError, Timeout
from onelog.broker import Broker
from onelog.broker.kept import KeptRow, KeptTable
from onelog.broker.shards import Shards
from onelog.config.kafka import KafkaGroups
from onelog.observe import Sample, get_logger
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.answers import (
    JoinAnswer,
    Joining,
    Leaving,
    SyncAnswer,
    Syncing,
)
from onelog.protocols.kafka.groups.deleted_topics import DeletedTopics
from onelog.protocols.kafka.groups.group import Group
from onelog.protocols.kafka.groups.journal import LOST, Journals, write_code
from onelog.protocols.kafka.groups.kept import Keep, snapshot
from onelog.protocols.kafka.groups.offset_store import Offsets
from onelog.protocols.kafka.groups.rows import (
    STREAM,
    GroupRow,
    encode_group,
    group_key,
    name_of,
    read_rows,
)
from onelog.protocols.kafka.groups.states import DELETE, State

GROUP_ID_CHARS_MAX: Final = 1024
REASON_CHARS: Final = 255
"""Characters of a member's reason in the log."""
SWEEP_AT_ONCE: Final = 500
"""Groups that are looked at before others have a turn."""

_log = get_logger("kafka")

Answer = TypeVar("Answer", JoinAnswer, SyncAnswer)


class Timer(Protocol):
    """A call that will come, unless it is cancelled."""

    def cancel(self) -> None:
        """Never call."""
        ...


CallAt = Callable[[float, Callable[[], None]], Timer]


class GroupEntry:
    """A group and its timer."""

    __slots__ = ("generation", "group", "size_bytes", "timer", "timer_at")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.generation = group.generation
        self.size_bytes = 0
        """The memory of its members when that was last counted."""
        self.timer: Timer | None = None
        self.timer_at = 0.0


class Groups:
    """Every group of the shards that this node owns. Make one with `Groups.open`."""

    name: Final = "kafka-groups"

    def __init__(
        self,
        table: KeptTable,
        shards: Shards,
        settings: KafkaGroups,
        clock: Clock,
        call_at: CallAt,
    ) -> None:
        self.settings = settings
        self._table = table
        self._shards = shards
        self._clock = clock
        self._call_at = call_at
        self._journals = Journals(table, shards.of)
        self.offsets = Offsets(self._journals, settings, clock, self._ensure)
        self._entries: dict[str, GroupEntry] = {}
        self._size_bytes = 0
        self._deleted_topics: DeletedTopics | None = None
        self._sweep_timer: Timer | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.rebalances = 0
        """Generations that began."""

    @classmethod
    async def open(
        cls,
        broker: Broker,
        settings: KafkaGroups,
        clock: Clock,
        call_at: CallAt | None = None,
    ) -> Groups:
        """Recover every group of the shards that this node owns. Raises StateUnknown."""
        table = await KeptTable.make(broker.streams, clock, STREAM, name_of)
        later = call_at or asyncio.get_running_loop().call_at
        groups = cls(table, broker.shards, settings, clock, later)
        await broker.shards.register(groups)
        groups._deleted_topics = DeletedTopics(broker, groups.offsets.forget_topics)
        groups._sweep_later()
        return groups

    # -- shards

    async def take(self, shard: int) -> None:
        """Recover the groups of a shard. Members have a whole session timeout to send a heartbeat.

        Raises StateUnknown.
        """
        rows = await self._table.load(shard)
        self._journals.open(shard)
        await self._recover(rows)

    async def _recover(self, rows: Mapping[bytes, bytes]) -> None:
        taken: list[GroupEntry] = []
        for number, row in enumerate(read_rows(rows.items()), 1):
            entry = self._entries.get(row.group)
            if isinstance(row, GroupRow):
                group = Group.recovered(row.group, row.kept, self.settings, self._clock)
                if entry is None:
                    entry = GroupEntry(group)
                    taken.append(entry)
                else:  # an offset of it came first
                    entry.group, entry.generation = group, group.generation
                self._entries[row.group] = entry
            else:
                self.offsets.recover(row)
                if entry is None:
                    entry = GroupEntry(Group(row.group, self.settings, self._clock))
                    self._entries[row.group] = entry
                    taken.append(entry)
            if number % SWEEP_AT_ONCE == 0:
                await asyncio.sleep(0)
        for entry in taken:
            self._settle(entry)

    async def drop(self, shard: int) -> None:
        """See `ShardService`: every waiting member hears that this is not its coordinator."""
        self._journals.lose(shard)
        for number, entry in enumerate(list(self._entries.values()), 1):
            name = entry.group.name
            if self._shards.of(name.encode()) == shard and self._entries.get(name) is entry:
                self._unload(entry)
            if number % SWEEP_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _unload(self, entry: GroupEntry) -> None:
        group = entry.group
        group.unload()
        self._answer(group)
        group.to_keep.clear()
        if entry.timer is not None:
            entry.timer.cancel()
        self._size_bytes -= entry.size_bytes
        del self._entries[group.name]
        self.offsets.unload(group.name)

    def check(self, name: str) -> None:
        """Raise NotOwner, StateLoading or StateUnknown unless this node answers for a group."""
        self._shards.check(self, name.encode())

    def owns(self, name: str) -> bool:
        """Whether this node, and no other, answers for a group. Raises StateLoading,
        StateUnknown."""
        try:
            self.check(name)
        except NotOwner:
            return False
        return True

    def epoch(self, name: str) -> int:
        """The epoch of this node as the owner of a group."""
        return self._table.epoch(self._shards.of(name.encode()))

    def complete(
        self, group: str, producer_id: int, committed: bool, coordinator_epoch: int
    ) -> asyncio.Future[None]:
        """End a transaction for a group. Raises OnelogError."""
        self.check(group)
        return self.offsets.complete(group, producer_id, committed, coordinator_epoch)

    @property
    def unlisted(self) -> OnelogError | None:
        """Why not all groups that this node owns can be listed; None: they can."""
        return self._shards.unlisted(self)

    async def close(self) -> None:
        """Stop every timer and write what is left. Waiting requests end with their connections."""
        self._shards.remove(self)
        if self._deleted_topics is not None:
            self._deleted_topics.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for entry in self._entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
        self._journals.flush()

    # -- looking

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> Group | None:
        """A group by its name."""
        entry = self._entries.get(name)
        return None if entry is None else entry.group

    def listed(self) -> Iterator[Group]:
        """Every group."""
        return (entry.group for entry in self._entries.values())

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield Sample("onelog_kafka_groups", "Consumer groups.", "gauge", len(self._entries))
        yield Sample("onelog_kafka_offsets", "Committed offsets.", "gauge", self.offsets.total)
        yield Sample(
            "onelog_kafka_rebalances_total",
            "Generations of consumer groups that began.",
            "counter",
            self.rebalances,
        )

    # -- members

    async def join(self, name: str, asked: Joining) -> JoinAnswer:
        """A member joins. Returns when its generation begins. Raises OnelogError."""
        settings = self.settings
        check_group_id(name)
        self.check(name)
        low, high = settings.session_timeout_min_ms, settings.session_timeout_max_ms
        if not low <= asked.session_timeout_ms <= high:
            raise KafkaError(
                ErrorCode.invalid_session_timeout,
                f"a session timeout of {asked.session_timeout_ms} ms is not in {low} to {high}",
            )
        if asked.size_bytes > settings.member_bytes:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"a member of {name} says {asked.size_bytes} bytes about itself, allowed are"
                f" {settings.member_bytes} (kafka.groups.member_bytes)",
            )
        self._check_room(name, asked.size_bytes, ErrorCode.group_max_size_reached)
        if asked.member_id and name not in self._entries:
            return JoinAnswer(error=ErrorCode.unknown_member_id, member_id=asked.member_id)
        group = self._ensure(name)
        return await self._ask(group, lambda ticket: group.join(ticket, asked), JoinAnswer)

    async def sync(self, name: str, asked: Syncing) -> SyncAnswer:
        """A member asks for its assignment. Returns when there is one. Raises OnelogError."""
        self.check(name)
        group = self.find(name)
        if group is None:
            return SyncAnswer(error=ErrorCode.unknown_member_id)
        given_bytes = sum(map(len, asked.assignments.values()))
        self._check_room(name, given_bytes, ErrorCode.invalid_request)
        return await self._ask(group, lambda ticket: group.sync(ticket, asked), SyncAnswer)

    def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """A heartbeat of a member. Raises OnelogError."""
        self.check(name)
        group = self.find(name)
        if group is None:
            return ErrorCode.unknown_member_id
        return group.heartbeat(member_id, instance_id, generation)

    def leave(self, name: str, leaving: Sequence[Leaving]) -> list[ErrorCode]:
        """Members leave. Raises OnelogError."""
        self.check(name)
        entry = self._entries.get(name)
        if entry is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        for row in leaving:
            if row.reason is not None:
                _log.debug(
                    "a member leaves",
                    group=name,
                    member=row.member_id,
                    why=row.reason[:REASON_CHARS],
                )
        errors = [entry.group.leave(row) for row in leaving]
        self._settle(entry)
        return errors

    def check_commit(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool = False,
    ) -> ErrorCode:
        """Whether this member may commit offsets for a group now.

        An unknown group is made by the commit of a client that is no member. Raises OnelogError.
        """
        self.check(name)
        group = self.find(name)
        if group is None:
            return ErrorCode.none if generation < 0 else ErrorCode.illegal_generation
        return group.check_commit(
            member_id, instance_id, generation, is_transactional=is_transactional
        )

    # -- deleting

    def delete(self, name: str) -> asyncio.Future[ErrorCode]:
        """Delete a group without members, with its offsets. The future is done when that is
        durable. Raises OnelogError."""
        self.check(name)
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        entry = self._entries.get(name)
        error = ErrorCode.group_id_not_found if entry is None else DELETE[entry.group.state]
        if entry is None or error is not ErrorCode.none:
            answer.set_result(error)
            return answer
        self._bury(entry, answer)
        return answer

    def _bury(self, entry: GroupEntry, answer: asyncio.Future[ErrorCode] | None = None) -> None:
        """Forget an empty group and its offsets; restore it when that fails."""
        group = entry.group
        last = snapshot(group)
        group.die()
        if entry.timer is not None:
            entry.timer.cancel()
        del self._entries[group.name]
        offsets = self.offsets.take_out(group.name)
        rows: list[KeptRow] = [*offsets.all_rows(), (group_key(group.name), None)]

        def done(error: OnelogError | None) -> None:
            is_kept = error is not None and not isinstance(error, LOST)
            if is_kept and group.name not in self._entries:
                _log.error("a group could not be deleted", group=group.name, error=str(error))
                revived = Group.recovered(group.name, last, self.settings, self._clock)
                self._entries[group.name] = GroupEntry(revived)
                self.offsets.put_back(offsets)
            if answer is not None and not answer.done():
                answer.set_result(ErrorCode.none if error is None else write_code(error))

        self._journals.put(group.name, rows, done)

    # -- the rim

    def _ensure(self, name: str) -> Group:
        entry = self._entries.get(name)
        if entry is None:
            if len(self._entries) >= self.settings.groups:
                raise KafkaError(
                    ErrorCode.group_max_size_reached,
                    f"there are {len(self._entries)} groups already (kafka.groups.groups)",
                )
            entry = self._entries[name] = GroupEntry(Group(name, self.settings, self._clock))
        return entry.group

    def _check_room(self, name: str, new_bytes: int, code: ErrorCode) -> None:
        if self._size_bytes + new_bytes > self.settings.total_bytes:
            raise KafkaError(
                code,
                f"the members of all groups would take more than {self.settings.total_bytes} bytes"
                f" with those of {name} (kafka.groups.total_bytes)",
            )

    async def _ask(
        self, group: Group, call: Callable[[asyncio.Future[Answer]], None], kind: type[Answer]
    ) -> Answer:
        ticket: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call(ticket)
        self._settle(self._entries[group.name])
        answer = await ticket
        assert isinstance(answer, kind)
        return answer

    def _settle(self, entry: GroupEntry) -> None:
        """Take a group's answers and rows, and set its timer."""
        group = entry.group
        self._answer(group)
        to_keep, group.to_keep = group.to_keep, []
        for keep in to_keep:
            row = (group_key(group.name), encode_group(keep.kept))
            self._journals.put(group.name, [row], partial(self._kept, entry, keep))
        self.rebalances += group.generation - entry.generation
        entry.generation = group.generation
        self._size_bytes += group.members.size_bytes - entry.size_bytes
        entry.size_bytes = group.members.size_bytes
        self._arm(entry)
        if group.generation == 0 and self._is_over(group):
            self._forget(entry)

    @staticmethod
    def _answer(group: Group) -> None:
        outbox, group.outbox = group.outbox, []
        for ticket, answer in outbox:
            future = cast("asyncio.Future[JoinAnswer | SyncAnswer]", ticket)
            if not future.done():  # its client may be gone
                future.set_result(answer)

    def _kept(self, entry: GroupEntry, keep: Keep, error: OnelogError | None) -> None:
        if error is not None:
            say = _log.info if isinstance(error, Timeout) else _log.error  # the shard moved
            say("a group could not be kept", group=entry.group.name, error=str(error))
        if entry.group.state is State.DEAD:
            return
        code = ErrorCode.none if error is None else write_code(error)
        entry.group.kept(keep, code)
        self._settle(entry)

    def _arm(self, entry: GroupEntry) -> None:
        at = entry.group.wake_at
        if at is None or (entry.timer is not None and entry.timer_at <= at):
            return
        if entry.timer is not None:
            entry.timer.cancel()
        entry.timer_at = at
        entry.timer = self._call_at(at, partial(self._wake, entry))

    def _wake(self, entry: GroupEntry) -> None:
        entry.timer = None
        if entry.group.state is State.DEAD:
            return
        entry.group.expire()
        self._settle(entry)

    # -- expiry

    def _is_over(self, group: Group) -> bool:
        return (
            group.state is State.EMPTY
            and not group.members.invited
            and self.offsets.find(group.name) is None
        )

    def _forget(self, entry: GroupEntry) -> None:
        """Forget a group that left no row."""
        entry.group.die()
        if entry.timer is not None:
            entry.timer.cancel()
        del self._entries[entry.group.name]

    def _sweep_later(self) -> None:
        at = self._clock.monotonic() + self.settings.offsets_check_ms / 1000
        self._sweep_timer = self._call_at(at, self._sweep_now)

    def _sweep_now(self) -> None:
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """Drop offsets that are too old, then groups without members and offsets."""
        for number, entry in enumerate(list(self._entries.values()), 1):
            if self._entries.get(entry.group.name) is entry:
                if self._is_over(entry.group):
                    self._bury(entry)
                else:
                    self.offsets.expire(entry.group)
            if number % SWEEP_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._sweep_later()


def check_group_id(name: str) -> None:
    """Refuse a group id that a group with members may not have."""
    if not 0 < len(name) <= GROUP_ID_CHARS_MAX:
        raise KafkaError(
            ErrorCode.invalid_group_id, f"a group id has 1 to {GROUP_ID_CHARS_MAX} characters"
        )
