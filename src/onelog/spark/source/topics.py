"""Which topics and partitions there are to read, and where they begin and end.

Rules: a named topic that does not exist is an error that names it. One request asks for the offsets
of all partitions of a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from onelog.base.errors import ConfigError, OffsetOutOfRange, TopicNotFound
from onelog.base.topics import is_exact
from onelog.kafka_client import EARLIEST, LATEST, Client, Part, Topic
from onelog.kafka_client.codes import UNKNOWN_TOPIC, topic_right
from onelog.spark.source.options import Topics, Where


class Found(NamedTuple):
    """A topic that is read."""

    name: str
    """Kafka's name of it."""
    shown: str | None
    """The value of the column topic; None: each record has its own topic."""
    partitions: tuple[int, ...]


def find_topics(client: Client, wanted: Topics, *, lenient: bool = False) -> list[Found]:
    """The topics of a source. Raises TopicNotFound, or what the broker says of one.

    `lenient` leaves out what is not there.
    """
    if wanted.kind == "stream":
        return [
            Found(row.name, row.address if is_exact(row.address) else None, row.partitions)
            for row in sorted(client.stream_topics(wanted.pattern))
        ]
    if wanted.kind == "subscribePattern":
        matches = re.compile(wanted.pattern).fullmatch
        return [
            Found(row.name, row.name, row.partitions)
            for row in sorted(client.topics())
            if not row.internal and not row.code and matches(row.name)
        ]
    return [
        _found(client, row, wanted)
        for row in sorted(client.topics(sorted(wanted.names)))
        if not (lenient and row.code == UNKNOWN_TOPIC)
    ]


def _found(client: Client, row: Topic, wanted: Topics) -> Found:
    text = wanted.names[row.name]
    if row.code:
        what = f"option {wanted.kind}: topic {text!r}"
        raise client.refusal(row.code, what, topic_right("subscribe", row.name))
    partitions = wanted.partitions.get(row.name, row.partitions)
    missing = set(partitions) - set(row.partitions)
    if missing:
        raise TopicNotFound(
            f"option assign: topic {text!r} has no partition {min(missing)}, only"
            f" {len(row.partitions)} of them"
        )
    named = text == row.name
    return Found(row.name, text if named or is_exact(text) else None, partitions)


def parts_of(topics: Iterable[Found]) -> list[Part]:
    """All partitions of topics, in order."""
    return [(topic.name, number) for topic in topics for number in topic.partitions]


class Bounds(NamedTuple):
    """Where each partition begins and ends."""

    first: Mapping[Part, int]
    last: Mapping[Part, int]


def bounds_of(client: Client, parts: Iterable[Part]) -> Bounds:
    """Ask the broker."""
    rows = list(parts)
    return Bounds(
        client.offsets(dict.fromkeys(rows, EARLIEST)), client.offsets(dict.fromkeys(rows, LATEST))
    )


def resolve(client: Client, parts: list[Part], where: Where) -> dict[Part, int]:
    """The offset of a place in each partition. Raises ConfigError, OffsetOutOfRange."""
    asked: dict[Part, int]
    if where.at is not None:
        asked = dict.fromkeys(parts, where.at)
    else:
        _check_each(parts, where)
        asked = {(topic, number): where.each[topic][number] for topic, number in parts}
    if where.by_time:
        return _by_time(client, asked, where)
    kinds = {part: at for part, at in asked.items() if at < 0}
    return asked | client.offsets(kinds)


def _check_each(parts: list[Part], where: Where) -> None:
    told = {(topic, number) for topic, row in where.each.items() for number in row}
    for topic, number in sorted(told - set(parts)):
        raise ConfigError(f"option {where.option}: {topic}-{number} is not read by this source")
    for topic, number in sorted(set(parts) - told):
        raise ConfigError(
            f"option {where.option}: {topic}-{number} is missing; name every partition,"
            " -2 is earliest and -1 is latest"
        )


def _by_time(client: Client, asked: dict[Part, int], where: Where) -> dict[Part, int]:
    found = client.offsets(asked)
    late = [part for part in asked if found[part] < 0]
    if late and where.late == "error":
        topic, number = late[0]
        raise OffsetOutOfRange(
            f"option {where.option}: {topic}-{number} has no record at {asked[late[0]]} ms or"
            " later; startingOffsetsByTimestampStrategy=latest begins at its end instead"
        )
    return found | client.offsets(dict.fromkeys(late, LATEST))
