"""The members of a group: which wait, which one leads, and which protocols all of them offer.

Rules: one leader as long as there are members. A static member (one with an instance id) has one
member id at a time. Counts are updated as members come and go, so that a join in a group of
thousands does not look at all members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onelog.protocols.kafka.errors import ErrorCode

Ticket = Any
"""Comes from the coordinator with a request that may wait, and goes back with the answer."""

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols of a member: name and metadata, the preferred one first."""

MEMBER_OVERHEAD_BYTES = 512
"""The memory of a member beside the bytes that its client chose."""


@dataclass(slots=True, eq=False)
class Member:
    """One member of a group."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """It has not had an answer yet, so it cannot send heartbeats."""
    deadline: float | None = None
    """When its session ends; None: while it waits for an answer."""
    joining: Ticket | None = None
    """Its JoinGroup that waits for the generation."""
    syncing: Ticket | None = None
    """Its SyncGroup that waits for the assignment."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return (
            MEMBER_OVERHEAD_BYTES
            + len(self.assignment)
            + len(self.client_id)
            + sum(len(name) + len(metadata) for name, metadata in self.protocols)
        )

    def metadata(self, protocol: str | None) -> bytes:
        """Its metadata of a protocol; empty when it does not offer that."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Members:
    """All members of a group, in the order in which they came."""

    by_id: dict[str, Member] = field(default_factory=dict)
    by_instance: dict[str, str] = field(default_factory=dict)
    """Instance id → the member id that it has now."""
    invited: dict[str, float] = field(default_factory=dict)
    """Member ids that were handed out and have not joined yet, and when they expire."""
    leader: str | None = None
    size_bytes: int = 0
    _joining: int = 0
    _offered: Counter[str] = field(default_factory=Counter)
    """Protocol → how many members offer it."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.by_id

    def find(self, member_id: str, instance_id: str | None) -> tuple[Member | None, ErrorCode]:
        """A member by its ids, or the error why it is none. For a static member only the newest id
        counts."""
        if instance_id is not None:
            current = self.by_instance.get(instance_id)
            if current is None:
                return None, ErrorCode.unknown_member_id
            if current != member_id:
                return None, ErrorCode.fenced_instance_id
        return self.by_id.get(member_id), ErrorCode.unknown_member_id

    def deadlines(self) -> Iterator[float]:
        """When sessions end and unused member ids expire."""
        yield from self.invited.values()
        yield from (member.deadline for member in self if member.deadline is not None)

    # -- coming and going

    def add(self, member: Member) -> None:
        """Take a member in; the first one leads."""
        assert member.id not in self.by_id
        if member.instance_id is not None:
            assert member.instance_id not in self.by_instance
            self.by_instance[member.instance_id] = member.id
        self.by_id[member.id] = member
        self.invited.pop(member.id, None)
        self._count(member, 1)
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: Member) -> None:
        """Remove a member; it waits for nothing any more."""
        assert member.joining is None
        assert member.syncing is None
        del self.by_id[member.id]
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        self._count(member, -1)
        if self.leader == member.id:
            self.leader = next(iter(self.by_id), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member a new member id; its lead and its assignment stay."""
        assert member.instance_id is not None
        del self.by_id[member.id]
        if self.leader == member.id:
            self.leader = new_id
        member.id = new_id
        self.by_id[new_id] = member
        self.by_instance[member.instance_id] = new_id

    def change(self, member: Member, client_id: str, protocols: Protocols) -> None:
        """A member offers other protocols or other metadata."""
        self._count(member, -1)
        member.client_id = client_id
        member.protocols = protocols
        self._count(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set the assignment of a member."""
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _count(self, member: Member, step: int) -> None:
        self.size_bytes += step * member.size_bytes
        for name in {name for name, _metadata in member.protocols}:
            self._offered[name] += step
            if not self._offered[name]:
                del self._offered[name]

    # -- waiting for the generation

    def wait_join(self, member: Member, ticket: Ticket) -> Ticket | None:
        """A member has joined and waits. Returns an older request of it that still waited."""
        older, member.joining = member.joining, ticket
        if older is None:
            self._joining += 1
        return older

    def take_join(self, member: Member) -> Ticket | None:
        """The waiting request of a member, which is answered now."""
        ticket, member.joining = member.joining, None
        if ticket is not None:
            self._joining -= 1
        return ticket

    @property
    def joining(self) -> int:
        """How many members wait for the generation."""
        return self._joining

    @property
    def all_joined(self) -> bool:
        """Whether no member is missing."""
        return self._joining == len(self.by_id) and not self.invited

    def elect_joined(self) -> bool:
        """Give the lead to a member that has joined; False when none has."""
        if self.leader is not None and self.by_id[self.leader].joining is None:
            self.leader = next(
                (member.id for member in self if member.joining is not None), self.leader
            )
        return self.leader is not None and self.by_id[self.leader].joining is not None

    # -- protocols

    def common(self) -> set[str]:
        """The protocols that every member offers."""
        return {name for name, count in self._offered.items() if count == len(self.by_id)}

    def speak(self, names: set[str], changing: Member | None) -> bool:
        """Whether all would share a protocol with one more member that offers these.

        Earlier protocols of a member that joins again do not count.
        """
        own = set() if changing is None else {name for name, _metadata in changing.protocols}
        others = len(self.by_id) - (changing is not None)
        return not others or any(self._offered[name] - (name in own) == others for name in names)

    def elect_protocol(self) -> str:
        """Each member votes for its preferred protocol among those that all offer; the first of
        equals wins."""
        candidates = self.common()
        assert candidates, "members without a common protocol were let in"
        votes = Counter(
            next(name for name, _metadata in member.protocols if name in candidates)
            for member in self
        )
        return votes.most_common(1)[0][0]

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self), default=0)
