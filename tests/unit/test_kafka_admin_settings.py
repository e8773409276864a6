"""The table of settings: total over the stream's fields, true to Kafka's names, no silent value."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from onelog.broker import (
    Cleanup,
    ColdFormat,
    Durability,
    Replication,
    StreamConfig,
    Timestamps,
)
from onelog.config import Config
from onelog.config.streams import StreamDefaults
from onelog.protocols.kafka.admin.broker_settings import BROKER_SETTINGS
from onelog.protocols.kafka.admin.choosing import (
    default_config,
    put_all,
    with_default,
    with_partitions,
)
from onelog.protocols.kafka.admin.setting import field_of
from onelog.protocols.kafka.admin.topic_settings import FILTER, STRUCTURAL, TOPIC_SETTINGS
from onelog.protocols.kafka.admin.values import READERS
from onelog.protocols.kafka.errors import ErrorCode, KafkaError

KAFKA_4 = {
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
}
DEFAULTS = default_config(StreamDefaults(), "t", "t", 3)
LONG_MAX = str(2**63 - 1)


def leaves(struct: object, prefix: str = "") -> set[str]:
    found = set()
    for field in msgspec.structs.fields(type(struct)):
        value = getattr(struct, field.name)
        if isinstance(value, msgspec.Struct):
            found |= leaves(value, f"{prefix}{field.name}.")
        else:
            found.add(prefix + field.name)
    return found


def put(**values: str) -> StreamConfig:
    return put_all(DEFAULTS, {name.replace("__", "."): text for name, text in values.items()})


def refused(**values: str) -> str:
    with pytest.raises(KafkaError) as caught:
        put(**values)
    assert caught.value.code is ErrorCode.invalid_config
    return str(caught.value)


def test_every_field_of_a_stream_is_a_setting_or_makes_the_topic_itself() -> None:
    told = {path for row in TOPIC_SETTINGS.values() for path in row.fields}
    assert told | STRUCTURAL == leaves(DEFAULTS)
    assert not told & STRUCTURAL


def test_every_setting_of_kafka_is_there_and_ours_say_that_they_are_ours() -> None:
    assert {name for name in TOPIC_SETTINGS if not name.startswith("onelog.")} == KAFKA_4


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_the_value_that_is_shown_can_be_set(name: str) -> None:
    row = TOPIC_SETTINGS[name]
    again = row.put(DEFAULTS, row.text(DEFAULTS))
    assert row.text(again) == row.text(DEFAULTS)
    # A number of replicas that was said is kept, also where it is the default of this cluster.
    assert replace(again, chosen=(), kept=(), replication=DEFAULTS.replication) == DEFAULTS
    assert again.chosen == (name,)
    assert row.about.endswith(".")


def test_what_has_one_value_here_takes_no_other() -> None:
    assert TOPIC_SETTINGS[FILTER].fixed
    assert "always" in refused(**{FILTER: "a/#"})


KEPT = [
    ("file.delete.delay.ms", "60000", "-1"),
    ("flush.messages", "10000", "0"),
    ("flush.ms", "1", "-1"),
    ("follower.replication.throttled.replicas", "0:1,1:0", "0-1"),
    ("leader.replication.throttled.replicas", "*", "*,0:1"),
    ("index.interval.bytes", "0", "-1"),
    ("preallocate", "true", "maybe"),
    ("segment.index.bytes", "4", "3"),
    ("segment.jitter.ms", "9", "-1"),
    ("unclean.leader.election.enable", "true", "no"),
]


@pytest.mark.parametrize(("name", "text", "wrong"), KEPT)
def test_what_has_no_effect_here_is_kept_and_shown_and_says_so(name, text, wrong) -> None:
    row = TOPIC_SETTINGS[name]
    changed = put(**{name: text})
    assert row.text(changed) == text
    assert dict(changed.kept) == {name: text}
    assert replace(changed, kept=(), chosen=()) == DEFAULTS
    assert "o effect" in row.about
    assert with_default(changed, name, DEFAULTS) == DEFAULTS
    assert refused(**{name: wrong}).startswith(f"{name} cannot be {wrong!r}: ")


def test_every_setting_without_an_effect_is_tried_here() -> None:
    assert {row.name for row in TOPIC_SETTINGS.values() if row.kept} == {
        "min.insync.replicas",
        *(name for name, *_ in KEPT),
    }


def test_records_of_streams_from_before_these_settings_are_read() -> None:
    new = {"kept", "compression", "timestamp_before_max_ms", "timestamp_after_max_ms", "tier"}
    old = {key: value for key, value in msgspec.to_builtins(DEFAULTS).items() if key not in new}
    old["compaction"] = {"tombstone_ms": 86_400_000, "min_dirty_ratio": 0.5}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=StreamConfig) == DEFAULTS
    whole = put(min__insync__replicas="2", compression__type="zstd", min__compaction__lag__ms="5")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(whole), type=StreamConfig) == whole


CHANGES = [
    ("cleanup.policy", "compact", "cleanup", Cleanup.COMPACT, "compact"),
    ("cleanup.policy", " delete, compact ", "cleanup", Cleanup.COMPACT_DELETE, "compact,delete"),
    ("retention.ms", "60000", "retention.age_ms", 60_000, "60000"),
    ("retention.ms", "-1", "retention.age_ms", -1, "-1"),
    ("retention.ms", LONG_MAX, "retention.age_ms", 2**63 - 1, LONG_MAX),
    ("retention.bytes", "1000", "retention.bytes", 3000, "1000"),
    ("retention.bytes", "-1", "retention.bytes", -1, "-1"),
    ("retention.bytes", LONG_MAX, "retention.bytes", -1, "-1"),
    ("segment.bytes", "1048576", "segment_bytes", 1048576, "1048576"),
    ("segment.ms", "60000", "segment_age_ms", 60_000, "60000"),
    ("max.message.bytes", "1048588", "message_bytes_max", 1048588, "1048588"),
    ("min.cleanable.dirty.ratio", "0.01", "compaction.min_dirty_ratio", 0.01, "0.01"),
    ("delete.retention.ms", "5", "compaction.tombstone_ms", 5, "5"),
    ("message.timestamp.type", "LogAppendTime", "timestamps", Timestamps.APPEND, "LogAppendTime"),
    ("cleanup.policy", "", "cleanup", Cleanup.NONE, ""),
    ("retention.bytes", "-2", "retention.bytes", -1, "-1"),
    ("segment.ms", "1", "segment_age_ms", 1, "1"),
    ("max.message.bytes", "2147483647", "message_bytes_max", 2**31 - 1, "2147483647"),
    ("compression.type", "zstd", "compression.codec", "zstd", "zstd"),
    ("compression.type", "uncompressed", "compression.codec", "uncompressed", "uncompressed"),
    ("compression.gzip.level", "9", "compression.gzip_level", 9, "9"),
    ("compression.lz4.level", "17", "compression.lz4_level", 17, "17"),
    ("compression.zstd.level", "-131072", "compression.zstd_level", -131_072, "-131072"),
    ("max.compaction.lag.ms", "1", "compaction.max_lag_ms", 1, "1"),
    ("min.compaction.lag.ms", "86400000", "compaction.min_lag_ms", 86_400_000, "86400000"),
    ("message.timestamp.after.max.ms", "0", "timestamp_after_max_ms", 0, "0"),
    ("message.timestamp.before.max.ms", "3", "timestamp_before_max_ms", 3, "3"),
    ("flush.messages", "1", "durability", Durability.FSYNC, "1"),
    ("onelog.durability", "memory", "durability", Durability.MEMORY, "memory"),
    ("onelog.engine", "memory", "engine", "memory", "memory"),
    ("min.insync.replicas", "2", "replication.min_insync", 2, "2"),
    ("onelog.message.ttl.ms", "5000", "message_ttl_ms", 5000, "5000"),
    ("onelog.retention.consumed", "TRUE", "retention.consumed", True, "true"),
    ("onelog.retention.pin.bytes", "0", "retention.pin_bytes_max", 0, "0"),
    ("onelog.ring.bytes", "8192", "ring_bytes", 8192, "8192"),
    ("remote.storage.enable", "true", "tier.format", ColdFormat.LOG, "true"),
    ("remote.log.copy.disable", "true", "tier.copy", False, "true"),
    ("remote.log.delete.on.disable", "true", "tier.delete_when_off", True, "true"),
    ("local.retention.ms", "7", "tier.local_age_ms", 7, "7"),
    ("local.retention.ms", "-1", "tier.local_age_ms", -1, "-1"),
    ("local.retention.bytes", "5", "tier.local_bytes", 15, "5"),
    ("local.retention.bytes", "-1", "tier.local_bytes", -1, "-1"),
    ("local.retention.bytes", LONG_MAX, "tier.local_bytes", -1, "-1"),
    ("onelog.tier.format", "iceberg", "tier.format", ColdFormat.ICEBERG, "iceberg"),
    ("onelog.tier.catalog", "lake", "tier.catalog", "lake", "lake"),
    ("onelog.tier.columns", "json: t double", "tier.columns", "json: t double", "json: t double"),
    ("onelog.tier.commit.ms", "1000", "tier.commit_ms", 1000, "1000"),
    ("onelog.tier.snapshot.age.ms", "-1", "tier.snapshot_age_ms", -1, "-1"),
    ("onelog.tier.table", "db.orders", "tier.table", "db.orders", "db.orders"),
    ("onelog.tier.table.age.ms", "-1", "tier.table_age_ms", -1, "-1"),
]


@pytest.mark.parametrize(("name", "text", "path", "value", "shown"), CHANGES)
def test_a_setting_changes_its_field_and_nothing_else(name, text, path, value, shown) -> None:
    changed = put(**{name: text})
    assert field_of(changed, path) == value
    assert TOPIC_SETTINGS[name].text(changed) == shown
    assert changed.chosen == (name,)
    back = with_default(changed, name, DEFAULTS)
    if name != "onelog.engine":  # it is chosen once
        assert back == DEFAULTS


def test_every_setting_that_can_change_is_tried_here() -> None:
    changing = {row.name for row in TOPIC_SETTINGS.values() if row.fields}
    assert changing == {name for name, *_ in CHANGES}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "1e3"),
        ("retention.ms", ""),
        ("segment.bytes", "14"),
        ("segment.bytes", str(2**31)),
        ("segment.ms", "0"),
        ("max.message.bytes", "0"),
        ("max.message.bytes", str(2**31)),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "."),
        ("delete.retention.ms", "-1"),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "shred"),
        ("message.timestamp.type", "logappendtime"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("min.compaction.lag.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
        ("message.timestamp.after.max.ms", "-1"),
        ("onelog.durability", "maybe"),
        ("onelog.engine", "tape"),
        ("onelog.retention.consumed", "yes"),
        ("local.retention.ms", "-3"),
        ("local.retention.bytes", "-3"),
        ("remote.storage.enable", "1"),
        ("remote.log.copy.disable", "no"),
        ("remote.log.delete.on.disable", ""),
        ("onelog.tier.format", "parquet"),
        ("onelog.tier.commit.ms", "999"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_the_setting_s_name(name, text) -> None:
    assert refused(**{name: text}).startswith(f"{name} cannot be {text!r}: ")


def test_a_setting_that_nobody_knows_is_refused() -> None:
    assert "there is no topic setting 'retention.hours'" in refused(retention__hours="1")


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert "contradicts" in refused(flush__messages="1", onelog__durability="os")
    assert "contradicts" in refused(onelog__durability="os", flush__messages="1")
    both = put(onelog__durability="memory", flush__messages=LONG_MAX)
    assert both.durability is Durability.MEMORY
    assert put(flush__messages=LONG_MAX).durability is Durability.FSYNC  # it takes nothing away


def test_the_default_of_one_name_leaves_what_was_chosen_by_another() -> None:
    chosen = put(onelog__durability="memory")
    assert with_default(chosen, "flush.messages", DEFAULTS) == chosen
    assert with_default(chosen, "onelog.durability", DEFAULTS) == DEFAULTS


def test_more_partitions_keep_as_much_each() -> None:
    grown = with_partitions(put(retention__bytes="1000"), 5)
    assert (grown.partitions, grown.retention.bytes) == (5, 5000)
    assert with_partitions(DEFAULTS, 5).retention.bytes == -1


def test_the_broker_shows_the_defaults_of_topics_under_kafka_s_names_for_them() -> None:
    config = Config()
    for row in TOPIC_SETTINGS.values():
        if row.synonym is not None:
            shown = BROKER_SETTINGS[row.synonym]
            assert shown.text(config) == row.text(DEFAULTS)
            assert shown.type is row.type


@pytest.mark.parametrize("name", BROKER_SETTINGS)
def test_a_setting_of_the_broker_has_a_value_of_its_type(name: str) -> None:
    row = BROKER_SETTINGS[name]
    READERS[row.type](name, row.text(Config()))
    assert row.about.endswith(".")


def test_replicas_that_must_be_in_sync_are_two_of_three_unless_somebody_says_otherwise() -> None:
    row = TOPIC_SETTINGS["min.insync.replicas"]
    three = replace(DEFAULTS, replication=Replication(factor=3))
    assert (row.text(DEFAULTS), row.text(three), row.text(row.put(three, "1"))) == ("1", "2", "1")
    assert "1 or more" in refused(**{"min.insync.replicas": "0"})


def test_a_number_of_replicas_in_sync_that_had_no_effect_is_still_shown() -> None:
    old = replace(DEFAULTS, kept=(("min.insync.replicas", "4"),))
    row = TOPIC_SETTINGS["min.insync.replicas"]
    assert row.text(old) == "4"
    assert row.put(old, "2").kept == ()
