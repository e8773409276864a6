"""The table of topic settings: every one that Kafka knows, ours beside them, and what each means.

Rules:
- Every field of a stream's configuration has a row, or is named in `STRUCTURAL`; a test holds this.
- A setting of Kafka that nothing here obeys is in the table with the one value that describes what
  is done; any other value is refused, so that nobody believes in what does not happen (I9).
"""

from __future__ import annotations

from typing import Final

from onelog.broker import Cleanup, Durability, StreamConfig, Timestamps
from onelog.protocols.kafka.admin.setting import TopicSetting, fixed, plain, with_field, words
from onelog.protocols.kafka.admin.values import LONG_MAX, ValueType

FILTER: Final = "onelog.filter"
ENGINE: Final = "onelog.engine"

STRUCTURAL: Final = frozenset({"name", "captures", "partitions", "chosen"})
"""Fields of a stream that are no setting: what makes the topic itself."""


_CLEANUPS: Final[dict[frozenset[str], Cleanup]] = {
    frozenset({"delete"}): Cleanup.DELETE,
    frozenset({"compact"}): Cleanup.COMPACT,
    frozenset({"compact", "delete"}): Cleanup.COMPACT_DELETE,
}


def _write_cleanup(config: StreamConfig, words: list[str]) -> StreamConfig:
    cleanup = _CLEANUPS.get(frozenset(words))
    if cleanup is None or len(set(words)) != len(words):
        raise ValueError("it is delete, compact or both")
    return with_field(config, "cleanup", cleanup)


def read_share(config: StreamConfig) -> int:
    """Bytes that each partition keeps."""
    return config.partition_retention().bytes


def write_share(config: StreamConfig, value: int) -> StreamConfig:
    """Kafka counts per partition, a stream as a whole."""
    if value < -1:
        raise ValueError("it is -1 (no bound) or more")
    whole = value * config.partitions
    # More than any disk holds is no bound.
    return with_field(config, "retention.bytes", -1 if value < 0 or whole > LONG_MAX else whole)


def _write_flush(config: StreamConfig, value: int) -> StreamConfig:
    if value == 1:
        return with_field(config, "durability", Durability.FSYNC)
    if value != LONG_MAX:
        raise ValueError(
            f"it is 1 (onelog.durability=fsync) or {LONG_MAX} (the operating system decides)"
        )
    if config.durability is Durability.FSYNC:
        return with_field(config, "durability", Durability.OS)
    return config


_T = ValueType

_ROWS: Final = (
    TopicSetting(
        "cleanup.policy",
        _T.LIST,
        "What is done with old records: delete them, keep the last one of each key (compact), or"
        " both.",
        "log.cleanup.policy",
        ("cleanup",),
        lambda config: config.cleanup.split(","),
        _write_cleanup,
    ),
    fixed(
        "compression.gzip.level",
        _T.INT,
        -1,
        "compression.gzip.level",
        "Batches stay as their producer compressed them.",
    ),
    fixed(
        "compression.lz4.level",
        _T.INT,
        9,
        "compression.lz4.level",
        "Batches stay as their producer compressed them.",
    ),
    fixed(
        "compression.type",
        _T.STRING,
        "producer",
        "compression.type",
        "Batches stay as their producer compressed them.",
    ),
    fixed(
        "compression.zstd.level",
        _T.INT,
        3,
        "compression.zstd.level",
        "Batches stay as their producer compressed them.",
    ),
    plain(
        "delete.retention.ms",
        _T.LONG,
        "compaction.tombstone_ms",
        "log.cleaner.delete.retention.ms",
        "How long the tombstone of a deleted key stays readable in a compacted topic.",
    ),
    fixed(
        "file.delete.delay.ms",
        _T.LONG,
        0,
        "log.segment.delete.delay.ms",
        "Files go at once; readers that hold one keep it.",
    ),
    TopicSetting(
        "flush.messages",
        _T.LONG,
        "1: a produce is answered when its records are on disk (onelog.durability=fsync)."
        f" {LONG_MAX}: when the operating system has them, or sooner.",
        "log.flush.interval.messages",
        ("durability",),
        lambda config: 1 if config.durability is Durability.FSYNC else LONG_MAX,
        _write_flush,
    ),
    fixed(
        "flush.ms",
        _T.LONG,
        1000,
        "log.flush.interval.ms",
        "Records that nobody waits for are on disk after about this time.",
    ),
    fixed(
        "follower.replication.throttled.replicas",
        _T.LIST,
        "",
        None,
        "There are no followers.",
    ),
    fixed(
        "index.interval.bytes",
        _T.INT,
        4096,
        "log.index.interval.bytes",
        "Bytes of records between two entries of the offset index.",
    ),
    fixed(
        "leader.replication.throttled.replicas",
        _T.LIST,
        "",
        None,
        "There are no followers.",
    ),
    fixed(
        "local.retention.bytes",
        _T.LONG,
        -2,
        "log.local.retention.bytes",
        "Nothing is stored remotely: retention.bytes holds.",
    ),
    fixed(
        "local.retention.ms",
        _T.LONG,
        -2,
        "log.local.retention.ms",
        "Nothing is stored remotely: retention.ms holds.",
    ),
    fixed(
        "max.compaction.lag.ms",
        _T.LONG,
        LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "No age forces a compaction; min.cleanable.dirty.ratio decides.",
    ),
    plain(
        "max.message.bytes",
        _T.INT,
        "message_bytes_max",
        "message.max.bytes",
        "Bytes of the largest record batch that is taken, as it is stored.",
    ),
    fixed(
        "message.timestamp.after.max.ms",
        _T.LONG,
        LONG_MAX,
        "log.message.timestamp.after.max.ms",
        "Records may come from any future.",
    ),
    fixed(
        "message.timestamp.before.max.ms",
        _T.LONG,
        LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "Records may be of any age.",
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
    fixed(
        "min.compaction.lag.ms",
        _T.LONG,
        0,
        "log.cleaner.min.compaction.lag.ms",
        "What is in a sealed segment may be compacted.",
    ),
    fixed(
        "min.insync.replicas",
        _T.INT,
        1,
        "min.insync.replicas",
        "There is one replica: this node.",
    ),
    fixed("preallocate", _T.BOOLEAN, False, "log.preallocate", "Space is reserved as it is due."),
    fixed(
        "remote.log.copy.disable",
        _T.BOOLEAN,
        False,
        None,
        "Nothing is stored remotely.",
    ),
    fixed(
        "remote.log.delete.on.disable",
        _T.BOOLEAN,
        False,
        None,
        "Nothing is stored remotely.",
    ),
    fixed(
        "remote.storage.enable",
        _T.BOOLEAN,
        False,
        None,
        "Nothing is stored remotely.",
    ),
    TopicSetting(
        "retention.bytes",
        _T.LONG,
        "Bytes that each partition keeps; -1: no bound.",
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
    fixed(
        "segment.index.bytes",
        _T.INT,
        10 * 1024 * 1024,
        "log.index.size.max.bytes",
        "Indexes grow as they need.",
    ),
    fixed("segment.jitter.ms", _T.LONG, 0, "log.roll.jitter.ms", "Segments are sealed in time."),
    plain(
        "segment.ms",
        _T.LONG,
        "segment_age_ms",
        "log.roll.ms",
        "Age at which a segment is sealed.",
    ),
    fixed(
        "unclean.leader.election.enable",
        _T.BOOLEAN,
        False,
        "unclean.leader.election.enable",
        "A partition that was damaged stops; nothing is given up by itself.",
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
        {name: name for name in ("segment", "memory", "kv")},
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
)

TOPIC_SETTINGS: Final[dict[str, TopicSetting]] = {row.name: row for row in _ROWS}
