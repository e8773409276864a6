"""One thing that `onelog doctor` looked at."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """What a look found, and what to do about it."""

    level: Level
    """warning: a broker runs, and not as it should; error: it fails, now or soon."""
    area: str
    text: str
    do: str = ""
