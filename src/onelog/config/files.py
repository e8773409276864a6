"""Checks that the files that a configuration names exist and can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onelog.config.keys import known_keys
from onelog.config.model import Config
from onelog.config.problems import Problem


def file_problems(config: Config) -> Iterator[Problem]:
    """The files that cannot be read, of everything that is enabled."""
    for path in known_keys():
        if not path.endswith("_file"):
            continue
        value: Any = config
        is_on = True
        for name in path.split("."):
            value = getattr(value, name)
            is_on = is_on and getattr(value, "enabled", True)
        if value and is_on:
            try:
                Path(value).open("rb").close()
            except OSError as error:
                yield Problem(path, f'{path} = "{value}" cannot be read: {error.strerror}')
