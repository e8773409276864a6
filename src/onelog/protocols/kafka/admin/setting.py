"""One setting of a topic: its type, its field of the stream, and the kinds of such rows.

Rules: bounds are the stream's own (`check_fields`): no second list of them is kept here. Errors
that only several settings together can have are checked when the stream is made or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.broker import StreamConfig, check_fields
from onelog.protocols.kafka.admin.values import READERS, ValueType, invalid, shown


class TopicSetting(NamedTuple):
    """One setting of a topic."""

    name: str
    type: ValueType
    about: str
    synonym: str | None
    """The broker's setting that gives the default; None: Kafka has none."""
    fields: tuple[str, ...]
    """Reads its value from the stream."""
    read: Callable[[StreamConfig], object]
    write: Callable[[StreamConfig, Any], StreamConfig]
    """Raises ValueError with the reason for a value that is not allowed."""
    fixed: bool = False
    """Whether it has one fixed value here, and refuses every other."""
    at_creation: bool = False
    """Whether it can be chosen only when the topic is made."""
    kept: bool = False
    """Whether its value is kept in the stream's `kept`, and shown again."""

    def text(self, config: StreamConfig) -> str:
        """Its value, as Kafka writes it."""
        return shown(self.read(config))

    def put(self, config: StreamConfig, text: str) -> StreamConfig:
        """The stream with this value. Raises KafkaError."""
        value = READERS[self.type](self.name, text)
        try:
            changed = check_fields(self.write(config, value))
        except (ValueError, InvalidRequest) as error:
            raise invalid(self.name, text, str(error)) from None
        chosen = tuple(sorted({*config.chosen, self.name}))
        return msgspec.structs.replace(changed, chosen=chosen)


# -- kinds of rows


def field_of(config: StreamConfig, path: str) -> Any:
    """The value of a field of a stream by its path: `retention.age_ms`."""
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


def with_kept(config: StreamConfig, name: str, text: str | None) -> StreamConfig:
    """The stream with a setting kept as text, or without it."""
    rows = {key: value for key, value in config.kept if key != name}
    if text is not None:
        rows[name] = text
    return msgspec.structs.replace(config, kept=tuple(sorted(rows.items())))


def kept(
    name: str,
    kind: ValueType,
    default: object,
    synonym: str | None,
    about: str,
    check: Callable[[Any], str] = lambda _: "",
) -> TopicSetting:
    """A Kafka setting without effect here: any value that Kafka accepts is kept and shown.

    `check` returns what is wrong with a value, or an empty text.
    """

    def read(config: StreamConfig) -> object:
        text = dict(config.kept).get(name)
        return default if text is None else READERS[kind](name, text)

    def write(config: StreamConfig, value: object) -> StreamConfig:
        problem = check(value)
        if problem:
            raise ValueError(problem)
        return with_kept(config, name, shown(value))

    return TopicSetting(name, kind, about, synonym, (), read, write, kept=True)


def at_least(least: int) -> Callable[[int], str]:
    """The check for a number with a lower bound."""
    return lambda value: "" if value >= least else f"it is {least} or more"


def fixed(
    name: str, kind: ValueType, value: object, synonym: str | None, about: str
) -> TopicSetting:
    """A Kafka setting that has one fixed value here."""
    wanted = READERS[kind](name, shown(value))

    def write(config: StreamConfig, given: object) -> StreamConfig:
        if given != wanted:
            raise ValueError(f"it is always {shown(wanted) or 'empty'} here")
        return config

    return TopicSetting(name, kind, about, synonym, (), lambda _: wanted, write, fixed=True)
