"""Requests to a group and its answers, without versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.groups.members import Member, Protocols

if TYPE_CHECKING:
    from onelog.protocols.kafka.groups.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A JoinGroup request."""

    member_id: str
    """Empty: the client has none yet."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    needs_known_id: bool
    """A new member gets an id first and joins with it (version 4 on, KIP-394)."""
    can_skip_assignment: bool
    """Whether a static leader that comes back can be told to skip the assignment (version 9 on,
    KIP-814)."""

    @property
    def size_bytes(self) -> int:
        """The bytes that the client chose."""
        return len(self.client_id) + sum(
            len(name) + len(metadata) for name, metadata in self.protocols
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer to a JoinGroup."""

    error: ErrorCode = ErrorCode.none
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[MemberInfo, ...] = ()
    """All members for the leader, nothing for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncing:
    """A SyncGroup request."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    """None: the client's version does not have it."""
    assignments: dict[str, bytes]
    """Member id → assignment, from the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The answer to a SyncGroup."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """One member of a LeaveGroup request."""

    member_id: str
    """Empty: the member that has the instance id now."""
    instance_id: str | None
    reason: str | None = None


def join_answer(group: Group, member: Member) -> JoinAnswer:
    """The generation for one of its members."""
    rows = group.members if member.id == group.members.leader else ()
    return JoinAnswer(
        member_id=member.id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.members.leader or "",
        members=tuple(
            MemberInfo(
                member_id=row.id,
                instance_id=row.instance_id,
                metadata=row.metadata(group.protocol),
            )
            for row in rows
        ),
    )


def sync_answer(group: Group, member: Member) -> SyncAnswer:
    """The assignment of a member."""
    return SyncAnswer(
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        assignment=member.assignment,
    )
