"""The keys of the Kafka protocol: bounds of connections, topics, groups and transactions.

Rules: every number that a peer can choose has a bound. Names follow Kafka's own settings, with the
unit at the end.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from onelog.base.limits import PARTITIONS_PER_STREAM_MAX
from onelog.config.section import ConnectionLimits, Section

_MIB = 1024 * 1024
_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS


class KafkaLimits(ConnectionLimits, frozen=True, kw_only=True):
    """How much a client may ask for, and how much the broker holds for it."""

    request_bytes: Annotated[
        int, Meta(ge=4096, le=2**31 - 1, description="Bytes of one request.")
    ] = 100 * _MIB
    request_bytes_unauthenticated: Annotated[
        int, Meta(ge=4096, le=2**31 - 1, description="Bytes of one request before a login.")
    ] = 512 * 1024
    requests_waiting: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Requests of one connection that wait for their turn; beyond it the "
            "broker does not read the connection.",
        ),
    ] = 100
    fetch_bytes: Annotated[
        int, Meta(ge=1024, le=2**31 - 1, description="Bytes of records in one answer to a fetch.")
    ] = 55 * _MIB
    fetch_wait_ms: Annotated[
        int, Meta(ge=0, le=600_000, description="Longest wait of a fetch for new records.")
    ] = 60_000
    cold_wait_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=600_000,
            description="How long a fetch waits, beyond the client's own wait, for records that are"
            " not in memory but on the disk or in the object store. Then it is answered empty, and"
            " the client's next fetch finds them.",
        ),
    ] = 5000
    login_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="Time for TLS, and for the login if the listener needs one.",
        ),
    ] = 10_000
    reauth_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a login by SASL counts. Then the client has to log in again "
            "on the same connection (KIP-368), or the broker closes it; 0: for "
            "ever.",
        ),
    ] = 0
    idle_ms: Annotated[
        int,
        Meta(
            ge=1000,
            description="The broker closes a connection that has sent no request for so long.",
        ),
    ] = 10 * _MINUTE_MS


class KafkaTopics(Section, frozen=True, kw_only=True):
    """Topics that clients make."""

    auto_create: Annotated[
        bool, Meta(description="Whether the first use of an unknown topic creates it.")
    ] = True
    partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=PARTITIONS_PER_STREAM_MAX,
            description="Partitions of a new topic if its creator names no number.",
        ),
    ] = 4
    partitions_total: Annotated[
        int,
        Meta(
            ge=1, description="Partitions of all streams; beyond it no client can create a topic."
        ),
    ] = 100_000


class KafkaGroups(Section, frozen=True, kw_only=True):
    """Consumer groups."""

    session_timeout_min_ms: Annotated[
        int, Meta(ge=1, description="Shortest session timeout that a member may ask for.")
    ] = 6_000
    session_timeout_max_ms: Annotated[
        int, Meta(ge=1, description="Longest session timeout that a member may ask for.")
    ] = 30 * _MINUTE_MS
    initial_rebalance_delay_ms: Annotated[
        int,
        Meta(ge=0, le=60_000, description="How long the first member waits for others to join."),
    ] = 500
    members: Annotated[int, Meta(ge=1, description="Members of one group.")] = 10_000
    groups: Annotated[int, Meta(ge=1, description="Groups with members or offsets.")] = 100_000
    member_bytes: Annotated[
        int,
        Meta(ge=1024, description="Bytes of metadata that one member may send when it joins."),
    ] = _MIB
    group_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=32 * _MIB,
            description="Bytes of all members of one group, with their assignments.",
        ),
    ] = 16 * _MIB
    total_bytes: Annotated[
        int, Meta(ge=1024, description="Bytes of all members of all groups.")
    ] = 256 * _MIB
    metadata_bytes: Annotated[
        int, Meta(ge=0, le=65_535, description="Bytes of text beside a committed offset.")
    ] = 4096
    offsets_per_group: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Committed offsets of one group.")
    ] = 100_000
    offsets: Annotated[int, Meta(ge=1, description="Committed offsets of all groups.")] = 1_000_000
    offsets_retention_ms: Annotated[
        int, Meta(ge=1000, description="How long offsets of a group without members are kept.")
    ] = 7 * _DAY_MS
    offsets_check_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=_DAY_MS,
            description="How often offsets that are too old, and groups without any, are dropped.",
        ),
    ] = 10 * _MINUTE_MS


class KafkaTransactions(Section, frozen=True, kw_only=True):
    """Transactions."""

    timeout_max_ms: Annotated[
        int, Meta(ge=1000, description="Longest timeout that a producer may ask for.")
    ] = 15 * _MINUTE_MS
    ids: Annotated[
        int,
        Meta(
            ge=1,
            description="Transactional ids that the broker keeps; beyond it, the id that was "
            "unused for longest is deleted.",
        ),
    ] = 100_000
    partitions: Annotated[
        int, Meta(ge=1, description="Partitions and groups that one transaction may touch.")
    ] = 10_000
    id_expiry_ms: Annotated[
        int, Meta(ge=1000, description="A transactional id that was unused for so long is deleted.")
    ] = 7 * _DAY_MS
    marks: Annotated[
        int,
        Meta(
            ge=1,
            description="Queries (Spark) whose last linked batch the broker keeps. Beyond it, "
            "marks of finished jobs are deleted; if there are none, new queries are"
            " refused.",
        ),
    ] = 100_000
    mark_expiry_ms: Annotated[
        int,
        Meta(
            ge=1000,
            description="The mark of a query that linked nothing for so long is deleted: if the"
            " query then runs its last batch again, the rows are written again.",
        ),
    ] = 365 * _DAY_MS


class Kafka(Section, frozen=True, kw_only=True):
    """The Kafka protocol."""

    limits: KafkaLimits = KafkaLimits()
    topics: KafkaTopics = KafkaTopics()
    groups: KafkaGroups = KafkaGroups()
    transactions: KafkaTransactions = KafkaTransactions()
