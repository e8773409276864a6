"""The configuration of a stream: captures, engine, durability, retention, cleanup, tier, limits.

Rules: a configuration is checked as a whole before anything changes; an error names the key.
Everything may change while the stream runs, except its name, its engine and a smaller number of
partitions.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from onelog.base.errors import InvalidName, InvalidRequest
from onelog.base.limits import (
    BATCH_BYTES_MAX,
    CAPTURES_PER_STREAM_MAX,
    PARTITIONS_PER_STREAM_MAX,
    STREAM_NAME_CHARS_MAX,
)
from onelog.base.topics import check_filter, is_exact
from onelog.log.partition import Durability, Timestamps
from onelog.log.tier_config import (
    LocalWindow,
    TierConfig,
    bad_columns,
    beyond_total,
    changed_columns,
    field_bounds,
    tier_settings,
    unfit,
    window_of,
)
from onelog.record import compression
from onelog.storage.engine import LogSettings

INTERNAL_PREFIX: Final = "~"
"""Streams of the broker itself have this prefix: no client writes to them. Clients read those
that have captures, which is the audit trail.
"""

LONG_MAX: Final = 2**63 - 1
NO_BOUND_MS: Final = LONG_MAX
"""The value of a time that has no bound."""

AS_PRODUCED: Final = "producer"
CODECS: Final[dict[str, int]] = {
    "uncompressed": compression.NONE,
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}
"""The codecs of batches, with the number that a batch header has for each."""
STORED_AS: Final = (AS_PRODUCED, *CODECS)
"""How a stream may store batches that clients built."""

REPLICAS_MAX: Final = 32
"""Replicas of a partition."""
_INT_MAX: Final = 2**31 - 1
_CHOSEN_MAX: Final = 100
_KEPT_CHARS_MAX: Final = 32_767
_ROLL_AGE_MS_MIN: Final = 1000
"""The lower bound of a segment's size: smaller segments would make too many files."""
_NAME: Final = re.compile(r"~?[a-zA-Z0-9._-]+")


class Cleanup(StrEnum):
    """What retention does with old records."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"
    NONE = ""

    @property
    def deletes(self) -> bool:
        """Whether records leave by age and bytes."""
        return self in (Cleanup.DELETE, Cleanup.COMPACT_DELETE)

    @property
    def compacts(self) -> bool:
        """Whether only the last record of each key stays."""
        return self in (Cleanup.COMPACT, Cleanup.COMPACT_DELETE)


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """When records leave; -1 is never."""

    age_ms: int = 7 * 24 * 3600 * 1000
    bytes: int = -1
    """For the whole stream; each partition has an equal share."""
    consumed: bool = False
    """Drop segments that every durable cursor has passed."""
    pin_bytes_max: int = 10 * 1024**3
    """Bytes per partition that durable cursors may hold back from retention. Beyond that, they lose
    records."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """How a compacted stream is cleaned."""

    tombstone_ms: int = 24 * 3600 * 1000
    """How long a deleted key's tombstone stays readable."""
    min_dirty_ratio: float = 0.5
    """Clean when this share of the sealed bytes was written since the last cleaning."""
    min_lag_ms: int = 0
    """A segment whose newest record is younger than this is not cleaned yet."""
    max_lag_ms: int = NO_BOUND_MS
    """Clean when something older than this was not cleaned yet, however little it is."""


class Compression(msgspec.Struct, frozen=True, kw_only=True):
    """How batches that clients built are stored."""

    codec: str = AS_PRODUCED
    """One of `CODECS`; `producer` leaves each batch as it came."""
    gzip_level: int = -1
    lz4_level: int = 9
    zstd_level: int = 3

    @property
    def wanted(self) -> int | None:
        """The number of the codec; None: as the producer chose."""
        return CODECS.get(self.codec)

    @property
    def level(self) -> int | None:
        """The codec's level; None: the default of its library."""
        levels = {"gzip": self.gzip_level, "lz4": self.lz4_level, "zstd": self.zstd_level}
        level = levels.get(self.codec)
        return None if self.codec == "gzip" and level == -1 else level


class Replication(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes hold a stream; 0 is what the cluster gives."""

    factor: int = 0
    """Replicas of each partition, when it is made."""
    min_insync: int = 0
    """Replicas that must have a record before it is answered."""

    def min_insync_of(self, replicas: int) -> int:
        """How many of so many replicas must have a record: never more than there are."""
        return min(self.min_insync or (2 if replicas > 2 else 1), replicas)


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One stream."""

    name: str
    captures: tuple[str, ...] = ()
    partitions: int = 1
    engine: str = "segment"
    durability: Durability = Durability.FSYNC
    retention: Retention = Retention()
    cleanup: Cleanup = Cleanup.DELETE
    compaction: Compaction = Compaction()
    message_bytes_max: int = 16 * 1024 * 1024
    message_ttl_ms: int = -1
    segment_bytes: int = 256 * 1024 * 1024
    segment_age_ms: int = 7 * 24 * 3600 * 1000
    ring_bytes: int = 64 * 1024 * 1024
    timestamps: Timestamps = Timestamps.CREATE
    timestamp_before_max_ms: int = NO_BOUND_MS
    """How far behind the clock a record's own time may lie."""
    timestamp_after_max_ms: int = NO_BOUND_MS
    """How far ahead of the clock a record's own time may lie."""
    compression: Compression = Compression()
    tier: TierConfig = TierConfig()
    replication: Replication = Replication()
    kept: tuple[tuple[str, str], ...] = ()
    """Settings of a protocol that OneLog keeps and does not act on: (name, value)."""
    chosen: tuple[str, ...] = ()
    """Settings that were set for this stream, by the protocol's names; others have defaults."""

    @property
    def internal(self) -> bool:
        """Whether the stream belongs to the broker itself."""
        return self.name.startswith(INTERNAL_PREFIX)

    @property
    def hidden(self) -> bool:
        """Whether no topic lives in the stream: it holds state of the broker, not messages."""
        return self.internal and not self.captures

    @property
    def single_topic(self) -> str | None:
        """The one topic that it can hold, when it captures exactly one topic."""
        if len(self.captures) == 1 and is_exact(self.captures[0]):
            return self.captures[0]
        return None

    def partition_retention(self) -> Retention:
        """What one partition may keep."""
        if self.retention.bytes < 0:
            return self.retention
        share = self.retention.bytes // self.partitions
        return msgspec.structs.replace(self.retention, bytes=share)

    def local_window(self) -> LocalWindow:
        """What one partition keeps here of records that are in the object store, too."""
        total = self.retention
        return window_of(
            self.tier, age_ms=total.age_ms, size_bytes=total.bytes, partitions=self.partitions
        )

    @property
    def batch_bytes_max(self) -> int:
        """Bytes of the largest batch that the stream accepts."""
        return min(self.message_bytes_max, BATCH_BYTES_MAX)

    @property
    def roll_age_ms(self) -> int:
        """The age at which a segment is sealed."""
        age_ms = self.segment_age_ms
        if self.cleanup.compacts:  # records that are not sealed cannot be cleaned in time
            age_ms = min(age_ms, self.compaction.max_lag_ms)
        return max(age_ms, _ROLL_AGE_MS_MIN)

    def log_settings(self) -> LogSettings:
        """The part of the configuration that the storage engine needs."""
        return LogSettings(
            segment_bytes=self.segment_bytes,
            segment_age_ms=self.roll_age_ms,
            topic_index=self.single_topic is None and not self.hidden,
            ring_bytes=self.ring_bytes,
            tier=tier_settings(self.tier, self.name, self.single_topic),
        )


def check_config(config: StreamConfig) -> StreamConfig:
    """Return the configuration if it can be used; raise InvalidRequest naming the key otherwise."""
    check_fields(config)
    lag = config.compaction
    if lag.min_lag_ms > lag.max_lag_ms:
        raise InvalidRequest(
            f"stream {config.name}: compaction.min_lag_ms ({lag.min_lag_ms}) is more than"
            f" compaction.max_lag_ms ({lag.max_lag_ms})"
        )
    if config.engine == "object" and config.durability is Durability.OS:
        raise InvalidRequest(
            f"stream {config.name}: durability = os is not possible with the engine object, which"
            " hands nothing to the operating system: choose fsync (answered when the message is in"
            " the store) or memory (answered at once, lost with the process)"
        )
    problem = (
        tier_problem(config)
        or beyond_total(
            config.tier, age_ms=config.retention.age_ms, size_bytes=config.retention.bytes
        )
        or bad_columns(config.tier)
    )
    if problem is not None:
        raise InvalidRequest(f"stream {config.name}: {problem}")
    return config


def tier_problem(config: StreamConfig) -> str | None:
    """Why a stream of this kind cannot have its tier; None: it can."""
    return unfit(config.tier, engine=config.engine, compacts=config.cleanup.compacts)


def check_fields(config: StreamConfig) -> StreamConfig:
    """As `check_config`, for each field alone."""
    name = config.name
    if not _NAME.fullmatch(name) or len(name) > STREAM_NAME_CHARS_MAX or name in (".", ".."):
        raise InvalidName(
            f"a stream name is 1 to {STREAM_NAME_CHARS_MAX} of a-z A-Z 0-9 . _ -, not {name!r}"
        )
    for capture in config.captures:
        check_filter(capture)
    if len(set(config.captures)) != len(config.captures):
        raise InvalidRequest(f"stream {name}: captures names a filter twice")
    bounds: tuple[tuple[str, int, int, int], ...] = (
        ("captures", len(config.captures), 0, CAPTURES_PER_STREAM_MAX),
        ("partitions", config.partitions, 1, PARTITIONS_PER_STREAM_MAX),
        ("message_bytes_max", config.message_bytes_max, 128, _INT_MAX),
        ("segment_bytes", config.segment_bytes, 4096, _INT_MAX),
        ("segment_age_ms", config.segment_age_ms, 1, LONG_MAX),
        ("ring_bytes", config.ring_bytes, 4096, 2**40),
        ("retention.age_ms", config.retention.age_ms, -1, LONG_MAX),
        ("retention.bytes", config.retention.bytes, -1, LONG_MAX),
        ("retention.pin_bytes_max", config.retention.pin_bytes_max, 0, LONG_MAX),
        ("compaction.tombstone_ms", config.compaction.tombstone_ms, 0, LONG_MAX),
        ("compaction.min_lag_ms", config.compaction.min_lag_ms, 0, LONG_MAX),
        ("compaction.max_lag_ms", config.compaction.max_lag_ms, 1, LONG_MAX),
        ("compression.gzip_level", config.compression.gzip_level, -1, 9),
        ("compression.lz4_level", config.compression.lz4_level, 1, 17),
        ("compression.zstd_level", config.compression.zstd_level, -131_072, 22),
        ("timestamp_before_max_ms", config.timestamp_before_max_ms, 0, LONG_MAX),
        ("timestamp_after_max_ms", config.timestamp_after_max_ms, 0, LONG_MAX),
        ("message_ttl_ms", config.message_ttl_ms, -1, LONG_MAX),
        ("replication.factor", config.replication.factor, 0, REPLICAS_MAX),
        ("replication.min_insync", config.replication.min_insync, 0, _INT_MAX),
        ("chosen", len(config.chosen), 0, _CHOSEN_MAX),
        ("kept", len(config.kept), 0, _CHOSEN_MAX),
        ("kept", max((len(text) for _, text in config.kept), default=0), 0, _KEPT_CHARS_MAX),
        *field_bounds(config.tier),
    )
    for key, value, low, high in bounds:
        if not low <= value <= high:
            raise InvalidRequest(f"stream {name}: {key} must be {low} to {high}, not {value}")
    if not 0 <= config.compaction.min_dirty_ratio <= 1:
        raise InvalidRequest(f"stream {name}: compaction.min_dirty_ratio must be 0 to 1")
    if config.compression.gzip_level == 0:
        raise InvalidRequest(f"stream {name}: compression.gzip_level must be -1 or 1 to 9, not 0")
    if config.compression.codec not in STORED_AS:
        raise InvalidRequest(
            f"stream {name}: compression.codec must be one of {', '.join(STORED_AS)}"
        )
    return config


def check_change(old: StreamConfig, new: StreamConfig) -> StreamConfig:
    """Return the new configuration if a running stream can take it."""
    check_config(new)
    if new.name != old.name:
        raise InvalidRequest(f"stream {old.name} cannot be renamed to {new.name}")
    if new.engine != old.engine:
        raise InvalidRequest(
            f"stream {old.name}: engine stays {old.engine}; make a new stream with {new.engine}"
            " and let it capture the topics"
        )
    if new.partitions < old.partitions:
        raise InvalidRequest(f"stream {old.name}: partitions cannot shrink below {old.partitions}")
    problem = changed_columns(old.tier, new.tier)
    if problem is not None:
        raise InvalidRequest(f"stream {old.name}: {problem}")
    return new
