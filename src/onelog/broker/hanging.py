"""Adding hooks to lists so that their owner can remove all of them again."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import TypeVar

H = TypeVar("H")


def hang(undo: ExitStack | AsyncExitStack, hooks: list[H], hook: H) -> None:
    """Add a hook to a list; closing `undo` removes it."""
    hooks.append(hook)
    undo.callback(hooks.remove, hook)
