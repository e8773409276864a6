"""Options that many commands share: which configuration, which data directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onelog.config import Loaded, load

ConfigFile = Annotated[
    Path | None,
    Parameter(name=["--config", "-c"], help="Configuration file (default: ./onelog.toml, if any)."),
]
DataDir = Annotated[
    str | None, Parameter(name=["--data", "-d"], help="Data directory; short for --set data_dir=…")
]
Assignments = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative=(),
        show_default=False,
        help="Set one key, such as log.level=debug. Repeatable.",
    ),
]


def load_options(config: Path | None, data: str | None, assignments: tuple[str, ...]) -> Loaded:
    """The configuration that a command line asks for."""
    # --data comes last, so that it also wins over --set data_dir.
    data_dir = () if data is None else (f"data_dir={_quote(data)}",)
    return load(config, os.environ, (*assignments, *data_dir))


def _quote(text: str) -> str:
    """`text` as a TOML string, so that a directory named `1` stays a name."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
