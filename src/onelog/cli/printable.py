"""Text from outside, made safe for a terminal: nothing in it moves the cursor or changes a title.

Rules: topics, client ids and errors hold what clients chose. Each character that does not print
(controls, escape sequences, direction marks, line separators) is shown as its escape: \\x1b. JSON
says the same to a program, escaped as JSON escapes.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_BEYOND_ASCII = re.compile(r"[\x7f-\U0010ffff]+")


def visible(text: str) -> str:
    """The text with every character that does not print as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_text(value: Any) -> str:
    """One line of JSON; what does not print is escaped, also beyond ASCII."""
    return escape_json(msgspec.json.encode(value).decode())


def escape_json(text: str) -> str:
    """JSON that says the same, without characters that do not print."""
    return text if text.isprintable() else _BEYOND_ASCII.sub(_escape_run, text)


def _escape_run(found: re.Match[str]) -> str:
    return "".join(char if char.isprintable() else _json_escape(char) for char in found[0])


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
