"""Names with placeholders: `%c` is the client id, `%u` the user, `$1` the first match of a rule.

Rules: a value is one level, never a wildcard: a client id with `/`, `+` or `#` cannot reach topics
of others. `%%` and `$$` are the characters themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from onelog.base.errors import ConfigError, InvalidName

_HOLE: Final = re.compile(r"%([cu%])|\$([1-9$])")
_FORBIDDEN: Final = frozenset("/+#\0")


def expand(template: str, client_id: str, user: str, groups: Sequence[str] = ()) -> str:
    """Fill the placeholders. Raises InvalidName when a client id or user would be more than one
    level."""

    def fill(hole: re.Match[str]) -> str:
        letter, number = hole.groups()
        if letter is None:
            return "$" if number == "$" else groups[int(number) - 1]
        if letter == "%":
            return "%"
        value = client_id if letter == "c" else user
        if _FORBIDDEN & set(value):
            raise InvalidName(f"{value[:60]!r} cannot be a level of {template!r}")
        return value

    return _HOLE.sub(fill, template)


def names_client(template: str) -> bool:
    """Whether the template contains the client id."""
    return any(hole[1] == "c" for hole in _HOLE.finditer(template))


def check_template(template: str, groups: int = 0) -> str:
    """The template, if `groups` matches can fill it. Raises ConfigError otherwise."""
    for hole in _HOLE.finditer(template):
        if hole[2] is not None and hole[2] != "$" and int(hole[2]) > groups:
            raise ConfigError(f"{template!r} names ${hole[2]}, but its rule matches {groups} parts")
    if not template:
        raise ConfigError("a template must not be empty")
    return template
