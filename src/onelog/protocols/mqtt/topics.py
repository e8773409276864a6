"""Topic names and filters as MQTT checks them, and the `$share` form (MQTT5 4.7, 4.8).

Rules: this module refuses only what the specification forbids, as malformed: 0x90 and 0x8F are for
names that are well formed and not accepted (2.4). OneLog's own bounds on length and levels are
applied by the door.
"""

from __future__ import annotations

from typing import Final

from onelog.protocols.mqtt.errors import MqttError, malformed

SHARE_PREFIX: Final = "$share/"


def check_topic_name(topic: str, field: str) -> None:
    """Refuse a topic that is empty or has wildcards (4.7.3-1, 3.3.2-2)."""
    if not topic:
        raise malformed(f"the {field} is empty")
    if has_wildcard(topic):
        raise malformed(f"the {field} {topic[:60]!r} has a wildcard")


def has_wildcard(text: str) -> bool:
    """Whether `+` or `#` is anywhere in it."""
    return "+" in text or "#" in text


def split_share(text: str) -> tuple[str | None, str]:
    """The group and the filter of a subscription; the group is None when it is not shared."""
    if not text.startswith(SHARE_PREFIX):
        return None, text
    group, slash, inner = text[len(SHARE_PREFIX) :].partition("/")
    if not group or has_wildcard(group):  # 4.8.2-1, 4.8.2-2
        raise _invalid(text, "needs a group name without wildcards after $share/")
    if not slash or not inner:
        raise _invalid(text, "needs a filter after the group name")
    return group, inner


def check_topic_filter(text: str) -> None:
    """Refuse a filter that is empty or has a wildcard where none may be (4.7.1-1, 4.7.1-2)."""
    if not text:
        raise _invalid(text, "is empty")
    _group, inner = split_share(text)
    if not has_wildcard(inner):
        return
    levels = inner.split("/")
    last = len(levels) - 1
    for number, level in enumerate(levels):
        if "#" in level and (level != "#" or number != last):
            raise _invalid(text, "has a # that is not the whole last level")
        if "+" in level and level != "+":
            raise _invalid(text, "has a + that is not a whole level")


def _invalid(text: str, why: str) -> MqttError:
    return malformed(f"the topic filter {text[:60]!r} {why}")
