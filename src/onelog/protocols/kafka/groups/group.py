"""One consumer group as a state machine: joins and leaves go in, generations come out.

Rules:
- It knows no loop, socket or disk. A request that may wait comes with a ticket. Answers go to
  `outbox`, rows to keep go to `to_keep`, and the coordinator takes both after every call. Time
  comes from a clock; the coordinator calls `expire` at `wake_at`.
- All members of a generation get their answers at once, and only members that have joined.
- Assignments are handed out when they are durable, not before (I4).
- Every ticket is answered exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import uuid4

from onelog.base.clock import Clock
from onelog.config.kafka import KafkaGroups
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.groups.admission import refusal
from onelog.protocols.kafka.groups.answers import (
    JoinAnswer,
    Joining,
    Leaving,
    SyncAnswer,
    Syncing,
    join_answer,
    sync_answer,
)
from onelog.protocols.kafka.groups.countdown import Countdown, Phase
from onelog.protocols.kafka.groups.kept import Keep, KeptGroup, snapshot
from onelog.protocols.kafka.groups.members import Member, Members, Ticket
from onelog.protocols.kafka.groups.states import COMMIT, FOLLOWS, HEARTBEAT, SYNC, State

NEW_MEMBER_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a new member's first join may wait: its client, if still there, asks again."""

STATIC_ABSENCE_MS: Final = 1000
"""The least time to wait for static members when all of them are away."""


class Group:
    """A group's members, generation and state."""

    def __init__(
        self,
        name: str,
        settings: KafkaGroups,
        clock: Clock,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Members()
        self.since_ms = int(clock.now_ms())
        self.outbox: list[tuple[Ticket, JoinAnswer | SyncAnswer]] = []
        self.to_keep: list[Keep] = []
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._countdown = Countdown(clock)
        self._unsynced: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self._keeping: KeptGroup | None = None
        """The assignments of this generation that are being written."""

    @property
    def wake_at(self) -> float | None:
        """When `expire` has something to do, or a little before: never later."""
        return self._countdown.wake_at

    @classmethod
    def recovered(cls, name: str, kept: KeptGroup, settings: KafkaGroups, clock: Clock) -> Group:
        """A group from its kept row: its members go on with their heartbeats."""
        group = cls(name, settings, clock)
        group.generation = kept.generation
        group.protocol_type = kept.protocol_type
        group.protocol = kept.protocol
        group.since_ms = kept.since_ms
        for row in kept.members:
            member = row.revive(kept.protocol or "")
            group.members.add(member)
            group._await_heartbeat(member)
        if kept.members:
            group.state = State.STABLE
            if kept.leader is not None and kept.leader in group.members:
                group.members.leader = kept.leader
        return group

    # -- JoinGroup

    def join(self, ticket: Ticket, asked: Joining) -> None:
        """A member joins, for the first time or again."""
        error = self._refusal(asked)
        if error is not ErrorCode.none:
            if error is ErrorCode.group_max_size_reached:
                self._turn_away(asked.member_id)
            self._refuse_join(ticket, error, asked.member_id)
        elif not asked.member_id:
            self._join_new(ticket, asked)
        else:
            self._join_known(ticket, asked)
        self._complete_join_if_all()

    def _refusal(self, asked: Joining) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        is_preparing = self.state is State.PREPARING
        return refusal(
            asked, self.members, self.protocol_type, self._settings, is_preparing=is_preparing
        )

    def _turn_away(self, member_id: str) -> None:
        """The group became too small for a member that was in it or had got an id."""
        self.members.invited.pop(member_id, None)
        member = self.members.by_id.get(member_id)
        if member is not None:
            self._remove(member)

    def _join_new(self, ticket: Ticket, asked: Joining) -> None:
        new_id = f"{asked.instance_id or asked.client_id}-{self._new_id()}"
        if asked.instance_id is not None:
            current = self.members.by_instance.get(asked.instance_id)
            if current is not None:
                self._replace(self.members.by_id[current], new_id, ticket, asked)
                return
        elif asked.needs_known_id:
            self.members.invited[new_id] = self._countdown.after(asked.session_timeout_ms)
            self._refuse_join(ticket, ErrorCode.member_id_required, new_id)
            return
        self._add(new_id, ticket, asked)

    def _join_known(self, ticket: Ticket, asked: Joining) -> None:
        if asked.member_id in self.members.invited and asked.instance_id is None:
            self._add(asked.member_id, ticket, asked)
            return
        member, error = self.members.find(asked.member_id, asked.instance_id)
        if member is None:
            self._refuse_join(ticket, error, asked.member_id)
            return
        unchanged = member.protocols == asked.protocols
        # A member that missed its answer asks again; a member of a stable group that changes
        # nothing keeps its place. A leader that joins a stable group wants a new assignment.
        is_told_again = unchanged and (
            self.state is State.COMPLETING
            or (self.state is State.STABLE and self.members.leader != member.id)
        )
        if is_told_again:
            self._await_heartbeat(member)
            self.outbox.append((ticket, join_answer(self, member)))
        else:
            self._update(member, ticket, asked)
            self._prepare()

    def _add(self, member_id: str, ticket: Ticket, asked: Joining) -> None:
        if not len(self.members):
            self.protocol_type = asked.protocol_type
        member = Member(
            id=member_id,
            instance_id=asked.instance_id,
            client_id=asked.client_id,
            client_host=asked.client_host,
            session_timeout_ms=asked.session_timeout_ms,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            protocols=asked.protocols,
            is_new=True,
            deadline=self._countdown.after(NEW_MEMBER_TIMEOUT_MS),
        )
        self.members.add(member)
        self.members.wait_join(member, ticket)
        self._countdown.grew()
        self._prepare()

    def _update(self, member: Member, ticket: Ticket, asked: Joining) -> None:
        self.members.change(member, asked.client_id, asked.protocols)
        member.client_host = asked.client_host
        member.session_timeout_ms = asked.session_timeout_ms
        member.rebalance_timeout_ms = asked.rebalance_timeout_ms
        older = self.members.wait_join(member, ticket)
        if older is not None:  # its client gave that request up
            self._refuse_join(older, ErrorCode.rebalance_in_progress, member.id)

    def _replace(self, member: Member, new_id: str, ticket: Ticket, asked: Joining) -> None:
        """A static member is back without its member id: it gets a new one and keeps its place.

        The old id is fenced (KIP-345). A stable group is not disturbed, unless the member's
        protocols would make it elect another one.
        """
        old_id, old_leader = member.id, self.members.leader
        self._answer_waiting(member, ErrorCode.fenced_instance_id)
        self.members.rename(member, new_id)
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new_id)
        self._update(member, ticket, asked)
        self._await_heartbeat(member)
        if self.state is State.STABLE and self.members.elect_protocol() == self.protocol:
            answer = join_answer(self, member)
            if asked.can_skip_assignment:
                answer = replace(answer, skip_assignment=self.members.leader == new_id)
            else:
                # It cannot be told to skip its assignment, which a stable group would not hand out:
                # so the answer says that the old id leads.
                answer = replace(answer, leader=old_leader or "", members=())
            self.to_keep.append(Keep(snapshot(self), ticket, answer))
        else:
            self._prepare()

    # -- a rebalance

    def _prepare(self) -> None:
        """Ask every member to join again, unless that is under way."""
        if self.state is State.PREPARING:
            return
        if self.state is State.COMPLETING:
            self._answer_syncs(ErrorCode.rebalance_in_progress)
        self._keeping = None
        self._unsynced.clear()
        delay_ms = self._settings.initial_rebalance_delay_ms
        if self.state is State.EMPTY and delay_ms:
            self._countdown.gather(delay_ms, self.members.rebalance_timeout_ms)
        else:
            self._countdown.start(Phase.JOINING, self.members.rebalance_timeout_ms)
        self._move(State.PREPARING)
        self._complete_join_if_all()

    def _complete_join_if_all(self) -> None:
        if self._countdown.phase is Phase.JOINING and self.members.all_joined:
            self._complete_join()

    def _complete_join(self) -> None:
        """Begin the next generation with the members that joined."""
        for member in list(self.members):
            if member.joining is None and member.instance_id is None:
                self._remove(member)
        if len(self.members) and not self.members.elect_joined():
            # Only static members that are away: their sessions decide.
            wait_ms = max(self.members.rebalance_timeout_ms, STATIC_ABSENCE_MS)
            self._countdown.start(Phase.JOINING, wait_ms)
            return
        self._countdown.stop()
        self.generation += 1
        if not len(self.members):
            self.protocol = None
            self._move(State.EMPTY)
            self.to_keep.append(Keep(snapshot(self)))
            return
        self.protocol = self.members.elect_protocol()
        self._move(State.COMPLETING)
        for member in self.members:
            self.members.assign(member, b"")
            member.is_new = False
            self._unsynced.add(member.id)
            self._await_heartbeat(member)
            ticket = self.members.take_join(member)
            if ticket is not None:
                self.outbox.append((ticket, join_answer(self, member)))
        self._countdown.start(Phase.SYNCING, self.members.rebalance_timeout_ms)

    # -- SyncGroup

    def sync(self, ticket: Ticket, asked: Syncing) -> None:
        """A member asks for its assignment; the leader brings all assignments."""
        member, error = self._find_current(asked.member_id, asked.instance_id, asked.generation)
        if member is None:
            self._refuse_sync(ticket, error)
        elif asked.protocol_type not in (None, self.protocol_type) or asked.protocol not in (
            None,
            self.protocol,
        ):
            self._refuse_sync(ticket, ErrorCode.inconsistent_group_protocol)
        elif SYNC[self.state] is not ErrorCode.none:
            self._refuse_sync(ticket, SYNC[self.state])
        else:
            self._synced(member)
            if self.state is State.STABLE:
                self._await_heartbeat(member)
                self.outbox.append((ticket, sync_answer(self, member)))
            else:
                self._wait_sync(member, ticket, asked.assignments)

    def _wait_sync(self, member: Member, ticket: Ticket, assignments: dict[str, bytes]) -> None:
        older, member.syncing = member.syncing, ticket
        if older is not None:  # its client gave that request up
            self._refuse_sync(older, ErrorCode.rebalance_in_progress)
        if member.id != self.members.leader or self._keeping is not None:
            return
        given = {row.id: assignments.get(row.id, b"") for row in self.members}
        if self.members.size_bytes + sum(map(len, given.values())) > self._settings.group_bytes:
            member.syncing = None
            self._refuse_sync(ticket, ErrorCode.invalid_request)
            self._prepare()
            return
        self._keeping = snapshot(self, given)
        self.to_keep.append(Keep(self._keeping))

    def kept(self, keep: Keep, error: ErrorCode = ErrorCode.none) -> None:
        """Rows that the group asked to keep are durable, or could not be kept."""
        if keep.answer is not None:
            member = self.members.by_id.get(keep.answer.member_id)
            if member is not None and member.joining is keep.ticket and self.state is State.STABLE:
                self.members.take_join(member)
                self._await_heartbeat(member)
                answer = keep.answer if error is ErrorCode.none else JoinAnswer(error=error)
                self.outbox.append((keep.ticket, answer))
        elif keep.kept is self._keeping:
            self._keeping = None
            if error is not ErrorCode.none:
                self._answer_syncs(error)
                self._prepare()
                return
            for row in keep.kept.members:
                self.members.assign(self.members.by_id[row.member_id], row.assignment)
            self._move(State.STABLE)
            self._answer_syncs(ErrorCode.none)

    def _answer_syncs(self, error: ErrorCode) -> None:
        for member in self.members:
            ticket, member.syncing = member.syncing, None
            if ticket is None:
                continue
            self._await_heartbeat(member)
            if error is ErrorCode.none:
                self.outbox.append((ticket, sync_answer(self, member)))
            else:
                self._refuse_sync(ticket, error)

    def _synced(self, member: Member) -> None:
        self._unsynced.discard(member.id)
        if not self._unsynced and self._countdown.phase is Phase.SYNCING:
            self._countdown.stop()

    # -- Heartbeat, LeaveGroup, OffsetCommit

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A heartbeat of a member."""
        member, error = self._find_current(member_id, instance_id, generation)
        if member is None:
            return error
        self._await_heartbeat(member)
        return HEARTBEAT[self.state]

    def leave(self, leaving: Leaving) -> ErrorCode:
        """A member leaves, or an administrator removes it by its instance id."""
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self.members.by_instance.get(leaving.instance_id, "")
        if self.members.invited.pop(member_id, None) is not None:
            self._complete_join_if_all()
            return ErrorCode.none
        member, error = self.members.find(member_id, leaving.instance_id)
        if member is None:
            return error
        self._remove(member)
        self._rebalance_without()
        return ErrorCode.none

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool = False,
    ) -> ErrorCode:
        """Whether this member may commit offsets now.

        A client that is no member may do so only while there are no members, except in
        transactions: their older versions do not name the member.
        """
        if generation >= 0 or member_id or instance_id is not None:
            member, error = self._find_current(member_id, instance_id, generation)
            if member is None:
                return error
            self._await_heartbeat(member)
        elif not is_transactional and len(self.members):
            return ErrorCode.unknown_member_id
        if is_transactional and self.state is State.COMPLETING:
            return ErrorCode.none  # its producer knows no rebalances; the generation is enough
        return COMMIT[self.state]

    # -- time

    def expire(self) -> None:
        """Act on the deadlines that have passed."""
        now = self._clock.monotonic()
        invited = self.members.invited
        for member_id in [row for row, deadline in invited.items() if deadline <= now]:
            del invited[member_id]
        for member in list(self.members):
            if member.deadline is None or member.deadline > now:
                continue
            if not member.is_new and (member.joining is not None or member.syncing is not None):
                member.deadline = None  # it waits for an answer: its session goes on with that
            else:
                self._remove(member)
                self._rebalance_without()
        self._complete_join_if_all()
        if self._countdown.deadline <= now:
            self._phase_over()
        self._countdown.look_next(self.members.deadlines())

    def _phase_over(self) -> None:
        match self._countdown.phase:
            case Phase.GATHERING:
                if not self._countdown.gathers_on():
                    self._complete_join()
            case Phase.JOINING:
                self._complete_join()
            case Phase.SYNCING:
                for member_id in self._unsynced.copy():
                    self._remove(self.members.by_id[member_id])
                self._prepare()

    def _await_heartbeat(self, member: Member) -> None:
        member.deadline = self._countdown.after(member.session_timeout_ms)

    # -- the rest

    def die(self) -> None:
        """The group is deleted."""
        self._move(State.DEAD)

    def unload(self) -> None:
        """Another node coordinates it now: everybody that waits here looks for that node."""
        for member in self.members:
            self._answer_waiting(member, ErrorCode.not_coordinator)
        self._move(State.DEAD)

    def _move(self, state: State) -> None:
        assert state in FOLLOWS[self.state], f"{self.name}: {self.state} → {state}"
        self.state = state
        self.since_ms = int(self._clock.now_ms())

    def _find_current(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Member | None, ErrorCode]:
        """A member of this generation by its ids, or the error why it is none."""
        if self.state is State.DEAD:
            return None, ErrorCode.coordinator_not_available
        member, error = self.members.find(member_id, instance_id)
        if member is not None and generation != self.generation:
            return None, ErrorCode.illegal_generation
        return member, error

    def _remove(self, member: Member) -> None:
        """Remove a member; its waiting requests are refused, so that its client asks again."""
        self._answer_waiting(member, ErrorCode.unknown_member_id)
        self._synced(member)
        self.members.remove(member)

    def _rebalance_without(self) -> None:
        """A member has left: the others share its partitions."""
        if self.state is State.PREPARING:
            self._complete_join_if_all()
        elif self.state is not State.EMPTY:
            self._prepare()

    def _answer_waiting(self, member: Member, error: ErrorCode) -> None:
        ticket = self.members.take_join(member)
        if ticket is not None:
            self.outbox.append((ticket, JoinAnswer(error=error)))
        ticket, member.syncing = member.syncing, None
        if ticket is not None:
            self._refuse_sync(ticket, error)

    def _refuse_join(self, ticket: Ticket, error: ErrorCode, member_id: str) -> None:
        self.outbox.append((ticket, JoinAnswer(error=error, member_id=member_id)))

    def _refuse_sync(self, ticket: Ticket, error: ErrorCode) -> None:
        self.outbox.append((ticket, SyncAnswer(error=error)))
