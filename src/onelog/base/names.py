"""Names: other ways to write a topic or filter, and back (I7: a bijection).

There are three: a dotted name has the characters of a stream's name (Kafka's topics have such
names), a subject has wildcards of its own (NATS), a routing key may hold anything (AMQP).

Dotted names and subjects join levels by `.`. A character that the target forbids or that would
collide is written `_xHH_`, one escape per UTF-8 byte, upper-case hex; an underscore that begins a
text that looks like an escape is itself written `_x5F_`. Filters are encoded like topics, so that
`sensors._x2B_.telemetry` names the filter `sensors/+/telemetry` without any declaration.

A name is canonical when it is what its topic encodes to; every other name is refused, so two
names never mean the same topic and two topics never share a name.

A routing key may hold anything, so no key can be refused: `/` and `.` are swapped, and
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
_DOTTED_PLAIN: Final = re.compile(r"[a-zA-Z0-9_-]")
_SUBJECT_SPECIAL: Final = re.compile(r"[.*>\s\x00-\x20\x7f]")
_SEE: Final = "see docs/reference/names.md for how topics are written"
_EMPTY_LEVEL: Final = "_x_"
_DOTTED_WHOLE: Final = {"/": "_x2F_", "//": "_x2F__x2F_"}


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


def _is_dotted_plain(char: str) -> bool:
    return _DOTTED_PLAIN.fullmatch(char) is not None


def _is_subject_plain(char: str) -> bool:
    return _SUBJECT_SPECIAL.fullmatch(char) is None


def to_dotted(text: str) -> str:
    """The dotted name of a topic or filter."""
    check_filter(text)
    whole = _DOTTED_WHOLE.get(text)  # no stream may be named "." or ".."
    name = whole or ".".join(_encode_level(level, _is_dotted_plain) for level in text.split("/"))
    if len(name) > STREAM_NAME_CHARS_MAX:
        raise InvalidName(
            f"the dotted name of {text!r} would have {len(name)} characters, and a name has at"
            f" most {STREAM_NAME_CHARS_MAX}: {_SEE}"
        )
    return name


def from_dotted(name: str) -> str:
    """The topic or filter that a dotted name stands for; InvalidName if not canonical."""
    text = _unescape(name.replace(".", "/")) if name not in (".", "..") else ""
    if not text or to_dotted(text) != name:
        raise InvalidName(f"the topic name {name!r} is not canonical: {_SEE}")
    return text


def to_subject(text: str) -> str:
    """The subject of a topic, or the wildcard subject of a filter."""
    check_filter(text)
    wildcards = {"+": "*", "#": ">", "": _EMPTY_LEVEL}
    return ".".join(
        wildcards[level] if level in wildcards else _encode_level(level, _is_subject_plain)
        for level in text.split("/")
    )


def from_subject(subject: str) -> str:
    """The topic or filter that a subject stands for; InvalidName if not canonical."""
    wildcards = {"*": "+", ">": "#", _EMPTY_LEVEL: ""}
    if not subject:
        raise InvalidName("a subject must not be empty")
    text = "/".join(
        wildcards[token] if token in wildcards else _unescape(token) for token in subject.split(".")
    )
    if to_subject(text) != subject:
        raise InvalidName(f"the subject {subject!r} is not canonical: {_SEE}")
    return text


_SWAP: Final = str.maketrans({"/": ".", ".": "/"})
_TOPIC_FORBIDDEN: Final = re.compile(r"[+#\x00]")
_TOPIC_ESCAPE: Final = re.compile(r"_x(2B|23|00|5F)_")
_TOPIC_LOOKS_ESCAPED: Final = re.compile(r"_(?=x(?:2B|23|00|5F)_)")


def from_routing_key(routing_key: str) -> str:
    """The topic of a routing key; every key has one."""
    guarded = _TOPIC_LOOKS_ESCAPED.sub("_x5F_", routing_key)
    return _TOPIC_FORBIDDEN.sub(lambda match: _escape(match.group()), guarded).translate(_SWAP)


def to_routing_key(topic: str) -> str:
    """The routing key of a topic; the inverse of `from_routing_key`."""
    plain = _TOPIC_ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), topic)
    return plain.translate(_SWAP)
