"""Hanging hooks up so that their owner can take all of them down again."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TypeVar

H = TypeVar("H")


def hang(undo: ExitStack, hooks: list[H], hook: H) -> None:
    """Hang a hook up; closing `undo` takes it down."""
    hooks.append(hook)
    undo.callback(hooks.remove, hook)
