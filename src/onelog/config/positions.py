"""Finds the line of each key in a TOML file, for errors.

Rules: the file is valid TOML. The module splits it into statements. A statement is the smallest
number of lines that are valid on their own: a comment, the head of a table, or a key and its value.
So strings and lists of several lines need no rules of their own.
"""

from __future__ import annotations

import tomllib
from typing import Any


def lines_of_keys(text: str) -> dict[str, int]:
    """Dotted path of each key and table → the line that it is first written on, from 1."""
    found: dict[str, int] = {}
    table = ""
    lines = text.replace("\r\n", "\n").split("\n")  # TOML knows no other breaks
    start = 0
    while start < len(lines):
        tree, end = _statement(lines, start)
        if lines[start].lstrip().startswith("["):
            table = _note(tree, "", start + 1, found)
        else:
            _note(tree, table, start + 1, found)
        start = end
    return found


def _statement(lines: list[str], start: int) -> tuple[dict[str, Any], int]:
    """The statement that begins on a line, and the number of the next line."""
    for end in range(start + 1, len(lines) + 1):
        try:
            return tomllib.loads("\n".join(lines[start:end])), end
        except tomllib.TOMLDecodeError:
            continue
    return {}, len(lines)


def _note(tree: dict[str, Any], prefix: str, line: int, found: dict[str, int]) -> str:
    """Note the line of every key that a statement names. Returns the deepest path."""
    deepest = prefix
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else name
        found.setdefault(path, line)
        inner = value[0] if isinstance(value, list) and value else value
        deepest = _note(inner, path, line, found) if isinstance(inner, dict) else path
    return deepest
