"""How groups behave, and every bound on what their clients choose."""

from __future__ import annotations

import msgspec


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times and limits of groups. The defaults are Kafka's where it has one, except the delay."""

    initial_rebalance_delay_ms: int = 500
    """How long the first members of an empty group wait for others that start with them. Kafka
    waits 3000 ms: a new consumer then gets nothing for three seconds. One rebalance more at the
    start costs less than that."""
    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 30 * 60 * 1000
    groups: int = 100_000
    """Groups in total."""
    members_per_group: int = 5_000
    member_bytes: int = 1024 * 1024
    """What one member may say about itself: its protocols with their metadata."""
    group_bytes: int = 16 * 1024 * 1024
    """The same of all members of one group, with their assignments."""
    total_bytes: int = 256 * 1024 * 1024
    """The same of all groups."""
    offset_metadata_bytes: int = 4096
    """Metadata of one committed offset."""
    offsets_per_group: int = 100_000
    offsets: int = 1_000_000
    """Committed offsets in total."""
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    """How long the offsets of a group without members are kept, and those of topics that its
    members do not read any more."""
    offsets_check_interval_ms: int = 10 * 60 * 1000
    """How often old offsets and dead groups are looked for."""
