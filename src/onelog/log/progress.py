"""How far a partition may be seen: from the ends of its replicas to the high watermark.

Rules:
- This replica says how far it has written and how far its disk has it; the answer is the high
  watermark as it is known now. The partition never lets the mark fall, nor pass its own end.
- A partition without other replicas has no Progress (`None`): its end at the stream's durability
  level is the high watermark.
- The code that hears of another replica (an ack, a change of the replicas that count) calls
  `Partition.moved`, which asks again. Nobody polls.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from onelog.base.ids import Offset


class Role(StrEnum):
    """What this replica is to the others."""

    LEADER = "leader"
    """It takes appends; the others copy it."""
    FOLLOWER = "follower"
    """It copies the leader, and may lead next."""
    OBSERVER = "observer"
    """It copies only records that all counting replicas have: it is never cut and never leads."""


class Progress(Protocol):
    """Knows the replicas of one partition."""

    def moved(self, written: Offset, durable: Offset) -> Offset:
        """This replica ends at `written`, its disk has all below `durable`. Returns the high
        watermark."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether the high watermark is at least what any leader before may have shown
        (KIP-207)."""
        ...

    @property
    def is_fresh(self) -> bool:
        """Whether what this replica shows as a leader can be trusted: another one has not led for
        longer than a registration lasts."""
        ...

    def let_compact(self, upto: Offset) -> None:
        """Everybody has seen to the records below: each replica may compact them."""
        ...


class Told:
    """The progress of a replica that copies: its leader tells it the high watermark."""

    __slots__ = ("compact_bound", "first", "offset")

    is_settled: Final = True
    """It shows only what its leader told it."""
    is_fresh: Final = True
    """It does not say that it shows everything: readers ask the leader."""

    def __init__(self) -> None:
        self.offset = Offset(0)
        self.first: Offset | None = None
        """What it showed when it first spoke to this copy."""
        self.compact_bound = Offset(0)
        """The leader lets its copies compact what lies below."""

    def tell(self, offset: Offset) -> None:
        """The leader's high watermark."""
        if self.first is None:
            self.first = offset
        self.offset = max(self.offset, offset)

    def let_compact(self, upto: Offset) -> None:
        """See `Progress`: the leader said so."""
        self.compact_bound = max(self.compact_bound, upto)

    def moved(self, written: Offset, durable: Offset) -> Offset:
        """The mark that the leader sent. Code that acknowledges copies does it here."""
        return min(self.offset, written)
