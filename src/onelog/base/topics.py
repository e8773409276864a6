"""The grammar of topics and filters, as pure functions on text.

A topic is levels joined by `/`; a level may be empty. A filter may have `+` (one level) and, as
its last level, `#` (the rest, none included: `a/#` covers `a`). Topics that start with `$` are
reserved: a wildcard at the first level does not match them for subscribers (MQTT5 4.7.2), but it
does for captures, because every topic needs a home.
"""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidName
from onelog.base.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX

AUDIT_ROOT: Final = "$audit"
"""The topics below it are the audit trail's. Only the broker writes there."""


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
    if is_exact(text):
        return text
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


def is_audit(text: str) -> bool:
    """Whether a topic is one of the audit trail, or a filter covers no others."""
    return text.startswith(AUDIT_ROOT) and text[len(AUDIT_ROOT) :][:1] in ("", "/")
