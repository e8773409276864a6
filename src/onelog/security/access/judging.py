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
- A rule comes and goes by itself: nothing is compiled anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
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
    plain_head,
    shape_of_filter,
    shape_of_prefix,
    shared,
)
from onelog.security.access.rules import ANONYMOUS, EVERYONE, NAMED, Rule, Target
from onelog.security.identity import ANONYMOUS_NAME
from onelog.security.principals import TOKEN_GROUP, Action, Kind, Principal

_CLIENT: Final = "%c"
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
    for text in principal.claims:
        group = text.removeprefix(TOKEN_GROUP)
        found.append(f"claim:{text}" if group == text else f"group:{group}")
    return tuple(found)


class _Entry:
    """A rule as it is judged by."""

    __slots__ = ("actions", "denies", "order", "pieces", "rule", "shape")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.order = rule.order
        self.denies = rule.effect == "deny"
        self.actions = frozenset(rule.actions)
        self.shape = _shape(rule)
        """The topics that it is about; None: it is about names."""
        self.pieces = () if self.shape is not None else glob_pieces(rule.pattern)


class _ByHead:
    """Entries by the plain text that their patterns begin with."""

    __slots__ = ("_rows", "_sizes")

    def __init__(self) -> None:
        self._rows: dict[str, list[_Entry]] = {}
        self._sizes: Counter[int] = Counter()
        """How many different texts there are of each length."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, pattern: str, entry: _Entry) -> None:
        head = plain_head(pattern)
        if head not in self._rows:
            self._rows[head] = []
            self._sizes[len(head)] += 1
        self._rows[head].append(entry)

    def remove(self, pattern: str, entry: _Entry) -> None:
        head = plain_head(pattern)
        self._rows[head].remove(entry)
        if not self._rows[head]:
            del self._rows[head]
            self._sizes[len(head)] -= 1
            if not self._sizes[len(head)]:
                del self._sizes[len(head)]

    def near(self, name: str) -> Iterator[_Entry]:
        """Those whose text a name begins with."""
        for size in self._sizes:
            if size <= len(name):
                yield from self._rows.get(name[:size], ())

    def every(self) -> Iterator[_Entry]:
        return chain.from_iterable(self._rows.values())


class _Node:
    """A level of the trie."""

    __slots__ = ("any", "here", "levels", "prefixes", "rest", "templates")

    def __init__(self) -> None:
        self.levels: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.templates: dict[str, _Node] = {}
        """By levels with a placeholder in them."""
        self.here: list[_Entry] = []
        """Rules for the topic that ends here."""
        self.rest: list[_Entry] = []
        """Rules for it and for all topics below."""
        self.prefixes = _ByHead()
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

    def drop(self, level: str) -> bool:
        """Let go of a level that says nothing any more. Returns whether it was let go."""
        child = self.child(level)
        if (
            child.levels or child.any or child.templates
            or child.here or child.rest or child.prefixes
        ):  # fmt: skip
            return False
        if level == ANY:
            self.any = None
        else:
            del (self.templates if has_placeholder(level) else self.levels)[level]
        return True


class _Book:
    """The rules of one selector."""

    __slots__ = ("count", "names", "root")

    def __init__(self) -> None:
        self.root = _Node()
        self.names: dict[Kind, _ByHead] = {}
        self.count = 0

    def add(self, entry: _Entry) -> None:
        self.count += 1
        shape = entry.shape
        if shape is None:
            kind = entry.rule.target.kind
            self.names.setdefault(kind, _ByHead()).add(entry.rule.pattern, entry)
            return
        node = self.root
        for level in shape.levels:
            node = node.child(level)
        if shape.end is End.PREFIX:
            node.prefixes.add(shape.prefix, entry)
        else:
            (node.rest if shape.end is End.REST else node.here).append(entry)

    def remove(self, entry: _Entry) -> None:
        self.count -= 1
        shape = entry.shape
        if shape is None:
            self.names[entry.rule.target.kind].remove(entry.rule.pattern, entry)
            return
        path = [self.root]
        for level in shape.levels:
            path.append(path[-1].child(level))
        node = path[-1]
        if shape.end is End.PREFIX:
            node.prefixes.remove(shape.prefix, entry)
        else:
            (node.rest if shape.end is End.REST else node.here).remove(entry)
        for above, level in zip(path[-2::-1], shape.levels[::-1], strict=True):
            if not above.drop(level):
                break


class AccessJudge:
    """Answers questions by a list of rules. The cost of a change does not grow with the list."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._entries: list[_Entry] = sorted(map(_Entry, rules), key=_order)
        self._books: dict[str, _Book] = {}
        self._of_clients = 0
        for entry in self._entries:
            self._enter(entry)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule, in its order."""
        return tuple(entry.rule for entry in self._entries)

    @property
    def tells_clients_apart(self) -> bool:
        """Whether an answer may depend on the client id."""
        return self._of_clients > 0

    @property
    def highest_number(self) -> int:
        """The highest id that is a number; 0: there is none."""
        at = bisect_left(self._entries, NAMED, key=_order)
        return self._entries[at - 1].order[0] if at else 0

    def add(self, rule: Rule) -> None:
        """Judge by this rule, too. Its id is new."""
        entry = _Entry(rule)
        insort(self._entries, entry, key=_order)
        self._enter(entry)

    def remove(self, rule: Rule) -> None:
        """Judge by this rule no more."""
        entry = self._entries.pop(bisect_left(self._entries, rule.order, key=_order))
        assert entry.rule.id == rule.id, "it was there"
        self._of_clients -= _CLIENT in rule.pattern
        for selector in rule.who:
            book = self._books[selector]
            book.remove(entry)
            if not book.count:
                del self._books[selector]

    def _enter(self, entry: _Entry) -> None:
        self._of_clients += _CLIENT in entry.rule.pattern
        for selector in entry.rule.who:
            self._books.setdefault(selector, _Book()).add(entry)

    def judge(
        self,
        principal: Principal,
        selectors: Sequence[str],
        action: Action,
        resource: str,
        kind: Kind = Kind.TOPIC,
    ) -> Verdict:
        """Whether a principal, whom these selectors mean, may do this."""
        if not self._entries:
            return Verdict(True)
        wanted = _OF_RULES.get(action, action)
        books = [book for name in selectors if (book := self._books.get(name)) is not None]
        fill = filler(principal)
        if kind is not Kind.TOPIC:
            return _sum_up(_named(books, kind, resource, fill), wanted)
        if is_exact(resource):
            found: list[_Entry] = []
            levels = resource.split("/")
            for book in books:
                _walk(book.root, levels, 0, fill, found)
            return _sum_up(found, wanted)
        return _judge_filter(books, action, shape_of_filter(resource), fill)


def _order(entry: _Entry) -> tuple[int, str]:
    return entry.order


def _sum_up(found: Iterable[_Entry], action: Action) -> Verdict:
    """The verdict of all rules that are about a thing."""
    best: _Entry | None = None
    for entry in found:
        if action in entry.actions and (
            best is None or (not entry.denies, entry.order) < (not best.denies, best.order)
        ):
            best = entry
    return Verdict(False) if best is None else Verdict(not best.denies, best.rule)


def _judge_filter(books: Sequence[_Book], action: Action, asked: Shape, fill: Fill) -> Verdict:
    wanted = _OF_RULES.get(action, action)
    allowing: list[tuple[_Entry, Shape]] = []
    denying: list[tuple[_Entry, Shape]] = []
    found: list[_Entry] = []
    for book in books:
        _touch(book.root, asked, 0, found)
    is_wild = not asked.levels or asked.levels[0] == ANY
    for entry in sorted(dict.fromkeys(found), key=_order):
        assert entry.shape is not None, "names are not in the trie"
        shape = filled(entry.shape, fill) if wanted in entry.actions else None
        if shape is None or (is_wild and is_reserved(shape)):
            continue
        if shared(shape, asked) is not None:
            (denying if entry.denies else allowing).append((entry, shape))
    if action is Action.SUBSCRIBE:
        for entry, shape in allowing:
            part = shared(shape, asked)
            assert part is not None
            if not any(covers_shape(other, part) for _entry, other in denying):
                return Verdict(True, entry.rule)
        return Verdict(False, denying[0][0].rule if allowing else None)
    if denying:
        return Verdict(False, denying[0][0].rule)
    for entry, shape in allowing:
        if covers_shape(shape, asked):
            return Verdict(True, entry.rule)
    return Verdict(False)


def _walk(node: _Node, levels: list[str], at: int, fill: Fill, found: list[_Entry]) -> None:
    """Gather the rules whose patterns match a topic."""
    found += node.rest
    if at == len(levels):
        found += node.here
        return
    level = levels[at]
    for entry in node.prefixes.near(level):
        assert entry.shape is not None
        known = fill(entry.shape.prefix)
        if known is not None and level.startswith(known):
            found.append(entry)
    child = node.levels.get(level)
    if child is not None:
        _walk(child, levels, at + 1, fill, found)
    if node.any is not None:
        _walk(node.any, levels, at + 1, fill, found)
    for template, child in node.templates.items():
        if fill(template) == level:
            _walk(child, levels, at + 1, fill, found)


def _touch(node: _Node, asked: Shape, at: int, found: list[_Entry]) -> None:
    """Gather the rules that may be about a topic of a filter, and perhaps a few more."""
    found += node.rest
    found += node.prefixes.every()
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


def _named(books: Sequence[_Book], kind: Kind, name: str, fill: Fill) -> Iterator[_Entry]:
    for book in books:
        rows = book.names.get(kind)
        for entry in rows.near(name) if rows is not None else ():
            if glob_matches(entry.pieces, name, fill):
                yield entry
