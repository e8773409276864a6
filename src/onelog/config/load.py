"""Loads the configuration: defaults, then the file, then the environment, then `--set`.

Rules: strict everywhere. An unknown key or variable is an error that names its file, variable or
flag, and the nearest known key. An error about a value names its key. The loader reports all errors
at once, those of a file with their line. Nothing starts with half a configuration.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from onelog.base.errors import ConfigError
from onelog.config.keys import ENV_PREFIX, Key, known_keys, known_sections, nearest
from onelog.config.model import Config, whole_problems
from onelog.config.positions import lines_of_keys
from onelog.config.problems import ConfigProblems, Problem
from onelog.config.section import Section
from onelog.config.units import format_quantity, parse_quantity

RESERVED_ENV: Final = frozenset(
    {
        "ONELOG_CONFIG",
        "ONELOG_FAULTS",
        "ONELOG_LAKEHOUSE",
        "ONELOG_PROGRESS",
        "ONELOG_PURE",
        "ONELOG_REQUIRE_NATIVE",
        "ONELOG_SERVERS",
        "ONELOG_TOKEN",
        "ONELOG_URL",
    }
)
"""Variables that other modules read, and that are not configuration keys."""

_KUBERNETES_LINK = re.compile(r"ONELOG_(SERVICE|PORT)(_.*)?")
"""Variables that Kubernetes sets in every pod when a Service has the name `onelog`."""

_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)")

DEFAULT_FILE: Final = "onelog.toml"
"""Read from the working directory, if it exists and no file was named."""


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, and the origin of each of its values."""

    config: Config
    sources: dict[str, str]
    """Dotted path of each key → "default", the file, the variable, or "--set"."""
    file: Path | None
    lines: dict[str, int] = {}
    """Dotted path of each key and table in the file → its line."""

    def tell(self, problem: Problem) -> str:
        """The text of a problem, with the file and line, variable or flag that it stands in."""
        source = self.sources.get(problem.path, "default")
        # A key that is missing in the file is reported at the line of its table.
        if source in ("default", str(self.file)) and self.file is not None:
            path = problem.path
            while path and path not in self.lines:
                path = path.rpartition(".")[0]
            if path:
                return f"{self.file}:{self.lines[path]}: {problem.text}"
        elif source != "default":
            return f"{source}: {problem.text}"
        return problem.text


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
) -> Loaded:
    """Load and check the whole configuration. Raises ConfigProblems.

    `file` None means: what `ONELOG_CONFIG` names, else `onelog.toml` when there is one.
    """
    environ = {} if environ is None else environ
    found = _find_file(file, environ)
    lines: dict[str, int] = {}
    values: dict[str, Any] = {path: key.default for path, key in known_keys().items()}
    sources = dict.fromkeys(values, "default")
    wrong: dict[str, list[str]] = {}
    """The errors of each key."""
    layers: tuple[Iterable[_Said], ...] = (
        _from_file(found, lines) if found else (),
        _from_environment(environ),
        _from_assignments(assignments),
    )
    for layer in layers:
        for said in layer:
            try:
                key = said.key()
                values[key.path] = _checked(key, said.value, said.source)
                sources[key.path] = said.name
            except ConfigError as error:
                wrong.setdefault(said.path, []).append(str(error))
    loaded = Loaded(_build(Config, "", values), sources, found, lines)
    told = [text for texts in wrong.values() for text in texts]
    told += [loaded.tell(row) for row in whole_problems(loaded.config) if row.path not in wrong]
    if told:
        raise ConfigProblems(told)
    return loaded


class _Said(NamedTuple):
    """A value for a key, from the file, the environment or a flag."""

    path: str
    value: Any
    name: str
    """The origin of the value: the file, the variable, the flag."""
    source: str
    """The origin with its line: an error begins with it."""
    problem: str = ""
    """Why the value cannot be checked at all; empty: it can."""

    def key(self) -> Key:
        """The key that the value is for. Raises ConfigError."""
        if self.problem:
            raise ConfigError(self.problem)
        return known_keys()[self.path]


def _find_file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file is None and environ.get("ONELOG_CONFIG"):
        file = Path(environ["ONELOG_CONFIG"])
    if file is not None:
        return file
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


def _from_file(file: Path, lines: dict[str, int]) -> Iterator[_Said]:
    name = str(file)
    try:
        text = file.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        yield _Said("", None, name, name, _why_unreadable(file, error))
        return
    lines.update(lines_of_keys(text))
    yield from _flatten(tree, "", name, lines)


def _why_unreadable(file: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{file}: no such file; `onelog config init` writes one"
    if not isinstance(error, tomllib.TOMLDecodeError):
        return f"{file}: cannot be read: {error}"
    what = _lower_first(_TOML_PLACE.sub("", str(error)))
    at = _TOML_PLACE.search(str(error))
    place = f"{file}:{at[1]}:{at[2]}" if at else f"{file}"
    return f"{place}: not valid TOML: {what}"


def _flatten(
    table: dict[str, Any], prefix: str, name: str, lines: dict[str, int]
) -> Iterator[_Said]:
    for part, value in table.items():
        path = prefix + part
        source = f"{name}:{lines[path]}" if path in lines else name
        said = _Said(path, value, name, source)
        if path in known_sections():
            if isinstance(value, dict):
                yield from _flatten(value, path + ".", name, lines)
            else:
                yield said._replace(problem=f"{source}: {path} is a table of keys, not a value")
        elif path in known_keys():
            yield said
        else:
            yield said._replace(problem=f"{source}: unknown key {path}{_nearest_path(path)}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Said]:
    by_env = {key.env: key for key in known_keys().values()}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in RESERVED_ENV:
            continue
        if name not in by_env:
            if not _KUBERNETES_LINK.fullmatch(name):
                hint = nearest(name, [*by_env, *sorted(RESERVED_ENV)])
                yield _Said(name, None, name, name, f"unknown environment variable {name}{hint}")
            continue
        key = by_env[name]
        yield _Said(key.path, _parse_text(key, environ[name]), name, name)


def _from_assignments(assignments: Sequence[str]) -> Iterator[_Said]:
    for text in assignments:
        path, equals, value = text.partition("=")
        path = path.strip()
        name = f"--set {path}"
        problem = ""
        if not equals:
            problem = f"--set {text}: expected key=value, such as log.level=debug"
        elif path in known_sections():
            problem = f"--set {path} is a table of keys; set one of them"
        elif path not in known_keys():
            problem = f"--set: unknown key {path}{_nearest_path(path)}"
        if problem:
            yield _Said(path, None, name, name, problem)
        else:
            yield _Said(path, _parse_text(known_keys()[path], value.strip()), name, name)


def _nearest_path(path: str) -> str:
    known = [*known_keys(), *filter(None, known_sections())]
    return nearest(path, known) or "; `onelog config show` lists every key"


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
        elif isinstance(key.default, int) and isinstance(error, msgspec.ValidationError):
            shown = str(key.default).lower()
            example = format_quantity(key.default, key.unit) if key.unit else shown
            problem += f", such as {_show(example) if key.unit else example} (the default)"
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
    for name in section.__struct_fields__:
        inner = f"{path}.{name}" if path else name
        below = known_sections().get(inner)
        arguments[name] = _build(below, inner, values) if below else values[inner]
    return section(**arguments)
