"""Answers that list the settings of many topics, written row by row: most rows are the same.

Rules: the same bytes as the general codec would write; a test compares them. A row is written once
for all topics that have it (bounded), and the loop has its turn between topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from onelog.kernel import encode_uvarint
from onelog.protocols.kafka.admin.values import ValueSource, ValueType
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.codec import Body, element_writer

_NOT_THROTTLED: Final = b"\0\0\0\0"
_ROWS_REMEMBERED: Final = 10_000


class Shown(NamedTuple):
    """One setting in an answer."""

    name: str
    value: str
    type: ValueType
    about: str
    read_only: bool
    synonyms: tuple[tuple[str, str, ValueSource], ...]
    """Where its value comes from, then the sources of lower rank."""

    @property
    def source(self) -> ValueSource:
        """Where its value comes from."""
        return self.synonyms[0][2]


@lru_cache(_ROWS_REMEMBERED)
def described_row(version: int, row: Shown, *, synonyms: bool, documentation: bool) -> bytes:
    """A setting in an answer to DescribeConfigs."""
    return element_writer(ApiKey.DESCRIBE_CONFIGS, version, "results", "configs")(
        {
            "name": row.name,
            "value": row.value,
            "read_only": row.read_only,
            "config_source": int(row.source),
            "is_sensitive": False,
            "synonyms": [
                {"name": name, "value": value, "source": int(source)}
                for name, value, source in (row.synonyms if synonyms else ())
            ],
            "config_type": int(row.type),
            "documentation": row.about if documentation else None,
        }
    )


@lru_cache(_ROWS_REMEMBERED)
def created_row(version: int, row: Shown) -> bytes:
    """A setting in an answer to CreateTopics."""
    return element_writer(ApiKey.CREATE_TOPICS, version, "topics", "configs")(
        {
            "name": row.name,
            "value": row.value,
            "read_only": row.read_only,
            "config_source": int(row.source),
            "is_sensitive": False,
        }
    )


def element(key: ApiKey, version: int, array: str, body: Body, rows: Sequence[bytes]) -> bytes:
    """An element of an answer whose last field is an array, given as rows that are encoded
    already."""
    written = element_writer(key, version, array)(body)
    if not rows:
        return written
    if version >= APIS[key].flexible:  # the element ends with an empty array and no tags
        assert written.endswith(b"\1\0")
        return b"".join((written[:-2], encode_uvarint(len(rows) + 1), *rows, b"\0"))
    assert written.endswith(b"\0\0\0\0")
    return b"".join((written[:-4], len(rows).to_bytes(4, "big"), *rows))


def answer(key: ApiKey, version: int, elements: Sequence[bytes]) -> bytes:
    """The body of an answer that is one array, after the throttle time."""
    if version >= APIS[key].flexible:
        return b"".join((_NOT_THROTTLED, encode_uvarint(len(elements) + 1), *elements, b"\0"))
    return b"".join((_NOT_THROTTLED, len(elements).to_bytes(4, "big"), *elements))
