"""The table of settings: total over the stream's fields, true to Kafka's names, no silent value."""

from __future__ import annotations

import msgspec
import pytest

from onelog.broker import Cleanup, Durability, StreamConfig, Timestamps
from onelog.config import Config
from onelog.config.model import StreamDefaults
from onelog.protocols.kafka.admin.broker_settings import BROKER_SETTINGS
from onelog.protocols.kafka.admin.choosing import (
    default_config,
    put_all,
    with_default,
    with_partitions,
)
from onelog.protocols.kafka.admin.setting import field_of
from onelog.protocols.kafka.admin.topic_settings import STRUCTURAL, TOPIC_SETTINGS
from onelog.protocols.kafka.admin.values import READERS, ValueType
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
    assert msgspec.structs.replace(again, chosen=()) == DEFAULTS
    assert again.chosen == (name,)
    assert row.about.endswith(".")


@pytest.mark.parametrize("name", [row.name for row in TOPIC_SETTINGS.values() if row.fixed])
def test_what_nothing_here_obeys_takes_no_other_value(name: str) -> None:
    row = TOPIC_SETTINGS[name]
    others = {
        ValueType.BOOLEAN: "true",
        ValueType.LIST: "0:1",
        ValueType.STRING: "zstd",
    }
    with pytest.raises(KafkaError, match="always") as caught:
        row.put(DEFAULTS, others.get(row.type, "77"))
    assert caught.value.code is ErrorCode.invalid_config


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
    ("flush.messages", LONG_MAX, "durability", Durability.OS, LONG_MAX),
    ("flush.messages", "1", "durability", Durability.FSYNC, "1"),
    ("onelog.durability", "memory", "durability", Durability.MEMORY, "memory"),
    ("onelog.engine", "memory", "engine", "memory", "memory"),
    ("onelog.message.ttl.ms", "5000", "message_ttl_ms", 5000, "5000"),
    ("onelog.retention.consumed", "TRUE", "retention.consumed", True, "true"),
    ("onelog.retention.pin.bytes", "0", "retention.pin_bytes_max", 0, "0"),
    ("onelog.ring.bytes", "8192", "ring_bytes", 8192, "8192"),
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
    assert {row.name for row in TOPIC_SETTINGS.values() if not row.fixed} == {
        name for name, *_ in CHANGES
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "1e3"),
        ("retention.ms", ""),
        ("retention.bytes", "-2"),
        ("segment.bytes", "14"),
        ("segment.bytes", str(2**31)),
        ("segment.ms", "0"),
        ("max.message.bytes", "0"),
        ("max.message.bytes", str(2**31 - 1)),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "."),
        ("delete.retention.ms", "-1"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "shred"),
        ("message.timestamp.type", "logappendtime"),
        ("flush.messages", "1000"),
        ("onelog.durability", "maybe"),
        ("onelog.engine", "tape"),
        ("onelog.retention.consumed", "yes"),
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
