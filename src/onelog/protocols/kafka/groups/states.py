"""The states of a group, and what each of them answers, as tables.

A group is EMPTY without members: it may still hold committed offsets. The first member that joins
takes it to PREPARING, where it waits for every member to join (again). When all have, or the
rebalance timeout has passed, a new generation begins and each member gets its answer: COMPLETING.
The leader of the generation sends the assignments with SyncGroup; once they are kept durably the
group is STABLE. A member that comes, goes or changes takes it back to PREPARING. Without members
and offsets it is DEAD and forgotten. For this node it is DEAD, too, once another node owns it.

A pair that is not in `FOLLOWS` is a bug.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from onelog.protocols.kafka.errors import ErrorCode


class State(StrEnum):
    """The state of a group; the values are the names that ListGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = State
_E = ErrorCode

FOLLOWS: Final[dict[State, frozenset[State]]] = {
    _S.EMPTY: frozenset({_S.PREPARING, _S.DEAD}),
    _S.PREPARING: frozenset({_S.COMPLETING, _S.EMPTY, _S.DEAD}),
    _S.COMPLETING: frozenset({_S.STABLE, _S.PREPARING, _S.DEAD}),
    _S.STABLE: frozenset({_S.PREPARING, _S.DEAD}),
    _S.DEAD: frozenset(),
}
"""Which state may follow which."""

HEARTBEAT: Final[dict[State, ErrorCode]] = {
    _S.EMPTY: _E.unknown_member_id,
    _S.PREPARING: _E.rebalance_in_progress,
    _S.COMPLETING: _E.none,
    _S.STABLE: _E.none,
    _S.DEAD: _E.coordinator_not_available,
}
"""The answer to a heartbeat of a member of this generation."""

SYNC: Final[dict[State, ErrorCode]] = {
    _S.EMPTY: _E.unknown_member_id,
    _S.PREPARING: _E.rebalance_in_progress,
    _S.COMPLETING: _E.none,
    _S.STABLE: _E.none,
    _S.DEAD: _E.coordinator_not_available,
}
"""The answer to a SyncGroup of a member of this generation; `none` waits or has its assignment."""

COMMIT: Final[dict[State, ErrorCode]] = {
    _S.EMPTY: _E.none,
    _S.PREPARING: _E.none,
    _S.COMPLETING: _E.rebalance_in_progress,
    _S.STABLE: _E.none,
    _S.DEAD: _E.coordinator_not_available,
}
"""The answer to a commit. While a rebalance is prepared the old generation may still commit. Once
the new one has begun, its members know that other members may have their partitions."""

DELETE: Final[dict[State, ErrorCode]] = {
    _S.EMPTY: _E.none,
    _S.PREPARING: _E.non_empty_group,
    _S.COMPLETING: _E.non_empty_group,
    _S.STABLE: _E.non_empty_group,
    _S.DEAD: _E.group_id_not_found,
}
"""The answer to DeleteGroups."""
