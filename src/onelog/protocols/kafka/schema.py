"""The fields of a message from kio's classes: their types, defaults and tags."""

from __future__ import annotations

import dataclasses
import uuid
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from kio.index import load_response_schema

from onelog.protocols.kafka.apis import ApiKey

_VERSIONS_MAX: Final = 20

_IMPLICIT: Final[dict[str, Any]] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "bool": False,
    "uuid": uuid.UUID(int=0),
    "float64": 0.0,
}
"""The default of a field that neither the handler nor kio gives a value; any other type has 0."""


class WireField(NamedTuple):
    """One field of a message or of a structure in it."""

    name: str
    kind: str
    """The type on the wire; empty for a structure."""
    structure: Any
    """The class of a structure; None for plain types."""
    is_array: bool
    tag: int | None
    default: Any
    is_nullable: bool

    @property
    def may_be_absent(self) -> bool:
        """Whether it is a structure with a byte before it that says whether it is present."""
        return self.is_nullable and self.structure is not None and not self.is_array


@cache
def fields_of(schema: Any) -> tuple[WireField, ...]:
    """The fields of a kio class, in the order of the wire."""
    hints = get_type_hints(schema)
    found = []
    for row in dataclasses.fields(schema):
        inner, is_array = _inner(hints[row.name])
        kind = row.metadata.get("kafka_type", "")
        default = row.default
        if default is dataclasses.MISSING:
            default = () if is_array else _IMPLICIT.get(kind, 0)
        structure = inner if dataclasses.is_dataclass(inner) else None
        is_nullable = NoneType in get_args(hints[row.name])
        tag = row.metadata.get("tag")
        found.append(WireField(row.name, kind, structure, is_array, tag, default, is_nullable))
    return tuple(found)


def _inner(hint: Any) -> tuple[Any, bool]:
    """The type inside optionals and arrays, and whether it is an array."""
    origin = get_origin(hint)
    if origin in (UnionType, Union):
        (rest,) = (arg for arg in get_args(hint) if arg is not NoneType)
        return _inner(rest)
    if origin is tuple:
        return _inner(get_args(hint)[0])[0], True
    return hint, False


@cache
def known_names(key: ApiKey) -> frozenset[str]:
    """Every field name that some version of an API's answer has, at any depth."""
    found: set[str] = set()
    for version in range(_VERSIONS_MAX):
        try:
            schema: Any = load_response_schema(int(key), version)
        except Exception as error:  # noqa: BLE001 - kio has no such version
            del error
            continue
        found |= _names(schema)
    return frozenset(found)


def _names(schema: Any) -> set[str]:
    found = set()
    for field in fields_of(schema):
        found.add(field.name)
        if field.structure is not None:
            found |= _names(field.structure)
    return found
