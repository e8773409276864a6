"""The grammar of topics and filters, as pure functions on text.

A topic is levels joined by `/`; a level may be empty. A filter may have `+` (one level) and, as
its last level, `#` (the rest, none included: `a/#` covers `a`). Topics that start with `$` are
reserved: a wildcard at the first level does not match them for subscribers (MQTT5 4.7.2), but it
does for captures, because every topic needs a home. Of these, clients of every protocol may write
to AMQP's exchanges and queues: `$x/<exchange>/…` and `$q/<queue>`, of another virtual host
`$x@<host>/…`, `$q@<host>/…` and `$t@<host>/…`.
"""

from __future__ import annotations

import re
from typing import Final

from onelog.base.errors import InvalidName
from onelog.base.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX

_AMQP_ADDRESS: Final = re.compile(r"\$([qx]|[qxt]@[^/]+)/.", re.DOTALL)
_AMQP_STREAM: Final = re.compile(r"\$(q|x(?!(@[^/]+)?/amq\.topic(/|$)))(@[^/]+)?/.", re.DOTALL)


def _check_text(kind: str, text: str) -> None:
    if not text:
        raise InvalidName(f"a {kind} must not be empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the {kind} {text!r} is not valid Unicode") from None
    if size > TOPIC_BYTES_MAX:
        raise InvalidName(f"a {kind} of {size} bytes is longer than {TOPIC_BYTES_MAX}")
    if "\0" in text:
        raise InvalidName(f"the {kind} {text!r} has a NUL character")
    if text.count("/") >= TOPIC_LEVELS_MAX:
        raise InvalidName(f"the {kind} {text[:60]!r}… has more than {TOPIC_LEVELS_MAX} levels")


def check_topic(topic: str) -> str:
    """Return `topic` if it is one; raise InvalidName otherwise."""
    _check_text("topic", topic)
    if "+" in topic or "#" in topic:
        raise InvalidName(f"the topic {topic!r} has a wildcard; only filters may have + or #")
    return topic


def check_filter(text: str) -> str:
    """Return `text` if it is a filter (a plain topic is one too); raise InvalidName otherwise."""
    _check_text("filter", text)
    levels = text.split("/")
    for number, level in enumerate(levels):
        if "#" in level and (level != "#" or number != len(levels) - 1):
            raise InvalidName(f"in the filter {text!r} the # must be the whole last level")
        if "+" in level and level != "+":
            raise InvalidName(f"in the filter {text!r} the + must be a whole level")
    return text


def is_exact(text: str) -> bool:
    """Whether a filter has no wildcard, so that it is a topic."""
    return "+" not in text and "#" not in text


def is_amqp_address(topic: str) -> bool:
    """Whether a topic is an exchange's or a queue's, with a place of its own."""
    return _AMQP_ADDRESS.match(topic) is not None


def has_amqp_stream(text: str) -> bool:
    """Whether a topic or filter is of AMQP's queues or of an exchange, which have own streams.

    Such a topic never lives in a shared stream: before its own stream exists, no queue or binding
    could receive the message. The exception is a topic that `amq.topic` has no other place for.
    """
    return _AMQP_STREAM.match(text) is not None


def is_writable(topic: str) -> bool:
    """Whether clients may publish to a topic, rights aside: what else begins with $ is ours."""
    return not topic.startswith("$") or is_amqp_address(topic)


def matches(text: str, topic: str) -> bool:
    """Whether the filter `text` matches `topic` for a subscriber."""
    if topic.startswith("$") and text[:1] in ("+", "#"):
        return False
    return covers(text, topic)


def covers(text: str, topic: str) -> bool:
    """Whether the filter `text` matches `topic`, reserved topics included."""
    wanted, levels = text.split("/"), topic.split("/")
    for number, want in enumerate(wanted):
        if want == "#":
            return True
        if number >= len(levels) or want not in ("+", levels[number]):
            return False
    return len(wanted) == len(levels)


def overlap(one: str, other: str) -> bool:
    """Whether some topic could match both filters."""
    left, right = one.split("/"), other.split("/")
    for number in range(max(len(left), len(right))):
        a = left[number] if number < len(left) else None
        b = right[number] if number < len(right) else None
        if a == "#" or b == "#":
            return True
        if a is None or b is None:
            return False
        if a not in (b, "+") and b != "+":
            return False
    return True
