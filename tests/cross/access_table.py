"""The table of operations: the rights that each needs, and how each says that it may not.

Each operation can be done again and again on what its `begin` opened, so that rules may change
while something is open. It answers `YES`, or what the protocol said.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.support.access import House

YES = "yes"
numbers = itertools.count(1)

Act = Callable[[], Awaitable[object]]


@dataclass
class Operation:
    """Something that needs rights."""

    protocol: str
    uses: object
    """What it asks of its protocol: a packet, an API, a method."""
    name: str
    rights: tuple[str, ...]
    """What it needs: rules without `allow` and whom. Each of them is needed."""
    refused: object
    begin: Callable[[House], Awaitable[Act]]
    given: tuple[str, ...] = ()
    """Rights that it always has."""


OPERATIONS: list[Operation] = []


def operation(
    protocol: str, uses: object, refused: object, *rights: str, given: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    """Put an operation into the table; its name is the function's."""

    def keep(begin: Callable[[House], Awaitable[Act]]) -> Callable[[House], Awaitable[Act]]:
        name = begin.__name__.removeprefix(f"{protocol}_")
        OPERATIONS.append(Operation(protocol, uses, name, rights, refused, begin, given))
        return begin

    return keep
