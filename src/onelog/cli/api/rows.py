"""What a row of the table of commands is: words, the operation it asks, options, columns.

Rules: a row names every query parameter and every field of the body that its operation takes; a
test compares both with the API's declarations. Positional arguments are the names in the path, then
the options that are marked so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from onelog.admin.contract import PAGE_MAX

_NAME: Final = re.compile(r"\{(\w+)\}")

Kind = Literal[
    "text",
    "texts",
    "commas",
    "number",
    "flag",
    "duration",
    "bytes",
    "time",
    "headers",
    "table",
    "off",
]
"""How a value is written: `duration` as 7d, `bytes` as 10GB, `time` as milliseconds or a date;
`table` as NAME=VALUE, where a value that is JSON is what it says; `off` is a flag that says no."""

NAME_DEFAULTS: Final = {"vhost": "/"}
"""Names in a path that are options, and what they are when nothing is said."""
PAGING: Final = frozenset({"limit", "cursor", "search"})
"""Query parameters that every list has, and that no row names."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A query parameter or a field of the body."""

    field: str
    about: str
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    positional: bool = False
    required: bool = False
    flag: str = ""
    """How it is written, if not as the field: `--partition`."""

    @property
    def name(self) -> str:
        """Of the option, without dashes before it."""
        return self.flag or self.field.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class ApiCommand:
    """One command, and the operation that it asks."""

    words: str
    """The command: `connection kick`."""
    asks: str
    """The operation: `POST /connections/{connection}/kick`."""
    about: str
    """Help of the command, a sentence; an example follows `as in:`."""
    options: tuple[Option, ...] = ()
    columns: str = ""
    """Of the table, for a list; empty: the answer is one thing, or nothing."""
    done: str = ""
    """The line for people when it is done; names in braces are those of the path and the answer."""
    rows_in: str = ""
    """For a change with a table: the field of the answer that has its rows."""
    fails: tuple[str, str] | None = None
    """For a change with a table: a row whose field has one of these values ends the
    command with 1."""
    patient: bool = False
    """Whether the server may work on it for hours."""
    empty: str = ""
    """The line for people when a list is empty."""
    example: str = ""
    """Arguments of an example, for the page of commands."""
    by_hand: bool = False
    """Whether another module makes the command, because it does more than ask."""
    searches: bool = True
    """Whether the operation takes `search`; else the command looks at the rows itself."""
    second: str = ""
    """For one thing: a part of the answer that a server knows from the second question on."""
    page_max: int = PAGE_MAX
    """Rows of a page, at most; 0: the whole list is one answer."""
    rows_default: int | None = None
    """Rows that are shown when nothing is said; None: all."""

    @property
    def method(self) -> str:
        """HTTP's verb."""
        return self.asks.partition(" ")[0]

    @property
    def path(self) -> str:
        """Below the API's prefix, with names in braces."""
        return self.asks.partition(" ")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(_NAME.findall(self.path))

    @property
    def positional_names(self) -> tuple[str, ...]:
        """Those that have to be given; the others are options with a default."""
        return tuple(name for name in self.names if name not in NAME_DEFAULTS)

    @property
    def is_list(self) -> bool:
        """Whether it shows a list that is there; a change may have a table of what it did."""
        return bool(self.columns) and self.method == "GET"

    def columns_for(self, query: Mapping[str, Any]) -> str:
        """The columns, without those of a part that a flag asks for when it was not asked for."""
        left_out = {one.field for one in self.options if one.kind == "flag"} - {
            name for name, value in query.items() if value
        }
        words = self.columns.split()
        asked = (word for word in words if "." not in word or word.split(".")[0] not in left_out)
        return " ".join(asked)

    @property
    def takes_body(self) -> bool:
        """Whether options go into a body, not into the query."""
        return self.method in ("POST", "PUT", "PATCH")
