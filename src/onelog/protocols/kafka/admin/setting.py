"""One setting of a topic: its type, what it says of the stream, and the kinds of such rows.

Rules: bounds are the stream's own (`check_config`): no second list of them is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.broker import StreamConfig
from onelog.log.config import check_config
from onelog.protocols.kafka.admin.values import READERS, ValueType, invalid, shown


class TopicSetting(NamedTuple):
    """One setting of a topic."""

    name: str
    type: ValueType
    about: str
    synonym: str | None
    """The broker's setting that gives the default; None: there is none in Kafka."""
    fields: tuple[str, ...]
    """What it says of the stream."""
    read: Callable[[StreamConfig], object]
    write: Callable[[StreamConfig, Any], StreamConfig]
    """Raises ValueError with the reason for a value that it does not take."""
    fixed: bool = False
    """Whether its value cannot be changed here."""
    at_creation: bool = False
    """Whether it can be chosen only when the topic is made."""

    def text(self, config: StreamConfig) -> str:
        """Its value, as Kafka writes it."""
        return shown(self.read(config))

    def put(self, config: StreamConfig, text: str) -> StreamConfig:
        """The stream with this value. Raises KafkaError."""
        value = READERS[self.type](self.name, text)
        try:
            changed = check_config(self.write(config, value))
        except (ValueError, InvalidRequest) as error:
            raise invalid(self.name, text, str(error)) from None
        chosen = tuple(sorted({*config.chosen, self.name}))
        return msgspec.structs.replace(changed, chosen=chosen)


# -- kinds of rows


def field_of(config: StreamConfig, path: str) -> Any:
    """What a stream says, by the path of the field: `retention.age_ms`."""
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def with_field(config: StreamConfig, path: str, value: object) -> StreamConfig:
    """The stream with another value in one field."""
    outer, _, inner = path.rpartition(".")
    if outer:
        value = msgspec.structs.replace(field_of(config, outer), **{inner: value})
    return msgspec.structs.replace(config, **{outer or inner: value})


def plain(name: str, kind: ValueType, path: str, synonym: str | None, about: str) -> TopicSetting:
    """A setting that is a field of the stream."""
    return TopicSetting(
        name,
        kind,
        about,
        synonym,
        (path,),
        lambda config: field_of(config, path),
        lambda config, value: with_field(config, path, value),
    )


def words(
    name: str,
    path: str,
    synonym: str | None,
    values: Mapping[str, object],
    about: str,
    *,
    at_creation: bool = False,
) -> TopicSetting:
    """A setting with a word for each value of a field."""
    names = {value: word for word, value in values.items()}

    def write(config: StreamConfig, word: str) -> StreamConfig:
        if word not in values:
            raise ValueError(f"it is one of {', '.join(values)}")
        return with_field(config, path, values[word])

    return TopicSetting(
        name,
        ValueType.STRING,
        about,
        synonym,
        (path,),
        lambda config: names[field_of(config, path)],
        write,
        at_creation=at_creation,
    )


def fixed(
    name: str, kind: ValueType, value: object, synonym: str | None, about: str
) -> TopicSetting:
    """A setting of Kafka that has one value here."""
    wanted = READERS[kind](name, shown(value))

    def write(config: StreamConfig, given: object) -> StreamConfig:
        if given != wanted:
            raise ValueError(f"it is always {shown(wanted) or 'empty'} here")
        return config

    return TopicSetting(name, kind, about, synonym, (), lambda _: wanted, write, fixed=True)
