"""Sizes and durations as people write them: `"256MiB"`, `"7d"`, `"unlimited"`.

Rules: a bare number is in the unit that the key's name ends with (`_bytes`, `_ms`). `kB MB GB TB`
are powers of 1000, `KiB MiB GiB TiB` of 1024; letter case does not matter. "unlimited" is -1,
"retention" (the bound of the stream's retention) is -2, where a key allows it.
"""

from __future__ import annotations

import re
from typing import Final

UNLIMITED: Final = -1
AS_RETENTION: Final = -2
_WORDS: Final = {"unlimited": UNLIMITED, "retention": AS_RETENTION}

_BYTES: Final[dict[str, int]] = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_MILLISECONDS: Final[dict[str, int]] = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
SCALES: Final[dict[str, dict[str, int]]] = {"bytes": _BYTES, "ms": _MILLISECONDS}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_quantity(text: str, unit: str) -> int:
    """The number of `unit` ("bytes" or "ms") that `text` means. Raises ValueError."""
    if (word := text.strip().lower()) in _WORDS:
        return _WORDS[word]
    found = _QUANTITY.fullmatch(text)
    scale = SCALES[unit]
    if found is None:
        raise ValueError(f"{text!r} is not {_expected(unit)}")
    number, suffix = found.groups()
    factor = scale.get(suffix.lower()) if suffix else 1
    if factor is None:
        raise ValueError(f"{text!r} has the unknown unit {suffix!r}: expected {_expected(unit)}")
    value = float(number) * factor if "." in number else int(number) * factor
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number of {unit}")
    return int(value)


def format_quantity(value: int, unit: str) -> str:
    """The shortest exact way to write `value`, for people: 268435456 bytes is `256MiB`."""
    for word, meaning in _WORDS.items():
        if value == meaning:
            return word
    names = {"kb": "kB", "mb": "MB", "gb": "GB", "tb": "TB"}
    names |= {"kib": "KiB", "mib": "MiB", "gib": "GiB", "tib": "TiB", "b": "B"}
    best = f"{value}{'B' if unit == 'bytes' else 'ms'}"
    for suffix, factor in SCALES[unit].items():
        if value and value % factor == 0:
            text = f"{value // factor}{names.get(suffix, suffix)}"
            if len(text) < len(best):
                best = text
    return best


def _expected(unit: str) -> str:
    if unit == "bytes":
        return 'a size such as "512KiB", "256MiB" or "10GB"'
    return 'a duration such as "500ms", "10s", "15m", "12h" or "7d"'
