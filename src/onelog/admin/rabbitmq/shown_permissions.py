"""What RabbitMQ's permissions show of rules that others made, as by `onelog acl`.

Rules:
- A user is shown what rules that mean it allow on queues and exchanges: rules about its name, its
  groups and everyone. A permission that this API made is shown as it was given, and others beside
  it.
- A rule is shown by a name, or a beginning of names, of which this API would make the same rule
  (`permission_forms.py`), so that what is shown is never more than the rule says. What no
  expression says (topics, placeholders, some of configure's actions, denials) is not shown.
- A change takes the place of rules that are about this user alone and say nothing but permissions
  of this virtual host. Other rules stay as they are, and stay shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from onelog.admin.rabbitmq.permission_forms import (
    ALL,
    DEFAULT_EXCHANGE,
    EVERYTHING,
    RIGHTS,
    Named,
    Row,
    is_given,
    is_of,
    permissions_of,
    rules_for,
)
from onelog.admin.rabbitmq.requests import BadRequest
from onelog.broker import Action
from onelog.queues.addresses import address_of, queue_cursor
from onelog.security.access.patterns import has_placeholder
from onelog.security.access.rules import Rule, Target

_UNPLAIN: Final = re.compile(r"([^A-Za-z0-9_:/@%~ -])")

Said = tuple[tuple[str, Named], ...]
"""Rights, each with the names that have it."""


def said_by(rule: Rule, vhost: str) -> Said:
    """What a rule that another made says of the queues and exchanges of a virtual host."""
    if rule.effect != "allow" or is_given(rule) or has_placeholder(rule.pattern):
        return ()
    return tuple(
        (right, name)
        for name in dict.fromkeys(_names(rule, vhost))
        for right in RIGHTS
        if _is_said(rule, vhost, right, name)
    )


def _names(rule: Rule, vhost: str) -> Iterator[Named]:
    """The names that a rule could be about."""
    yield ALL
    yield Named(DEFAULT_EXCHANGE, False)
    pattern = rule.pattern
    if rule.target is Target.CURSOR:
        found = pattern.removeprefix(queue_cursor(vhost, ""))
        yield Named(found.removesuffix("*"), found.endswith("*"))
    elif pattern.startswith("$"):
        is_prefix = rule.target is Target.PREFIX
        address = address_of(pattern if is_prefix else pattern.removesuffix("/#"))
        yield Named(address.exchange or address.routing_key, is_prefix)


def _is_said(rule: Rule, vhost: str, right: str, name: Named) -> bool:
    try:
        made = list(rules_for(vhost, right, name))
    except BadRequest:
        return False
    return any(
        (target, pattern) == (rule.target, rule.pattern) and set(actions) <= set(rule.actions)
        for target, pattern, actions in made
    )


def expression_of(names: Iterable[Named]) -> str:
    """A regular expression that takes these names; `names_of` reads it back."""
    found = sorted(set(names))
    if ALL in found:
        return EVERYTHING
    return "|".join(
        f"^{_UNPLAIN.sub(_escaped, name.text)}{'.*' if name.is_prefix else '$'}" for name in found
    )


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[1]}"


def shown_permissions(
    rules: Sequence[Rule], vhosts: Iterable[str], users: Mapping[str, Iterable[str]]
) -> list[Row]:
    """The permissions of users; each user is given with the selectors that mean it."""
    found = {(row["user"], row["vhost"]): row for row in permissions_of(rules)}
    for vhost in vhosts:
        by_selector: dict[str, list[tuple[str, Named]]] = {}
        for rule in rules:
            said = said_by(rule, vhost)
            for selector in rule.who if said else ():
                by_selector.setdefault(selector, []).extend(said)
        for user, selectors in users.items() if by_selector else ():
            said = tuple(row for selector in selectors for row in by_selector.get(selector, ()))
            if said:
                empty = {"user": user, "vhost": vhost, **dict.fromkeys(RIGHTS, "")}
                _add(found.setdefault((user, vhost), empty), said)
    return list(found.values())


def _add(row: Row, said: Said) -> None:
    for right in RIGHTS:
        text = expression_of(name for found, name in said if found == right)
        given = row[right]
        if EVERYTHING in (text, given):
            row[right] = EVERYTHING
        elif text:
            row[right] = text if given in ("", "^$") else f"{given}|{text}"


def replaced_by(rules: Iterable[Rule], vhost: str, user: str) -> list[Rule]:
    """The rules whose place a new permission of a user in a virtual host takes."""
    return [
        rule
        for rule in rules
        if is_of(rule, vhost, user) or (rule.who == (f"user:{user}",) and _is_only(rule, vhost))
    ]


def _is_only(rule: Rule, vhost: str) -> bool:
    """Whether a rule says nothing but permissions of a virtual host."""
    if rule.target is Target.TOPIC and rule.pattern == "#":
        return False  # it is about the topics of every protocol
    said = {Action.DESCRIBE}  # who may do anything sees the thing
    for right, name in said_by(rule, vhost):
        for target, pattern, actions in rules_for(vhost, right, name):
            if (target, pattern) == (rule.target, rule.pattern):
                said.update(actions)
    return len(said) > 1 and said.issuperset(rule.actions)
