"""Names: how a topic or filter is written in Kafka, AMQP and NATS, and back (I7: a bijection).

Kafka and NATS join levels by `.`. A character that the target forbids or that would collide is
written `_xHH_`, one escape per UTF-8 byte, upper-case hex; an underscore that begins a text that
looks like an escape is itself written `_x5F_`. Filters are encoded like topics, so that
`sensors._x2B_.telemetry` names the filter `sensors/+/telemetry` without any declaration.

A name is canonical when it is what its topic encodes to; every other name is refused, so two
names never mean the same topic and two topics never share a name.

AMQP routing keys may hold anything, so no key can be refused: `/` and `.` are swapped, and
characters that a topic cannot hold (`+`, `#`, NUL) are escaped in the topic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from onelog.base.errors import InvalidName
from onelog.base.limits import STREAM_NAME_CHARS_MAX
from onelog.base.topics import check_filter

_ESCAPE: Final = re.compile(r"_x([0-9A-F]{2})_")
_ESCAPES: Final = re.compile(r"(?:_x[0-9A-F]{2}_)+")
_LOOKS_ESCAPED: Final = re.compile(r"_(?=x(?:[0-9A-F]{2})?_)")
_KAFKA_PLAIN: Final = re.compile(r"[a-zA-Z0-9_-]")
_NATS_SPECIAL: Final = re.compile(r"[.*>\s\x00-\x20\x7f]")
_SEE: Final = "see docs/reference/names.md for how topics are written"
_EMPTY_LEVEL: Final = "_x_"
_KAFKA_WHOLE_FORBIDDEN: Final = {"/": "_x2F_", "//": "_x2F__x2F_"}


def _escape(text: str) -> str:
    return "".join(f"_x{byte:02X}_" for byte in text.encode())


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        data = bytes(int(pair, 16) for pair in _ESCAPE.findall(match.group()))
        return data.decode()

    try:
        return _ESCAPES.sub(replace, text)
    except UnicodeDecodeError:
        raise InvalidName(f"the name {text!r} has an escape that is not UTF-8") from None


def _encode_level(level: str, is_plain: Callable[[str], bool]) -> str:
    guarded = _LOOKS_ESCAPED.sub("\0", level)  # no level holds NUL, so it marks the spot
    return "".join(
        "_x5F_" if char == "\0" else char if is_plain(char) else _escape(char) for char in guarded
    )


def _kafka_plain(char: str) -> bool:
    return _KAFKA_PLAIN.fullmatch(char) is not None


def _nats_plain(char: str) -> bool:
    return _NATS_SPECIAL.fullmatch(char) is None


def to_kafka(text: str) -> str:
    """The Kafka topic name of a topic or filter."""
    check_filter(text)
    whole = _KAFKA_WHOLE_FORBIDDEN.get(text)  # Kafka forbids the names "." and ".."
    name = whole or ".".join(_encode_level(level, _kafka_plain) for level in text.split("/"))
    if len(name) > STREAM_NAME_CHARS_MAX:
        raise InvalidName(
            f"{text!r} has no Kafka name: it would take {len(name)} characters,"
            f" Kafka allows {STREAM_NAME_CHARS_MAX}"
        )
    return name


def from_kafka(name: str) -> str:
    """The topic or filter that a Kafka topic name stands for; InvalidName if not canonical."""
    text = _unescape(name.replace(".", "/")) if name not in (".", "..") else ""
    if not text or to_kafka(text) != name:
        raise InvalidName(f"the Kafka topic name {name!r} is not canonical: {_SEE}")
    return text


def to_nats(text: str) -> str:
    """The NATS subject of a topic, or the NATS wildcard subject of a filter."""
    check_filter(text)
    wildcards = {"+": "*", "#": ">", "": _EMPTY_LEVEL}
    return ".".join(
        wildcards[level] if level in wildcards else _encode_level(level, _nats_plain)
        for level in text.split("/")
    )


def from_nats(subject: str) -> str:
    """The topic or filter that a NATS subject stands for; InvalidName if not canonical."""
    wildcards = {"*": "+", ">": "#", _EMPTY_LEVEL: ""}
    if not subject:
        raise InvalidName("a NATS subject must not be empty")
    text = "/".join(
        wildcards[token] if token in wildcards else _unescape(token) for token in subject.split(".")
    )
    if to_nats(text) != subject:
        raise InvalidName(f"the NATS subject {subject!r} is not canonical: {_SEE}")
    return text


_SWAP: Final = str.maketrans({"/": ".", ".": "/"})
_TOPIC_FORBIDDEN: Final = re.compile(r"[+#\x00]")
_TOPIC_ESCAPE: Final = re.compile(r"_x(2B|23|00|5F)_")
_TOPIC_LOOKS_ESCAPED: Final = re.compile(r"_(?=x(?:2B|23|00|5F)_)")


def from_amqp(routing_key: str) -> str:
    """The topic of an AMQP routing key of `amq.topic`; every key has one."""
    guarded = _TOPIC_LOOKS_ESCAPED.sub("_x5F_", routing_key)
    return _TOPIC_FORBIDDEN.sub(lambda match: _escape(match.group()), guarded).translate(_SWAP)


def to_amqp(topic: str) -> str:
    """The AMQP routing key of a topic; the inverse of `from_amqp`."""
    plain = _TOPIC_ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), topic)
    return plain.translate(_SWAP)
