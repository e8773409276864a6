"""The commented example configuration, made from the model so that it never lies."""

from __future__ import annotations

import inspect
import json
import textwrap
from typing import Any

import msgspec

from onelog.config.keys import Key, known_keys, known_sections
from onelog.config.units import format_quantity


def toml_value(key: Key, value: Any) -> str:
    """A value as one would write it in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f'"{format_quantity(value, key.unit)}"' if key.unit else str(value)
    if isinstance(value, float):
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_inline_table(row) for row in value)}]"
    return f'"{value}"'


def _inline_table(row: Any) -> str:
    """A row of a list as TOML; JSON strings and numbers are TOML too."""
    if isinstance(row, str):
        return json.dumps(row)
    fields = msgspec.to_builtins(row)
    return f"{{{', '.join(f'{name} = {json.dumps(value)}' for name, value in fields.items())}}}"


def example_toml() -> str:
    """Every key, commented out, at its default, under its description."""
    lines = [
        "# OneLog configuration. Every key is shown with its default; remove the # to change it.",
        "# Sizes: kB MB GB TB (1000) or KiB MiB GiB TiB (1024). Durations: ms s m h d w.",
        "# Each key can also be set by environment (log.level: ONELOG_LOG_LEVEL) or by",
        "# `onelog serve --set log.level=debug`.",
    ]
    for path, section in known_sections().items():
        keys = [key for key in known_keys().values() if key.path.rpartition(".")[0] == path]
        if not keys:
            continue
        lines.append("")
        if path:
            about = inspect.cleandoc(section.__doc__ or "").replace("`", "")
            lines += [f"# {line}".rstrip() for line in about.splitlines()]
            lines.append(f"[{path}]")
        for key in keys:
            about = key.description
            if key.choices:
                about += f" One of: {', '.join(key.choices)}."
            lines += textwrap.wrap(about, 96, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"#{key.path.rpartition('.')[2]} = {toml_value(key, key.default)}")
    return "\n".join(lines) + "\n"
