"""The errors of a configuration: all at once, each with the file and line that it stands in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onelog.base.errors import ConfigError


class Problem(NamedTuple):
    """One key that cannot be used as it is."""

    path: str
    """The key or table, dotted."""
    text: str
    """What is wrong with the key, and which values are right."""


class ConfigProblems(ConfigError):
    """All errors of a configuration, one line for each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))
