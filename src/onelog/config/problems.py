"""What is wrong with a configuration: all of it at once, each with the place it was written at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onelog.base.errors import ConfigError


class Problem(NamedTuple):
    """One key that cannot be used as it is."""

    path: str
    """The key or table, dotted."""
    text: str
    """What is wrong with it and what would be right."""


class ConfigProblems(ConfigError):
    """Everything that is wrong with a configuration, a line for each."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))
