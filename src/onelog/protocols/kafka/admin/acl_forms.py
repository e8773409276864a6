"""Kafka's ACLs and our access rules: one said as the other.

Rules:
- An ACL becomes one rule. READ is *subscribe* of a topic and *consume* of a group, WRITE is
  *publish* of a topic and *consume* of a transactional id; ALTER and ALTER_CONFIGS are *configure*.
  Which of two such operations was meant stands in the rule's note.
- A rule is shown as one ACL for each of its principals and actions. A filter is shown by the name
  of its view, `#` as `*`. What no ACL can say (placeholders, patterns of names with several `*`,
  rules about queues, shares and sessions) is not shown.
- What no rule can say is refused: hosts, and operations that need no right here.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from onelog.base.errors import InvalidName
from onelog.base.names import from_dotted, to_dotted
from onelog.base.topics import is_exact
from onelog.broker import Action
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.security.access.patterns import has_placeholder
from onelog.security.access.rules import (
    ACTIONS,
    ANONYMOUS,
    EVERYONE,
    Effect,
    Rule,
    Target,
    check_rule,
)

ANY: Final = 1
ANY_HOST: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
_WILDCARD: Final = "*"
_ANONYMOUS: Final = "User:ANONYMOUS"


class Resource(IntEnum):
    """What an ACL is about. There are more; these are served."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Pattern(IntEnum):
    """How an ACL names it; a filter may also say ANY, and MATCH."""

    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What an ACL is about doing."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Whether an ACL allows."""

    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One ACL."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    operation: AclOperation
    permission: Permission


_O, _A = AclOperation, Action
_MEANT: Final[dict[Resource, dict[AclOperation, Action]]] = {
    Resource.TOPIC: {
        _O.READ: _A.SUBSCRIBE,
        _O.WRITE: _A.PUBLISH,
        _O.CREATE: _A.CREATE,
        _O.DELETE: _A.DELETE,
        _O.ALTER_CONFIGS: _A.CONFIGURE,
        _O.ALTER: _A.CONFIGURE,
        _O.DESCRIBE: _A.DESCRIBE,
        _O.DESCRIBE_CONFIGS: _A.DESCRIBE,
    },
    Resource.GROUP: {_O.READ: _A.CONSUME, _O.DELETE: _A.DELETE, _O.DESCRIBE: _A.DESCRIBE},
    Resource.TRANSACTIONAL_ID: {_O.WRITE: _A.CONSUME, _O.DESCRIBE: _A.DESCRIBE},
    Resource.CLUSTER: {
        _O.ALTER: _A.ADMIN,
        _O.ALTER_CONFIGS: _A.ADMIN,
        _O.CLUSTER_ACTION: _A.ADMIN,
        _O.DESCRIBE: _A.DESCRIBE,
        _O.DESCRIBE_CONFIGS: _A.DESCRIBE,
    },
}
"""The action that an operation is. Of several operations for one action, the first is shown."""
_CURSORS: Final = {Resource.GROUP: "group/", Resource.TRANSACTIONAL_ID: "transaction/"}
_SELECTORS: Final = {
    "User": "user",
    "Group": "group",
    "Certificate": "certificate",
    "Claim": "claim",
}
_PRINCIPALS: Final = {ours: theirs for theirs, ours in _SELECTORS.items()}


# -- from ACLs to rules


def rule_of(row: Any) -> tuple[Acl, Rule]:
    """An ACL that is to be made, and its rule. Raises KafkaError or OnelogError."""
    if row.host != ANY_HOST:
        raise _refused(f"an ACL counts for every host: * and not {row.host[:100]!r}")
    acl = Acl(
        _known(Resource, row.resource_type, "type of resource"),
        row.resource_name,
        _known(Pattern, row.resource_pattern_type, "type of pattern"),
        row.principal,
        _known(AclOperation, row.operation, "operation"),
        _known(Permission, row.permission_type, "permission"),
    )
    if acl.pattern is Pattern.MATCH:
        raise _refused("MATCH is for filters; an ACL is LITERAL or PREFIXED")
    target, pattern = _target(acl)
    effect: Effect = "allow" if acl.permission is Permission.ALLOW else "deny"
    rule = Rule(
        id="0",
        effect=effect,
        who=(_selector(acl.principal),),
        actions=_actions(acl, target),
        target=target,
        pattern=pattern,
        note=f"Kafka {acl.operation.name}",
    )
    return acl, msgspec.structs.replace(check_rule(rule), id="")


def _known(kind: Any, code: int, what: str) -> Any:
    try:
        return kind(code)
    except ValueError:
        names = ", ".join(row.name for row in kind)
        raise _refused(f"there is no {what} {code} here: use {names}") from None


def _actions(acl: Acl, target: Target) -> tuple[Action, ...]:
    if acl.operation is AclOperation.ALL:
        return ACTIONS[target]
    action = _MEANT[acl.resource].get(acl.operation)
    if action is None:
        raise _refused(
            f"{acl.operation.name} on a {acl.resource.name} is no right here"
            + (
                ": allow CREATE on the topic * instead"
                if acl.operation is AclOperation.CREATE
                else ""
            )
        )
    return (action,)


def _target(acl: Acl) -> tuple[Target, str]:
    prefixed = acl.pattern is Pattern.PREFIXED
    if acl.resource is Resource.CLUSTER:
        if acl.name != CLUSTER_NAME or prefixed:
            raise _refused(f"the cluster is called {CLUSTER_NAME}, and not {acl.name[:100]!r}")
        return Target.SERVER, "*"
    if acl.resource is not Resource.TOPIC:
        if acl.name != _WILDCARD and ("*" in acl.name or has_placeholder(acl.name)):
            raise _refused(f"no rule can say {acl.name[:100]!r}: it has *, %u or %c in it")
        name = _WILDCARD if acl.name == _WILDCARD else acl.name + "*" * prefixed
        return Target.CURSOR, _CURSORS[acl.resource] + name
    if acl.name == _WILDCARD and not prefixed:
        return Target.TOPIC, "#"
    text = from_dotted(acl.name)
    if has_placeholder(text) or (prefixed and not is_exact(text)):
        raise _refused(f"no rule can say {acl.name[:100]!r}: it has a wildcard, %u or %c in it")
    return (Target.PREFIX if prefixed else Target.TOPIC), text


def _selector(principal: str) -> str:
    if principal == "User:*":
        return EVERYONE
    if principal == _ANONYMOUS:
        return ANONYMOUS
    kind, _, name = principal.partition(":")
    if kind not in _SELECTORS or not name:
        known = ", ".join(f"{each}:NAME" for each in _SELECTORS)
        raise _refused(f"{principal[:100]!r} names no principal: use {known} or User:*")
    return f"{_SELECTORS[kind]}:{name}"


def _refused(text: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, text)


# -- from rules to ACLs


def acls_of(rule: Rule) -> Iterator[tuple[Acl, str, tuple[Action, ...]]]:
    """The ACLs that say a rule, each with the selector and the actions that it stands for."""
    for resource, name, pattern in _shown(rule):
        permission = Permission.ALLOW if rule.effect == "allow" else Permission.DENY
        for selector in rule.who:
            for operation, actions in _operations(rule, resource):
                acl = Acl(resource, name, pattern, _principal(selector), operation, permission)
                yield acl, selector, actions


def _shown(rule: Rule) -> Iterator[tuple[Resource, str, Pattern]]:
    if has_placeholder(rule.pattern):
        return
    if rule.target is Target.SERVER:
        if rule.pattern in ("*", "cluster"):
            yield Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL
    elif rule.target is Target.CURSOR:
        for resource, kind in _CURSORS.items():
            name = _WILDCARD if rule.pattern == "*" else rule.pattern.removeprefix(kind)
            if name != rule.pattern or name == _WILDCARD:
                yield from _named(resource, name)
    else:
        try:
            shown = _WILDCARD if rule.pattern == "#" else to_dotted(rule.pattern)
        except InvalidName:  # too long for Kafka
            return
        yield (
            Resource.TOPIC,
            shown,
            Pattern.PREFIXED if rule.target is Target.PREFIX else Pattern.LITERAL,
        )


def _named(resource: Resource, name: str) -> Iterator[tuple[Resource, str, Pattern]]:
    if name == _WILDCARD or "*" not in name:
        yield resource, name, Pattern.LITERAL
    elif name.index("*") == len(name) - 1:
        yield resource, name[:-1], Pattern.PREFIXED


def _operations(
    rule: Rule, resource: Resource
) -> Iterator[tuple[AclOperation, tuple[Action, ...]]]:
    if set(rule.actions) == set(ACTIONS[rule.target]):
        yield AclOperation.ALL, rule.actions
        return
    meant = _MEANT[resource]
    for action in rule.actions:
        fitting = [row for row, each in meant.items() if each is action]
        if fitting:
            noted = [row for row in fitting if rule.note == f"Kafka {row.name}"]
            yield (noted or fitting)[0], (action,)


def _principal(selector: str) -> str:
    if selector == EVERYONE:
        return "User:*"
    if selector == ANONYMOUS:
        return _ANONYMOUS
    kind, _, name = selector.partition(":")
    return f"{_PRINCIPALS[kind]}:{name}"


# -- choosing


class Choice(NamedTuple):
    """A filter of ACLs, as requests have it."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, row: Any) -> Choice:
        """The filter of a request."""
        return cls(
            row.resource_type_filter,
            row.resource_name_filter,
            row.pattern_type_filter,
            row.principal_filter,
            row.host_filter,
            row.operation,
            row.permission_type,
        )

    def takes(self, acl: Acl) -> bool:
        """Whether an ACL is chosen."""
        return (
            self.resource in (ANY, acl.resource)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, ANY_HOST)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        if self.pattern == Pattern.MATCH and self.name is not None:
            if acl.pattern is Pattern.PREFIXED:
                return self.name.startswith(acl.name)
            return acl.name in (self.name, _WILDCARD)
        return self.name in (None, acl.name) and self.pattern in (
            ANY,
            Pattern.MATCH,
            acl.pattern,
        )


def without(rule: Rule, gone: set[tuple[str, Action]]) -> list[Rule]:
    """What is left of a rule when some of what it says of whom goes; each with no id."""
    left = []
    for selector in rule.who:
        actions = tuple(action for action in rule.actions if (selector, action) not in gone)
        if actions:
            left.append(
                msgspec.structs.replace(rule, id="", who=(selector,), actions=actions, note="")
            )
    return left
