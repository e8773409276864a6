"""A generation as it is kept in `~groups`: what its members need to go on after a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from onelog.protocols.kafka.groups.answers import JoinAnswer
from onelog.protocols.kafka.groups.members import Member, Ticket

if TYPE_CHECKING:
    from onelog.protocols.kafka.groups.group import Group


class KeptMember(msgspec.Struct, frozen=True, array_like=True):
    """A member with its metadata of the elected protocol, and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes

    def revive(self, protocol: str) -> Member:
        """The member as it was."""
        return Member(
            id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=((protocol, self.metadata),),
            assignment=self.assignment,
        )


class KeptGroup(msgspec.Struct, frozen=True, array_like=True):
    """A generation."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    since_ms: int
    """Wall time when the group came into this state: the retention of an empty group counts from
    it."""
    members: tuple[KeptMember, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Keep:
    """Asks the coordinator to keep a generation, and to call the group when that is durable."""

    kept: KeptGroup
    ticket: Ticket | None = None
    answer: JoinAnswer | None = None
    """The waiting join of a static member that came back, and its answer. Without them this keeps
    the assignments of a generation, or a group that became empty."""


def snapshot(group: Group, assignments: dict[str, bytes] | None = None) -> KeptGroup:
    """The generation to keep, with these assignments or those that it has."""
    return KeptGroup(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.members.leader,
        since_ms=group.since_ms,
        members=tuple(
            KeptMember(
                member_id=row.id,
                instance_id=row.instance_id,
                client_id=row.client_id,
                client_host=row.client_host,
                session_timeout_ms=row.session_timeout_ms,
                rebalance_timeout_ms=row.rebalance_timeout_ms,
                metadata=row.metadata(group.protocol),
                assignment=row.assignment if assignments is None else assignments[row.id],
            )
            for row in group.members
        ),
    )
