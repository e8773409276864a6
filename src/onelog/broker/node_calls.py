"""Calls between the nodes of a cluster, as protocols use them: a method by name, an argument, an
answer.

Rules:
- A call that was never sent raises Unavailable. One whose answer did not come raises Timeout:
  whether it was done is not known. An error of the other node is raised as what it was there.
- Whoever serves a method checks that this node may do it: the caller may know an older cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from onelog.base.errors import Unavailable

T = TypeVar("T")

CallHandler = Callable[[int, msgspec.Raw], Awaitable[Any]]
"""Takes the node that asks and the argument in msgpack; returns what msgpack can hold."""


class NodeCalls(Protocol):
    """Asks other nodes, and answers them."""

    async def call(
        self, node: int, method: str, argument: Any, answer: type[T], timeout_s: float
    ) -> T:
        """Ask a node. Raises its error, Unavailable (not asked) or Timeout (not known)."""
        ...

    def serve(self, method: str, handler: CallHandler | None) -> None:
        """Answer a method with this handler from now on; None: not any more."""
        ...


class NoOtherNodes:
    """The calls of a node on its own."""

    async def call(
        self, node: int, method: str, argument: Any, answer: type[T], timeout_s: float
    ) -> T:
        """See `NodeCalls`."""
        del argument, answer, timeout_s
        raise Unavailable(f"this node is on its own, so it cannot ask node {node} for {method}")

    def serve(self, method: str, handler: CallHandler | None) -> None:
        """See `NodeCalls`: nobody asks."""
