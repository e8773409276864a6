"""The roles of the admin API: what somebody who was let in may do there."""

from __future__ import annotations

from enum import StrEnum


class AdminRole(StrEnum):
    """Each role may do all that the one before it may."""

    NONE = "none"
    """Nothing: a user of messaging protocols only."""
    VIEWER = "viewer"
    """Look at everything, messages included."""
    OPERATOR = "operator"
    """Also change what runs: streams, cursors, connections, messages."""
    ADMIN = "admin"
    """Also change who may come in, and settings."""

    def covers(self, needed: AdminRole) -> bool:
        """Whether this role may do all that the role `needed` may."""
        return _RANK[self] >= _RANK[needed]


_RANK = {role: rank for rank, role in enumerate(AdminRole)}


def greater(first: AdminRole, second: AdminRole) -> AdminRole:
    """The one of two roles that may do more."""
    return first if first.covers(second) else second


def lesser(first: AdminRole, second: AdminRole) -> AdminRole:
    """The one of two roles that may do less."""
    return second if first.covers(second) else first
