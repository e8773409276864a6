"""Loads the configuration: defaults, then the file, then the environment, then `--set`.

Rules: strict everywhere. An unknown key or variable is an error that names where it was written
and the nearest known one; a value of the wrong type or out of bounds names its key. Nothing is
started with half a configuration.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from onelog.base.errors import ConfigError
from onelog.config.keys import ENV_PREFIX, Key, known_keys, known_sections, nearest
from onelog.config.model import Config, check_whole
from onelog.config.section import Section
from onelog.config.units import parse_quantity

RESERVED_ENV: Final = frozenset(
    {
        "ONELOG_CONFIG",
        "ONELOG_FAULTS",
        "ONELOG_LAKEHOUSE",
        "ONELOG_PURE",
        "ONELOG_REQUIRE_NATIVE",
        "ONELOG_SERVERS",
    }
)
"""Variables that are read elsewhere and are no configuration keys."""

_KUBERNETES_LINK = re.compile(r"ONELOG_(SERVICE|PORT)(_.*)?")
"""What Kubernetes puts into every pod beside a Service that is named `onelog`."""

DEFAULT_FILE: Final = "onelog.toml"
"""Read from the working directory when it is there and no file was named."""


class Loaded(msgspec.Struct, frozen=True):
    """A configuration and where each of its values came from."""

    config: Config
    sources: dict[str, str]
    """Dotted path of each key → "default", the file, the variable, or "--set"."""
    file: Path | None


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
) -> Loaded:
    """Load and check the whole configuration. Raises ConfigError.

    `file` None means: what `ONELOG_CONFIG` names, else `onelog.toml` when there is one.
    """
    environ = {} if environ is None else environ
    found = _find_file(file, environ)
    values: dict[str, Any] = {path: key.default for path, key in known_keys().items()}
    sources = dict.fromkeys(values, "default")
    layers = (
        _from_file(found) if found else (),
        _from_environment(environ),
        _from_assignments(assignments),
    )
    for layer in layers:
        for key, value, source in layer:
            values[key.path] = _checked(key, value, source)
            sources[key.path] = source
    config = _build(Config, "", values)
    check_whole(config)
    return Loaded(config, sources, found)


def _find_file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file is None and environ.get("ONELOG_CONFIG"):
        file = Path(environ["ONELOG_CONFIG"])
    if file is not None:
        return file
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


def _from_file(file: Path) -> Iterator[tuple[Key, Any, str]]:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; `onelog config init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    yield from _flatten(tree, "", str(file))


def _flatten(table: dict[str, Any], prefix: str, source: str) -> Iterator[tuple[Key, Any, str]]:
    for name, value in table.items():
        path = prefix + name
        if path in known_sections():
            if not isinstance(value, dict):
                raise ConfigError(f"{source}: {path} is a table of keys, not a value")
            yield from _flatten(value, path + ".", source)
        elif path in known_keys():
            yield known_keys()[path], value, source
        else:
            raise ConfigError(f"{source}: unknown key {path}{_nearest_path(path)}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[Key, Any, str]]:
    by_env = {key.env: key for key in known_keys().values()}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in RESERVED_ENV:
            continue
        if name not in by_env:
            if _KUBERNETES_LINK.fullmatch(name):
                continue
            hint = nearest(name, [*by_env, *sorted(RESERVED_ENV)])
            raise ConfigError(f"unknown environment variable {name}{hint}")
        key = by_env[name]
        yield key, _parse_text(key, environ[name]), name


def _from_assignments(assignments: Sequence[str]) -> Iterator[tuple[Key, Any, str]]:
    for text in assignments:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals:
            raise ConfigError(f"--set {text}: expected key=value, such as log.level=debug")
        if path in known_sections():
            raise ConfigError(f"--set {path} is a table of keys; set one of them")
        if path not in known_keys():
            raise ConfigError(f"--set: unknown key {path}{_nearest_path(path)}")
        key = known_keys()[path]
        yield key, _parse_text(key, value.strip()), f"--set {path}"


def _nearest_path(path: str) -> str:
    known = [*known_keys(), *filter(None, known_sections())]
    return nearest(path, known)


def _parse_text(key: Key, text: str) -> Any:
    """Text of a flag or variable as a TOML value; a bare word is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    if set(parsed) != {"value"}:  # text with line breaks made further keys
        return text
    value = parsed["value"]
    return text if key.wants_text and not isinstance(value, str) else value


def _checked(key: Key, value: Any, source: str) -> Any:
    try:
        if key.unit is not None and isinstance(value, str):
            value = parse_quantity(value, key.unit)
        return msgspec.convert(value, key.type)
    except (msgspec.ValidationError, ValueError) as error:
        problem = _lower_first(str(error))
        if key.choices:
            problem = f"expected one of {', '.join(key.choices)}"
        # For a flag or a variable the source already names the key.
        where = source if source.endswith(key.path) else f"{source}: {key.path}"
        raise ConfigError(f"{where} = {_show(value)}: {problem}") from None


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


SectionT = TypeVar("SectionT", bound=Section)


def _build(section: type[SectionT], path: str, values: dict[str, Any]) -> SectionT:
    arguments: dict[str, Any] = {}
    for field in msgspec.structs.fields(section):
        inner = f"{path}.{field.name}" if path else field.name
        below = known_sections().get(inner)
        arguments[field.name] = _build(below, inner, values) if below else values[inner]
    return section(**arguments)
