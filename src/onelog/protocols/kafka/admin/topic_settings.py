"""The table of topic settings: every one that Kafka knows, OneLog's own, and what each means.

Rules:
- Every field of a stream's configuration has a row, or is named in `STRUCTURAL`; a test checks
  this.
- Every value that Kafka accepts is accepted, kept and shown. If a setting has no effect here, its
  description begins with `No effect`, so that nobody relies on it (I9).
"""

from __future__ import annotations

import re
from typing import Final

from onelog.broker import STORED_AS, Cleanup, ColdFormat, Durability, StreamConfig, Timestamps
from onelog.protocols.kafka.admin.setting import (
    TopicSetting,
    at_least,
    fixed,
    kept,
    plain,
    with_field,
    with_kept,
    words,
)
from onelog.protocols.kafka.admin.values import LONG_MAX, ValueType

FILTER: Final = "onelog.filter"
ENGINE: Final = "onelog.engine"
FLUSH: Final = "flush.messages"
MIN_INSYNC: Final = "min.insync.replicas"
REMOTE: Final = ("remote.storage.enable", "onelog.tier.format")
"""Who sets one of these wants a tier, or wants none."""

STRUCTURAL: Final = frozenset(
    {"name", "captures", "partitions", "chosen", "kept", "replication.factor"}
)
"""Fields of a stream that are no settings: those that make the topic itself, and containers of
others."""

_THROTTLED: Final = re.compile(r"[0-9]+:[0-9]+")

_CLEANUPS: Final[dict[frozenset[str], Cleanup]] = {
    frozenset(): Cleanup.NONE,
    frozenset({"delete"}): Cleanup.DELETE,
    frozenset({"compact"}): Cleanup.COMPACT,
    frozenset({"compact", "delete"}): Cleanup.COMPACT_DELETE,
}


def _write_cleanup(config: StreamConfig, words: list[str]) -> StreamConfig:
    cleanup = _CLEANUPS.get(frozenset(words))
    if cleanup is None or len(set(words)) != len(words):
        raise ValueError("it is delete, compact, both or nothing")
    return with_field(config, "cleanup", cleanup)


def read_share(config: StreamConfig) -> int:
    """Bytes that each partition keeps."""
    return config.partition_retention().bytes


def write_share(config: StreamConfig, value: int) -> StreamConfig:
    """Kafka counts per partition, a stream as a whole."""
    whole = value * config.partitions
    # More than any disk holds is no bound.
    return with_field(config, "retention.bytes", -1 if value < 0 or whole > LONG_MAX else whole)


def read_local_share(config: StreamConfig) -> int:
    """Bytes of copied records that each partition keeps here."""
    whole = config.tier.local_bytes
    return whole if whole < 0 else whole // config.partitions


def write_local_share(config: StreamConfig, value: int) -> StreamConfig:
    """As `write_share`; -1 and -2 mean the same for a stream."""
    whole = value if value < 0 else value * config.partitions
    return with_field(config, "tier.local_bytes", -1 if whole > LONG_MAX else whole)


def _write_remote(config: StreamConfig, value: bool) -> StreamConfig:
    """A topic that has a format keeps it."""
    if value == config.tier.is_on:
        return config
    return with_field(config, "tier.format", ColdFormat.LOG if value else ColdFormat.NONE)


def _read_flush(config: StreamConfig) -> int:
    text = dict(config.kept).get(FLUSH)
    if config.durability is Durability.FSYNC:
        return 1 if text is None else int(text)
    return LONG_MAX if text is None or int(text) == 1 else int(text)


def _write_flush(config: StreamConfig, value: int) -> StreamConfig:
    """A request to sync every record sets `fsync`; no value takes that away."""
    if value < 1:
        raise ValueError("it is 1 or more")
    if value == 1:
        config = with_field(config, "durability", Durability.FSYNC)
    return with_kept(config, FLUSH, str(value))


def _read_min_insync(config: StreamConfig) -> int:
    said = config.replication.min_insync or int(dict(config.kept).get(MIN_INSYNC, 0))
    return said or config.replication.min_insync_of(config.replication.factor or 1)


def _write_min_insync(config: StreamConfig, value: int) -> StreamConfig:
    if value < 1:
        raise ValueError("it is 1 or more")
    config = with_kept(config, MIN_INSYNC, None)  # where it stood while it had no effect
    return with_field(config, "replication.min_insync", value)


def _check_throttled(words: list[str]) -> str:
    fits = words == ["*"] or all(_THROTTLED.fullmatch(word) for word in words)
    return "" if fits else "it is * or a list of partition:broker"


_T = ValueType

_ROWS: Final = (
    TopicSetting(
        "cleanup.policy",
        _T.LIST,
        "What is done with old records: delete them, keep the last one of each key (compact),"
        " both, or nothing (empty).",
        "log.cleanup.policy",
        ("cleanup",),
        lambda config: [word for word in config.cleanup.split(",") if word],
        _write_cleanup,
    ),
    plain(
        "compression.gzip.level",
        _T.INT,
        "compression.gzip_level",
        "compression.gzip.level",
        "Level of gzip where compression.type is gzip: -1 (the library's own) or 1 to 9.",
    ),
    plain(
        "compression.lz4.level",
        _T.INT,
        "compression.lz4_level",
        "compression.lz4.level",
        "Level of lz4 where compression.type is lz4: 1 to 17.",
    ),
    words(
        "compression.type",
        "compression.codec",
        "compression.type",
        {name: name for name in STORED_AS},
        "How batches of Kafka's producers are stored: as they came (producer), or compressed anew"
        " with this codec. Records of other protocols are stored as they are.",
    ),
    plain(
        "compression.zstd.level",
        _T.INT,
        "compression.zstd_level",
        "compression.zstd.level",
        "Level of zstd where compression.type is zstd: -131072 to 22.",
    ),
    plain(
        "delete.retention.ms",
        _T.LONG,
        "compaction.tombstone_ms",
        "log.cleaner.delete.retention.ms",
        "How long the tombstone of a deleted key stays readable in a compacted topic.",
    ),
    kept(
        "file.delete.delay.ms",
        _T.LONG,
        0,
        "log.segment.delete.delay.ms",
        "No effect: files go at once; readers that hold one keep it.",
        at_least(0),
    ),
    TopicSetting(
        FLUSH,
        _T.LONG,
        "1: a produce is answered when its records are on disk (onelog.durability=fsync). Any other"
        " value has no effect: onelog.durability alone says what a produce waits for.",
        "log.flush.interval.messages",
        ("durability",),
        _read_flush,
        _write_flush,
        kept=True,
    ),
    kept(
        "flush.ms",
        _T.LONG,
        1000,
        "log.flush.interval.ms",
        "No effect: records that nobody waits for are on disk after about a second.",
        at_least(0),
    ),
    kept(
        "follower.replication.throttled.replicas",
        _T.LIST,
        list[str](),
        None,
        "No effect: replicas copy as fast as they can.",
        _check_throttled,
    ),
    kept(
        "index.interval.bytes",
        _T.INT,
        4096,
        "log.index.interval.bytes",
        "No effect: two entries of the offset index are 4096 bytes of records apart.",
        at_least(0),
    ),
    kept(
        "leader.replication.throttled.replicas",
        _T.LIST,
        list[str](),
        None,
        "No effect: replicas copy as fast as they can.",
        _check_throttled,
    ),
    TopicSetting(
        "local.retention.bytes",
        _T.LONG,
        "Bytes of copied records that each partition keeps on the broker's disk, where"
        " remote.storage.enable is true; -1: no bound, -2: as retention.bytes.",
        "log.local.retention.bytes",
        ("tier.local_bytes",),
        read_local_share,
        write_local_share,
    ),
    plain(
        "local.retention.ms",
        _T.LONG,
        "tier.local_age_ms",
        "log.local.retention.ms",
        "Copied records older than this leave the broker's disk, where remote.storage.enable is"
        " true; -1: not by age, -2: as retention.ms.",
    ),
    plain(
        "max.compaction.lag.ms",
        _T.LONG,
        "compaction.max_lag_ms",
        "log.cleaner.max.compaction.lag.ms",
        "A compacted partition is cleaned when something in it is older than this and was not"
        " cleaned yet, whatever min.cleanable.dirty.ratio says.",
    ),
    plain(
        "max.message.bytes",
        _T.INT,
        "message_bytes_max",
        "message.max.bytes",
        "Bytes of the largest record batch that is taken, as it is stored; never more than 64 MiB.",
    ),
    plain(
        "message.timestamp.after.max.ms",
        _T.LONG,
        "timestamp_after_max_ms",
        "log.message.timestamp.after.max.ms",
        "How far ahead of the broker's clock the time of a record may lie that a Kafka producer"
        " sends; not looked at with LogAppendTime.",
    ),
    plain(
        "message.timestamp.before.max.ms",
        _T.LONG,
        "timestamp_before_max_ms",
        "log.message.timestamp.before.max.ms",
        "How far behind the broker's clock the time of a record may lie that a Kafka producer"
        " sends; not looked at with LogAppendTime.",
    ),
    words(
        "message.timestamp.type",
        "timestamps",
        "log.message.timestamp.type",
        {"CreateTime": Timestamps.CREATE, "LogAppendTime": Timestamps.APPEND},
        "Whether a record has the time that its producer gave it, or that of its append.",
    ),
    plain(
        "min.cleanable.dirty.ratio",
        _T.DOUBLE,
        "compaction.min_dirty_ratio",
        "log.cleaner.min.cleanable.ratio",
        "A compacted partition is cleaned when so much of it was written since the last time.",
    ),
    plain(
        "min.compaction.lag.ms",
        _T.LONG,
        "compaction.min_lag_ms",
        "log.cleaner.min.compaction.lag.ms",
        "How long every record of a compacted topic stays, also when its key has a newer one.",
    ),
    TopicSetting(
        MIN_INSYNC,
        _T.INT,
        "Replicas that must have a record before it is answered; with fewer in sync, nothing is"
        " taken. A topic with fewer replicas needs all of them.",
        MIN_INSYNC,
        ("replication.min_insync",),
        _read_min_insync,
        _write_min_insync,
        kept=True,
    ),
    kept(
        "preallocate",
        _T.BOOLEAN,
        False,
        "log.preallocate",
        "No effect: space is reserved as it is due.",
    ),
    TopicSetting(
        "remote.log.copy.disable",
        _T.BOOLEAN,
        "Whether sealed segments are no longer copied to the object store; what was copied stays"
        " readable.",
        None,
        ("tier.copy",),
        lambda config: not config.tier.copy,
        lambda config, value: with_field(config, "tier.copy", not value),
    ),
    plain(
        "remote.log.delete.on.disable",
        _T.BOOLEAN,
        "tier.delete_when_off",
        None,
        "Whether the copies in the object store go when remote.storage.enable becomes false;"
        " otherwise they stay readable until retention takes them.",
    ),
    TopicSetting(
        "remote.storage.enable",
        _T.BOOLEAN,
        "Whether sealed segments are copied to the broker's object store (store.url), as"
        " onelog.tier.format says.",
        None,
        ("tier.format",),
        lambda config: config.tier.is_on,
        _write_remote,
    ),
    TopicSetting(
        "retention.bytes",
        _T.LONG,
        "Bytes that each partition keeps; less than 0: no bound, shown as -1.",
        "log.retention.bytes",
        ("retention.bytes",),
        read_share,
        write_share,
    ),
    plain(
        "retention.ms",
        _T.LONG,
        "retention.age_ms",
        "log.retention.ms",
        "Records older than this may go; -1: never.",
    ),
    plain(
        "segment.bytes",
        _T.INT,
        "segment_bytes",
        "log.segment.bytes",
        "Size at which a segment is sealed; only sealed ones are deleted or compacted.",
    ),
    kept(
        "segment.index.bytes",
        _T.INT,
        10 * 1024 * 1024,
        "log.index.size.max.bytes",
        "No effect: indexes grow as they need.",
        at_least(4),
    ),
    kept(
        "segment.jitter.ms",
        _T.LONG,
        0,
        "log.roll.jitter.ms",
        "No effect: segments are sealed in time.",
        at_least(0),
    ),
    plain(
        "segment.ms",
        _T.LONG,
        "segment_age_ms",
        "log.roll.ms",
        "Age at which a segment is sealed, a second at least.",
    ),
    kept(
        "unclean.leader.election.enable",
        _T.BOOLEAN,
        False,
        "unclean.leader.election.enable",
        "No effect: a partition that was damaged stops, and nothing is given up by itself.",
    ),
    words(
        "onelog.durability",
        "durability",
        None,
        {str(level): level for level in Durability},
        "When a produce is answered: in memory, handed to the operating system (os), on disk"
        " (fsync).",
    ),
    words(
        ENGINE,
        "engine",
        None,
        {name: name for name in ("segment", "memory", "kv", "object")},
        "The storage engine. It is chosen when the topic is made.",
        at_creation=True,
    ),
    plain(
        "onelog.message.ttl.ms",
        _T.LONG,
        "message_ttl_ms",
        None,
        "Messages older than this are not delivered by MQTT and by queues; -1: all are.",
    ),
    plain(
        "onelog.retention.consumed",
        _T.BOOLEAN,
        "retention.consumed",
        None,
        "Whether segments go that every durable cursor has passed. Kafka groups are not counted.",
    ),
    plain(
        "onelog.retention.pin.bytes",
        _T.LONG,
        "retention.pin_bytes_max",
        None,
        "Bytes per partition that durable cursors may hold back from retention.",
    ),
    plain(
        "onelog.ring.bytes",
        _T.LONG,
        "ring_bytes",
        None,
        "Bytes that a partition of the engine memory keeps.",
    ),
    words(
        "onelog.tier.format",
        "tier.format",
        None,
        {str(row) or "none": row for row in ColdFormat},
        "How history lies in the object store: as batches (log), or as rows of a table that SQL"
        " reads, too (iceberg, delta); remote.storage.enable=true alone is log.",
    ),
    plain(
        "onelog.tier.catalog",
        _T.STRING,
        "tier.catalog",
        None,
        "The catalog of the table; empty: that of the broker's configuration.",
    ),
    plain(
        "onelog.tier.columns",
        _T.STRING,
        "tier.columns",
        None,
        "Typed columns of the table beside value, such as json: temp double.",
    ),
    plain(
        "onelog.tier.commit.ms",
        _T.LONG,
        "tier.commit_ms",
        None,
        "How often the table gets new rows at most.",
    ),
    plain(
        "onelog.tier.snapshot.age.ms",
        _T.LONG,
        "tier.snapshot_age_ms",
        None,
        "Snapshots of the table older than this are forgotten; -1: never.",
    ),
    plain(
        "onelog.tier.table",
        _T.STRING,
        "tier.table",
        None,
        "The name of the table; empty: that of the stream.",
    ),
    plain(
        "onelog.tier.table.age.ms",
        _T.LONG,
        "tier.table_age_ms",
        None,
        "How long the table keeps rows; -1: for ever, -2: as long as the log.",
    ),
    fixed(
        FILTER,
        _T.STRING,
        "",
        None,
        "The filter that a view shows, chosen when the view is made; empty: the topic has records"
        " of its own.",
    ),
)

TOPIC_SETTINGS: Final[dict[str, TopicSetting]] = {row.name: row for row in _ROWS}
