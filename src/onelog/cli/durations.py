"""Times as people write them on the command line: 30m, 12h, 90d."""

from __future__ import annotations

import re
from typing import Final

from onelog.base.errors import ConfigError

_UNITS_MS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})([mhd])")


def duration_ms(option: str, text: str) -> int:
    """The milliseconds of a text that was given for an option. Raises ConfigError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(f"{option} {text!r}: write a number and m, h or d, such as 90d")
    return int(found[1]) * _UNITS_MS[found[2]]
