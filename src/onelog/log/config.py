"""What a stream is told: captures, engine, durability, retention, cleanup, limits.

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
from onelog.storage.engine import LogSettings

INTERNAL_PREFIX: Final = "~"
"""Streams of the broker itself: no capture reaches them, no client writes to them."""

_LONG_MAX: Final = 2**63 - 1
_CHOSEN_MAX: Final = 100
_NAME: Final = re.compile(r"~?[a-zA-Z0-9._-]+")


class Cleanup(StrEnum):
    """What retention does with old records."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """When records leave; -1 is never."""

    age_ms: int = 7 * 24 * 3600 * 1000
    bytes: int = -1
    """Of the whole stream; each partition has an equal share."""
    consumed: bool = False
    """Drop segments that every durable cursor has passed."""
    pin_bytes_max: int = 10 * 1024**3
    """Bytes per partition that durable cursors may hold back from retention; then they lose."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """How a compacted stream is cleaned."""

    tombstone_ms: int = 24 * 3600 * 1000
    """How long a deleted key's tombstone stays readable."""
    min_dirty_ratio: float = 0.5
    """Clean when this share of the sealed bytes was written since the last cleaning."""


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
    chosen: tuple[str, ...] = ()
    """Kafka's names of settings that were chosen for this stream; the others are defaults."""

    @property
    def internal(self) -> bool:
        """Whether it belongs to the broker itself."""
        return self.name.startswith(INTERNAL_PREFIX)

    @property
    def single_topic(self) -> str | None:
        """The one topic it can hold, when it captures exactly one."""
        if len(self.captures) == 1 and is_exact(self.captures[0]):
            return self.captures[0]
        return None

    def partition_retention(self) -> Retention:
        """What one partition may keep."""
        if self.retention.bytes < 0:
            return self.retention
        share = self.retention.bytes // self.partitions
        return msgspec.structs.replace(self.retention, bytes=share)

    def log_settings(self) -> LogSettings:
        """What the storage engine needs of it."""
        return LogSettings(
            segment_bytes=self.segment_bytes,
            segment_age_ms=self.segment_age_ms,
            topic_index=self.single_topic is None and not self.internal,
            ring_bytes=self.ring_bytes,
        )


def check_config(config: StreamConfig) -> StreamConfig:
    """Return the configuration if it can be used; raise InvalidRequest naming the key otherwise."""
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
        ("message_bytes_max", config.message_bytes_max, 128, BATCH_BYTES_MAX),
        ("segment_bytes", config.segment_bytes, 4096, 2**31 - 1),
        ("segment_age_ms", config.segment_age_ms, 1000, _LONG_MAX),
        ("ring_bytes", config.ring_bytes, 4096, 2**40),
        ("retention.age_ms", config.retention.age_ms, -1, _LONG_MAX),
        ("retention.bytes", config.retention.bytes, -1, _LONG_MAX),
        ("retention.pin_bytes_max", config.retention.pin_bytes_max, 0, _LONG_MAX),
        ("compaction.tombstone_ms", config.compaction.tombstone_ms, 0, _LONG_MAX),
        ("message_ttl_ms", config.message_ttl_ms, -1, _LONG_MAX),
        ("chosen", len(config.chosen), 0, _CHOSEN_MAX),
    )
    for key, value, low, high in bounds:
        if not low <= value <= high:
            raise InvalidRequest(f"stream {name}: {key} must be {low} to {high}, not {value}")
    if not 0 <= config.compaction.min_dirty_ratio <= 1:
        raise InvalidRequest(f"stream {name}: compaction.min_dirty_ratio must be 0 to 1")
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
    return new
