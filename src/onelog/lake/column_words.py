"""The words for typed columns, `json: NAME TYPE, …`, without Arrow: whoever takes settings of a
stream refuses wrong ones at once.

Rules: names differ without regard to case, because many engines read them so. Names of the table's
own columns are refused.
"""

from __future__ import annotations

import re
from typing import Final

from onelog.base.errors import InvalidRequest

OWN_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
)  # fmt: skip
"""The columns that every table of a stream has."""
TYPES: Final = ("boolean", "int", "bigint", "double", "string", "timestamp")
COLUMNS_MAX: Final = 1000
_COLUMN: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})\s+([a-z]+)")


def column_types(text: str) -> dict[str, str]:
    """The type of each column that `json: NAME TYPE, …` names. Raises InvalidRequest."""
    if not text.strip():
        return {}
    form, colon, rest = text.partition(":")
    if form.strip() != "json" or not colon:
        raise InvalidRequest(f"tier.columns is {_shown(text)}: write json: NAME TYPE, NAME TYPE …")
    types: dict[str, str] = {}
    taken = set(OWN_COLUMNS)
    for part in rest.split(","):
        found = _COLUMN.fullmatch(part.strip())
        if found is None or found[2] not in TYPES:
            raise InvalidRequest(
                f"tier.columns: {_shown(part.strip())} is no column: write NAME TYPE with one of"
                f" the types {', '.join(TYPES)}"
            )
        name = found[1]
        if name.lower() in taken:
            raise InvalidRequest(
                f"tier.columns: the table has a column {name.lower()} already: choose another name"
            )
        taken.add(name.lower())
        types[name] = found[2]
    if len(types) > COLUMNS_MAX:
        raise InvalidRequest(f"tier.columns names {len(types)} columns: at most {COLUMNS_MAX}")
    return types


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
