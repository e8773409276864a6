"""The tree of known keys, read from the model once: paths, types, defaults, environment names."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from onelog.config.model import Config
from onelog.config.section import Section
from onelog.config.units import SCALES

ENV_PREFIX: Final = "ONELOG_"


class Key(NamedTuple):
    """One configuration key."""

    path: str
    """Dotted, as in `--set`: `listeners.admin.port`."""
    type: Any
    """The annotated type that msgspec checks."""
    default: Any
    description: str
    unit: str | None
    """"bytes" or "ms" if the key also takes strings such as "10GB" or "7d"; else None."""
    choices: tuple[str, ...]
    """The allowed words; empty if every value of the type is allowed."""
    wants_text: bool
    """Whether an unquoted word is taken as text."""
    bounds: msgspec.Meta

    @property
    def env(self) -> str:
        """The environment variable that sets this key."""
        return ENV_PREFIX + self.path.replace(".", "_").upper()


@cache
def known_keys() -> types.MappingProxyType[str, Key]:
    """Every key by its dotted path, in the order of the model."""
    return types.MappingProxyType({key.path: key for key in _walk(Config, "")})


@cache
def known_sections() -> types.MappingProxyType[str, type[Section]]:
    """Every table by its dotted path; the root is the empty path."""
    return types.MappingProxyType(dict(_walk_sections(Config, "")))


def nearest(name: str, known: list[str]) -> str:
    """` (did you mean …?)` for an unknown name; empty if no known name is similar."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {found[0]}?)" if found else ""


def _walk(section: type[Section], prefix: str) -> Iterator[Key]:
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        path, hint = prefix + field.name, hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _walk(hint, path + ".")
            continue
        assert get_origin(hint) is Annotated, f"{path} has no description"
        plain, meta = get_args(hint)
        unit = next((u for u in field.name.split("_") if u in SCALES), None)
        yield Key(
            path=path,
            type=hint,
            default=field.default,
            description=meta.description,
            unit=unit if plain is int else None,
            choices=get_args(plain) if get_origin(plain) is Literal else (),
            wants_text=plain is str or get_origin(plain) is Literal,
            bounds=meta,
        )


def _walk_sections(section: type[Section], path: str) -> Iterator[tuple[str, type[Section]]]:
    yield path, section
    hints = get_type_hints(section)
    for field in msgspec.structs.fields(section):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _walk_sections(hint, f"{path}.{field.name}" if path else field.name)
