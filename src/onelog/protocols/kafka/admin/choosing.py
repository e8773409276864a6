"""The settings of a topic as a whole: defaults, chosen values, and the way back to a default."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from onelog.broker import StreamConfig
from onelog.broker.stream_commands import default_stream, with_fitting_tier
from onelog.config.streams import StreamDefaults
from onelog.protocols.kafka.admin.setting import (
    TopicSetting,
    field_of,
    with_field,
    with_kept,
)
from onelog.protocols.kafka.admin.topic_settings import (
    REMOTE,
    TOPIC_SETTINGS,
    read_local_share,
    read_share,
    write_local_share,
    write_share,
)
from onelog.protocols.kafka.errors import ErrorCode, KafkaError


def default_config(
    defaults: StreamDefaults, name: str, topic: str, partitions: int
) -> StreamConfig:
    """A stream for one topic, with the defaults of the broker's configuration."""
    return default_stream(defaults, name, (topic,), partitions)


def setting_of(name: str) -> TopicSetting:
    """A row of the table. Raises KafkaError."""
    row = TOPIC_SETTINGS.get(name)
    if row is None:
        raise KafkaError(ErrorCode.invalid_config, f"there is no topic setting {name[:100]!r}")
    return row


def put_all(config: StreamConfig, values: Mapping[str, str]) -> StreamConfig:
    """The stream with these values. Raises KafkaError, also where two of them contradict."""
    for name, text in values.items():
        config = setting_of(name).put(config, text)
    for name, text in values.items():
        row = TOPIC_SETTINGS[name]
        if not row.fixed and row.put(config, text) != config:
            raise KafkaError(
                ErrorCode.invalid_config,
                f"{name}={text[:100]} contradicts another setting of the same request"
                f" ({', '.join(row.fields)} of the stream)",
            )
    return config


def chosen_config(config: StreamConfig, values: Mapping[str, str]) -> StreamConfig:
    """A new topic's stream with these values; as `put_all`.

    A tier that only the broker's defaults give it goes if such a stream cannot have one.
    """
    config = put_all(config, values)
    return config if any(name in values for name in REMOTE) else with_fitting_tier(config)


def with_default(config: StreamConfig, name: str, defaults: StreamConfig) -> StreamConfig:
    """The stream without a chosen setting. Settings that are fixed at creation stay."""
    row = setting_of(name)
    chosen = tuple(word for word in config.chosen if word != name)
    # If another chosen setting sets the same field, that one counts.
    held = {path for word in chosen for path in TOPIC_SETTINGS[word].fields}
    for path in row.fields:
        if path not in held and not row.at_creation:
            config = with_field(config, path, field_of(defaults, path))
    if row.kept:
        config = with_kept(config, name, None)
    return msgspec.structs.replace(config, chosen=chosen)


def with_partitions(config: StreamConfig, partitions: int) -> StreamConfig:
    """The stream with more partitions, each of which keeps as much as before."""
    share, local = read_share(config), read_local_share(config)
    config = write_share(msgspec.structs.replace(config, partitions=partitions), share)
    return write_local_share(config, local)
