"""Rules: allow or deny, to whom, which actions, on what; and how they are written as text.

Rules: a rule is checked when it is made; a rule that is kept is a rule that can be judged by. The
text of a rule is `allow user:alice,group:ops publish,subscribe topic:sensors/%u/#`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Literal

import msgspec

from onelog.base.errors import InvalidName, InvalidRequest
from onelog.security.access.patterns import check_glob, shape_of_filter, shape_of_prefix
from onelog.security.identity import ANONYMOUS_NAME, NAME_BYTES_MAX, RESERVED_NAMES
from onelog.security.principals import Action, Kind

EVERYONE: Final = "everyone"
"""Whoever was let in, anonymous peers too."""
ANONYMOUS: Final = ANONYMOUS_NAME
SELECTORS: Final = ("user", "group", "certificate", "claim")
"""What may stand before the colon of a selector."""

RULE_SELECTORS_MAX: Final = 100
NAMED: Final = (1 << 62, "")
"""The place before all rules that have a name instead of a number."""
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NOTE_CHARS_MAX: Final = 200

Effect = Literal["allow", "deny"]


class Target(StrEnum):
    """How a rule says what it is about."""

    TOPIC = "topic"
    """A filter of topics."""
    PREFIX = "prefix"
    """A text that topics begin with."""
    CURSOR = "cursor"
    """A pattern of names of cursors, behind their kind: `group/*`."""
    SERVER = "server"
    """A pattern of names of the server's parts; `*`: all."""

    @property
    def kind(self) -> Kind:
        """What its questions are about."""
        return Kind.TOPIC if self is Target.PREFIX else Kind(self.value)


ACTIONS: Final[dict[Target, tuple[Action, ...]]] = {
    Target.TOPIC: (
        Action.PUBLISH,
        Action.SUBSCRIBE,
        Action.CREATE,
        Action.CONFIGURE,
        Action.DELETE,
        Action.DESCRIBE,
    ),
    Target.CURSOR: (Action.CONSUME, Action.DELETE, Action.DESCRIBE),
    Target.SERVER: (Action.ADMIN, Action.DESCRIBE),
}
ACTIONS[Target.PREFIX] = ACTIONS[Target.TOPIC]
"""What rules say of each target."""

ALL: Final = "all"
"""Written for every action that the target has."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rule, as the store keeps it."""

    id: str
    effect: Effect
    who: tuple[str, ...]
    """Selectors of principals; one of them is enough."""
    actions: tuple[Action, ...]
    target: Target
    pattern: str
    note: str = ""
    """Where it comes from; nothing is judged by it."""

    @property
    def text(self) -> str:
        """The rule in one line."""
        return f"{self.effect} {','.join(self.who)} {','.join(self.actions)} {self.resource}"

    @property
    def resource(self) -> str:
        """What it is about, as text."""
        return f"{self.target}:{self.pattern}"

    @property
    def order(self) -> tuple[int, str]:
        """The place among all rules: numbers by their value, then names."""
        return (int(self.id), self.id) if self.id.isdigit() else (NAMED[0], self.id)


def check_rule(rule: Rule) -> Rule:
    """Return a rule if it can be judged by; raise InvalidName or InvalidRequest otherwise."""
    if _ID.fullmatch(rule.id) is None:
        raise InvalidName(
            f"the rule's name {rule.id[:80]!r} must have 1 to 64 letters, digits, '.', '_' or '-'"
        )
    if not rule.who or len(rule.who) > RULE_SELECTORS_MAX:
        raise InvalidRequest(f"a rule is about 1 to {RULE_SELECTORS_MAX} principals")
    for selector in rule.who:
        _check_selector(selector)
    known = ACTIONS[rule.target]
    wrong = [action for action in rule.actions if action not in known]
    if wrong or not rule.actions:
        raise InvalidRequest(
            f"a rule about a {rule.target} says {', '.join(known)} or {ALL}"
            + (f", not {wrong[0]}" if wrong else "")
        )
    if (
        rule.effect == "deny"
        and Action.DESCRIBE in rule.actions
        and set(rule.actions) != set(known)
    ):
        raise InvalidRequest(
            "a rule that denies describe denies all: any other right shows the thing as well"
        )
    if rule.target is Target.TOPIC:
        shape_of_filter(rule.pattern)
    elif rule.target is Target.PREFIX:
        shape_of_prefix(rule.pattern)
    else:
        check_glob(rule.pattern)
    if len(rule.note) > _NOTE_CHARS_MAX:
        raise InvalidRequest(f"the note of a rule has at most {_NOTE_CHARS_MAX} characters")
    return rule


def _check_selector(text: str) -> None:
    if text in (EVERYONE, ANONYMOUS):
        return
    kind, colon, name = text.partition(":")
    if not colon or kind not in SELECTORS or not name:
        raise InvalidName(
            f"{text[:80]!r} names no principal: use user:NAME, group:NAME, certificate:NAME,"
            f" claim:NAME=VALUE, {ANONYMOUS} or {EVERYONE}"
        )
    if len(text.encode("utf-8", "surrogatepass")) > 2 * NAME_BYTES_MAX:
        raise InvalidName(f"the principal {text[:80]!r}… is too long")
    if kind == "claim" and not all(name.partition("=")[::2]):
        raise InvalidName(f"{text[:80]!r} needs a value: claim:NAME=VALUE")
    if kind == "user" and name in RESERVED_NAMES:
        raise InvalidName(
            f"{text!r} is nobody's name; write {ANONYMOUS} for peers without a name"
            if name == ANONYMOUS
            else f"{text!r} is the broker itself, which needs no rule"
        )


def parse_resource(text: str) -> tuple[Target, str]:
    """The target and pattern of `topic:a/#`, `prefix:a/b`, `cursor:group/*` or `server`."""
    target, _, pattern = text.partition(":")
    if text == Target.SERVER:
        return Target.SERVER, "*"
    try:
        known = Target(target)
    except ValueError:
        known = None
    if known is None or not pattern:
        raise InvalidRequest(
            f"{text[:80]!r} names nothing that a rule is about: use topic:FILTER, prefix:TEXT,"
            " cursor:PATTERN (as in cursor:group/*) or server"
        )
    return known, pattern


def parse_actions(text: str, target: Target) -> tuple[Action, ...]:
    """The actions of `publish,subscribe` or `all`."""
    if text == ALL:
        return ACTIONS[target]
    names = {str(action): action for action in ACTIONS[target]}
    found = []
    for name in text.split(","):
        action = names.get(name)
        if action is None:
            raise InvalidRequest(
                f"{name[:80]!r} is no action on a {target}: use {', '.join(names)} or {ALL}"
            )
        found.append(action)
    return tuple(dict.fromkeys(found))


def make_rule(
    effect: str, who: Iterable[str], actions: str, resource: str, *, name: str, note: str = ""
) -> Rule:
    """A rule of its parts as people write them. Raises InvalidName or InvalidRequest."""
    if effect not in ("allow", "deny"):
        raise InvalidRequest(f"a rule begins with allow or deny, not {effect[:80]!r}")
    target, pattern = parse_resource(resource)
    return check_rule(
        Rule(
            id=name,
            effect="allow" if effect == "allow" else "deny",
            who=tuple(dict.fromkeys(who)),
            actions=parse_actions(actions, target),
            target=target,
            pattern=pattern,
            note=note,
        )
    )
