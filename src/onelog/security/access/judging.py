"""The judge: rules compiled so that a question costs little, however many rules there are.

Rules:
- Deny wins. What no rule allows is denied. Without any rule, everything is allowed.
- A rule is found by its selector first, then by its topic in a trie. Patterns with the user or
  client in them are filled in on the way, so nothing is compiled per principal.
- A filter is asked for by its shape. SUBSCRIBE is allowed if what a rule allows of the filter is
  not covered by one rule that denies: each message is judged again when it is delivered. Any other
  action needs one rule that allows all of the filter, and none that denies a part of it. A filter
  that begins with a wildcard does not ask for topics that begin with `$` (MQTT5 4.7.2).
- Of several rules that say the same, the first one is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from onelog.base.topics import is_exact
from onelog.security.access.patterns import (
    ANY,
    End,
    Fill,
    Shape,
    covers_shape,
    filled,
    filler,
    glob_matches,
    glob_pieces,
    has_placeholder,
    is_reserved,
    shape_of_filter,
    shape_of_prefix,
    shared,
)
from onelog.security.access.rules import ANONYMOUS, EVERYONE, Rule, Target
from onelog.security.identity import ANONYMOUS_NAME
from onelog.security.principals import Action, Kind, Principal

_OF_RULES: Final = {Action.DELIVER: Action.SUBSCRIBE}
"""Actions that rules know by another name."""


class Verdict(msgspec.Struct, frozen=True):
    """The answer to a question, and the rule that it comes from."""

    allowed: bool
    rule: Rule | None = None
    """None: no rule says it."""


def selectors_of(principal: Principal, groups: Iterable[str]) -> tuple[str, ...]:
    """The selectors that mean a principal."""
    if not principal.name:
        return ()
    found = [EVERYONE]
    if principal.name == ANONYMOUS_NAME:
        return (*found, ANONYMOUS)
    found.append(f"user:{principal.name}")
    if principal.certificate:
        found.append(f"certificate:{principal.name}")
    found += [f"group:{name}" for name in groups]
    found += [f"claim:{text}" for text in principal.claims]
    return tuple(found)


class _Node:
    """A level of the trie."""

    __slots__ = ("any", "here", "levels", "prefixes", "rest", "templates")

    def __init__(self) -> None:
        self.levels: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.templates: dict[str, _Node] = {}
        """By levels with a placeholder in them."""
        self.here: list[int] = []
        """Rules for the topic that ends here."""
        self.rest: list[int] = []
        """Rules for it and for all topics below."""
        self.prefixes: list[tuple[str, int]] = []
        """Rules for all topics whose next level begins with a text."""

    def child(self, level: str) -> _Node:
        """The node of a level; made if need be."""
        if level == ANY:
            if self.any is None:
                self.any = _Node()
            return self.any
        return (self.templates if has_placeholder(level) else self.levels).setdefault(
            level, _Node()
        )


class _Book:
    """The rules of one selector."""

    __slots__ = ("names", "root")

    def __init__(self) -> None:
        self.root = _Node()
        self.names: dict[Kind, list[tuple[int, tuple[str, ...]]]] = {}

    def add(self, number: int, rule: Rule, shape: Shape | None) -> None:
        if shape is None:
            self.names.setdefault(rule.target.kind, []).append((number, glob_pieces(rule.pattern)))
            return
        node = self.root
        for level in shape.levels:
            node = node.child(level)
        if shape.end is End.PREFIX:
            node.prefixes.append((shape.prefix, number))
        else:
            (node.rest if shape.end is End.REST else node.here).append(number)


class AccessJudge:
    """Answers questions by a list of rules that never changes."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(sorted(rules, key=lambda rule: rule.order))
        self.tells_clients_apart = any("%c" in rule.pattern for rule in self.rules)
        """Whether an answer may depend on the client id."""
        self._books: dict[str, _Book] = {}
        self._shapes: dict[int, Shape] = {}
        for number, rule in enumerate(self.rules):
            shape = _shape(rule)
            if shape is not None:
                self._shapes[number] = shape
            for selector in rule.who:
                self._books.setdefault(selector, _Book()).add(number, rule, shape)

    def judge(
        self,
        principal: Principal,
        selectors: Sequence[str],
        action: Action,
        resource: str,
        kind: Kind = Kind.TOPIC,
    ) -> Verdict:
        """Whether a principal, whom these selectors mean, may do this."""
        if not self.rules:
            return Verdict(True)
        wanted = _OF_RULES.get(action, action)
        books = [book for name in selectors if (book := self._books.get(name)) is not None]
        fill = filler(principal)
        if kind is not Kind.TOPIC:
            return self._sum_up(_named(books, kind, resource, fill), wanted)
        if is_exact(resource):
            found: list[int] = []
            levels = resource.split("/")
            for book in books:
                _walk(book.root, levels, 0, fill, found)
            return self._sum_up(found, wanted)
        return self._judge_filter(books, action, shape_of_filter(resource), fill)

    def _sum_up(self, found: Iterable[int], action: Action) -> Verdict:
        """The verdict of all rules that are about a thing."""
        best: int | None = None
        for number in sorted(found):
            rule = self.rules[number]
            if action in rule.actions:
                if rule.effect == "deny":
                    return Verdict(False, rule)
                best = number if best is None else best
        return Verdict(False) if best is None else Verdict(True, self.rules[best])

    def _judge_filter(
        self, books: Sequence[_Book], action: Action, asked: Shape, fill: Fill
    ) -> Verdict:
        wanted = _OF_RULES.get(action, action)
        allowing: list[tuple[int, Shape]] = []
        denying: list[tuple[int, Shape]] = []
        found: list[int] = []
        for book in books:
            _touch(book.root, asked, 0, found)
        is_wild = not asked.levels or asked.levels[0] == ANY
        for number in sorted(set(found)):
            rule = self.rules[number]
            shape = filled(self._shapes[number], fill) if wanted in rule.actions else None
            if shape is None or (is_wild and is_reserved(shape)):
                continue
            if shared(shape, asked) is not None:
                (denying if rule.effect == "deny" else allowing).append((number, shape))
        if action is Action.SUBSCRIBE:
            for number, shape in allowing:
                part = shared(shape, asked)
                assert part is not None
                if not any(covers_shape(other, part) for _number, other in denying):
                    return Verdict(True, self.rules[number])
            return Verdict(False, self.rules[denying[0][0]] if allowing else None)
        if denying:
            return Verdict(False, self.rules[denying[0][0]])
        for number, shape in allowing:
            if covers_shape(shape, asked):
                return Verdict(True, self.rules[number])
        return Verdict(False)


def _walk(node: _Node, levels: list[str], at: int, fill: Fill, found: list[int]) -> None:
    """Gather the rules whose patterns match a topic."""
    found += node.rest
    if at == len(levels):
        found += node.here
        return
    level = levels[at]
    for text, number in node.prefixes:
        known = fill(text)
        if known is not None and level.startswith(known):
            found.append(number)
    child = node.levels.get(level)
    if child is not None:
        _walk(child, levels, at + 1, fill, found)
    if node.any is not None:
        _walk(node.any, levels, at + 1, fill, found)
    for template, child in node.templates.items():
        if fill(template) == level:
            _walk(child, levels, at + 1, fill, found)


def _touch(node: _Node, asked: Shape, at: int, found: list[int]) -> None:
    """Gather the rules that may be about a topic of a filter, and perhaps a few more."""
    found += node.rest
    found += [number for _text, number in node.prefixes]
    below: Iterable[_Node] = ()
    if at == len(asked.levels):
        found += node.here
        if asked.end is End.REST:
            below = _children(node)
    elif asked.levels[at] == ANY:
        below, at = _children(node), at + 1
    else:
        child = node.levels.get(asked.levels[at])
        wild = [row for row in (child, node.any) if row is not None]
        below, at = [*wild, *node.templates.values()], at + 1
    for row in below:
        _touch(row, asked, at, found)


def _children(node: _Node) -> Iterator[_Node]:
    yield from node.levels.values()
    yield from node.templates.values()
    if node.any is not None:
        yield node.any


def _shape(rule: Rule) -> Shape | None:
    """The topics that a rule is about; None: it is about names."""
    if rule.target is Target.TOPIC:
        return shape_of_filter(rule.pattern)
    return shape_of_prefix(rule.pattern) if rule.target is Target.PREFIX else None


def _named(books: Sequence[_Book], kind: Kind, name: str, fill: Fill) -> Iterator[int]:
    for book in books:
        for number, pieces in book.names.get(kind, ()):
            if glob_matches(pieces, name, fill):
                yield number
