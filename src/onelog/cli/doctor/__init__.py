"""`onelog doctor`: what is wrong with this machine and this configuration, and what to do.

Rules: it changes nothing. It writes one small file into the data directory, to measure the disk,
and removes it. It runs beside a broker and without one. A look that this machine does not allow is
left out, never guessed. Exit code 1: something is wrong that a broker would fail of.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter
from rich.text import Text

from onelog.base.errors import Unavailable
from onelog.cli import render
from onelog.cli.doctor import broker, data, listeners, machine
from onelog.cli.doctor.findings import Finding
from onelog.cli.options import Assignments, ConfigFile, DataDir, load_options
from onelog.config import Config, ConfigProblems, Loaded, file_problems

_STYLES: Final = {"ok": "green", "warning": "bold yellow", "error": "bold red"}

AsJson = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print one JSON array."),
]


def add_doctor(app: App) -> None:
    """Add the command to the tree."""

    @app.command
    def doctor(
        *,
        config: ConfigFile = None,
        data: DataDir = None,
        assignments: Assignments = (),
        as_json: AsJson = False,
    ) -> None:
        """Look for what is wrong with this machine and the configuration, and say what to do."""
        found = examine(config, data, assignments)
        if as_json:
            sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        else:
            _print(found)
        wrong = sum(row.level == "error" for row in found)
        if wrong:
            raise Unavailable(
                f"a broker would fail here: {wrong} of {len(found)} findings are errors"
            )


def examine(
    config: Path | None, data_dir: str | None, assignments: tuple[str, ...]
) -> list[Finding]:
    """Every finding, by area. With a configuration that cannot be read, the machine's alone."""
    found: list[Finding] = []
    try:
        loaded = load_options(config, data_dir, assignments)
    except ConfigProblems as error:
        found += [Finding("error", "config", line, "correct it") for line in error.lines]
    else:
        found += _config_findings(loaded)
        found += _place_findings(loaded.config)
    return found + machine.look(os.environ)


def _config_findings(loaded: Loaded) -> list[Finding]:
    wrong = [
        Finding("error", "config", loaded.tell(row), "correct the path, or make the file readable")
        for row in file_problems(loaded.config)
    ]
    changed = sum(source != "default" for source in loaded.sources.values())
    told = f"{loaded.file or 'no file'}, {changed} of {len(loaded.sources)} keys set"
    return wrong or [Finding("ok", "config", told)]


def _place_findings(config: Config) -> list[Finding]:
    data_dir = Path(config.data_dir)
    holder = data.holder_of(data_dir)
    return [
        *data.look(config),
        *listeners.look(
            config.listeners,
            config.security,
            holder,
            is_clustered=config.cluster.mode != "single",
        ),
        *broker.look(config.listeners.admin, data_dir, holder),
    ]


def _print(found: list[Finding]) -> None:
    for row in found:
        line = Text(f"{row.level:<8}", style=_STYLES[row.level])
        line.append(f"{row.area:<10}", style="not bold dim")
        line.append(row.text, style="not bold default")
        render.OUT.print(line)
        if row.do:
            render.OUT.print(Text(f"{'':<18}→ {row.do}", style="default"))
