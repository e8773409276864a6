"""Access rules as one line of text."""

from __future__ import annotations

import msgspec

from onelog.security.access.rules import Rule, make_rule


def rule(text: str, name: str = "") -> Rule:
    """A rule of `allow user:ann publish topic:a`; without a name it gets a number when kept."""
    effect, who, actions, resource = text.split()
    made = make_rule(effect, who.split(","), actions, resource, name=name or "0")
    return msgspec.structs.replace(made, id=name)
