"""Patterns of rules: topics by filter or by prefix, names by `*`; with the user and client in them.

Rules:
- `%u` is the user's name and `%c` the client id. Each is filled in as plain text: a name with a
  wildcard or a slash in it makes a pattern that matches nothing.
- A wildcard at the first level also covers topics that begin with `$`, as in captures: `#` is every
  topic.
- A `Shape` is a set of topics. Filters and prefixes are shapes, and so is what two of them share.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from onelog.base.errors import InvalidName
from onelog.base.limits import TOPIC_BYTES_MAX, TOPIC_LEVELS_MAX
from onelog.base.topics import check_filter
from onelog.security.principals import Principal

ANY: Final = "+"
"""A level of a shape that is any one level."""
REST: Final = "#"

_PLACEHOLDER: Final = re.compile("%[uc]")
_OPEN: Final = re.compile(r"%[uc]|\*")
_UNSAFE: Final = re.compile("[/+#\0]")

Fill = Callable[[str], str | None]
"""Fills in what a pattern says of its principal; None: the pattern matches nothing."""


class End(IntEnum):
    """How a shape goes on behind its levels."""

    EXACT = 0
    """Not at all."""
    REST = 1
    """With any levels, also none."""
    PREFIX = 2
    """With a level that begins with a text, and any levels behind it."""


class Shape(NamedTuple):
    """A set of topics."""

    levels: tuple[str, ...]
    end: End = End.EXACT
    prefix: str = ""


def has_placeholder(text: str) -> bool:
    """Whether a pattern depends on who asks."""
    return _PLACEHOLDER.search(text) is not None


def plain_head(pattern: str) -> str:
    """The text that everything begins with which a prefix or a pattern of names means."""
    found = _OPEN.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def filler(principal: Principal) -> Fill:
    """Fills in a principal's name and client id, where they may stand in a topic's level."""
    return lambda text: _fill(text, principal)


def _fill(text: str, principal: Principal) -> str | None:
    if "%" not in text:
        return text
    known = {"%u": principal.name, "%c": principal.client_id}
    used = [known[found] for found in _PLACEHOLDER.findall(text)]
    if any(not value or _UNSAFE.search(value) for value in used):
        return None
    return _PLACEHOLDER.sub(lambda match: known[match.group()], text)


# -- topics


def shape_of_filter(text: str) -> Shape:
    """The topics that a filter covers. Raises InvalidName."""
    levels = check_filter(text).split("/")
    if levels[-1] == REST:
        return Shape(tuple(levels[:-1]), End.REST)
    return Shape(tuple(levels))


def shape_of_prefix(text: str) -> Shape:
    """The topics that begin with a text, which may end within a level. Raises InvalidName."""
    if "+" in text or "#" in text or "\0" in text:
        raise InvalidName(f"the prefix {text!r} has a wildcard; a prefix is plain text")
    if len(text.encode("utf-8", "surrogatepass")) > TOPIC_BYTES_MAX:
        raise InvalidName(f"a prefix has at most {TOPIC_BYTES_MAX} bytes")
    *levels, last = text.split("/")
    if len(levels) >= TOPIC_LEVELS_MAX:
        raise InvalidName(f"a prefix has at most {TOPIC_LEVELS_MAX} levels, as a topic has")
    return Shape(tuple(levels), End.PREFIX, last)


def is_reserved(shape: Shape) -> bool:
    """Whether all topics of a shape begin with `$`."""
    first = shape.levels[0] if shape.levels else shape.prefix
    return first.startswith("$")


def filled(shape: Shape, fill: Fill) -> Shape | None:
    """A shape for one principal; None: it is empty."""
    levels = []
    for level in shape.levels:
        known = level if level == ANY else fill(level)
        if known is None:
            return None
        levels.append(known)
    prefix = fill(shape.prefix)
    return None if prefix is None else Shape(tuple(levels), shape.end, prefix)


def shared(one: Shape, other: Shape) -> Shape | None:
    """The topics that two shapes share, or a few more; None: there are none."""
    if len(one.levels) > len(other.levels):
        one, other = other, one
    levels = []
    for mine, theirs in zip(one.levels, other.levels, strict=False):
        if mine != theirs and ANY not in (mine, theirs):
            return None
        levels.append(theirs if mine == ANY else mine)
    rest = other.levels[len(one.levels) :]
    if one.end is End.EXACT:
        return Shape(tuple(levels)) if not rest and other.end is not End.PREFIX else None
    if one.end is End.REST:
        return Shape((*levels, *rest), other.end, other.prefix)
    if rest:
        # Where any level meets the prefix, no shape says what they share. The other shape holds
        # all of it.
        if rest[0] != ANY and not rest[0].startswith(one.prefix):
            return None
        return Shape((*levels, *rest), other.end, other.prefix)
    return _shared_tails(tuple(levels), one, other)


def _shared_tails(levels: tuple[str, ...], one: Shape, other: Shape) -> Shape | None:
    """What a prefix shares with a shape of as many levels."""
    if other.end is End.EXACT:
        return None
    if other.end is End.REST:
        return Shape(levels, End.PREFIX, one.prefix)
    longer, shorter = sorted((one.prefix, other.prefix), key=len, reverse=True)
    return Shape(levels, End.PREFIX, longer) if longer.startswith(shorter) else None


def covers_shape(outer: Shape, inner: Shape) -> bool:
    """Whether every topic of the inner shape is one of the outer."""
    count = len(outer.levels)
    if len(inner.levels) < count:
        # Only what stands for further levels could reach as far, and it stands for fewer, too;
        # but a level behind a prefix is there, and `+` asks no more of it.
        return (
            inner.end is End.PREFIX
            and outer.end is End.REST
            and count == len(inner.levels) + 1
            and outer.levels[-1] == ANY
            and _cover(outer.levels[:-1], inner.levels)
        )
    if not _cover(outer.levels, inner.levels[:count]):
        return False
    rest = inner.levels[count:]
    if outer.end is End.REST:
        return True
    if outer.end is End.EXACT:
        return not rest and inner.end is End.EXACT
    if rest:
        return not outer.prefix or (rest[0] != ANY and rest[0].startswith(outer.prefix))
    return inner.end is End.PREFIX and inner.prefix.startswith(outer.prefix)


def _cover(outer: tuple[str, ...], inner: tuple[str, ...]) -> bool:
    return all(mine in (ANY, theirs) for mine, theirs in zip(outer, inner, strict=True))


# -- names


def check_glob(text: str) -> str:
    """Return a pattern of names if it is one; raise InvalidName otherwise."""
    if not text or "\0" in text:
        raise InvalidName("a pattern of names has at least one character, and no NUL")
    if len(text.encode("utf-8", "surrogatepass")) > TOPIC_BYTES_MAX:
        raise InvalidName(f"a pattern of names has at most {TOPIC_BYTES_MAX} bytes")
    return text


def glob_pieces(text: str) -> tuple[str, ...]:
    """What stands between the `*` of a pattern."""
    return tuple(text.split("*"))


def glob_matches(pieces: tuple[str, ...], name: str, fill: Fill) -> bool:
    """Whether a pattern matches a name; in time linear in both."""
    known = [fill(piece) for piece in pieces]
    if any(piece is None for piece in known):
        return False
    first, *inner = [piece for piece in known if piece is not None]
    if not inner:
        return name == first
    last = inner.pop()
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in inner:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
