"""A spec of Spark Declarative Pipelines (`spark-pipeline.yml`), read strictly.

Rules: the keys are exactly Spark's. `storage` alone may be left out: then it is below the data
directory, as the checkpoints of other pipelines. Errors that can be found without Spark are
reported here: an unknown key, a pattern without files, invalid Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from onelog.base.errors import ConfigError
from onelog.pipelines.load import read_keys
from onelog.pipelines.needs import need_connect
from onelog.pipelines.spec import Keys, PipelineName, Text

SUFFIXES: Final = (".yml", ".yaml")
DEFINITIONS: Final = (".py", ".sql")


class Glob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pattern of files."""

    include: Text


class Library(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where definitions are."""

    glob: Glob


class SpecKeys(Keys, frozen=True, kw_only=True):
    """The keys of a spec."""

    name: PipelineName
    storage: Text | None = None
    catalog: Text | None = None
    database: Text | None = None
    schema: Text | None = None
    configuration: dict[str, str] = field(default_factory=dict)
    libraries: Annotated[list[Library], Meta(min_length=1)]


class Declarative(msgspec.Struct, frozen=True, kw_only=True):
    """A declarative pipeline, as its spec says it."""

    file: Path
    keys: SpecKeys
    master: str = "local[*]"

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.keys.name

    def tree(self, storage: str) -> dict[str, Any]:
        """The spec as Spark takes it."""
        given = msgspec.to_builtins(self.keys)
        return {"storage": storage} | {key: one for key, one in given.items() if one is not None}


def is_declarative(file: Path) -> bool:
    """Whether a file is a spec, by its name."""
    return file.suffix.lower() in SUFFIXES


def load_declarative(file: Path) -> Declarative:
    """Read and check a spec and the files that it names. Raises ConfigError."""
    need_connect()
    import yaml  # noqa: PLC0415 - an extra

    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{file}: no such file; `onelog pipeline init {file}` writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    try:
        if not isinstance(tree, dict):
            raise ConfigError("the file has to be a table of keys: name, libraries")  # noqa: TRY301
        keys = read_keys({str(key): value for key, value in tree.items()}, "", SpecKeys)
        for library in keys.libraries:
            _check_files(file.absolute().parent, library.glob.include)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return Declarative(file=file.absolute(), keys=keys)


def _check_files(folder: Path, pattern: str) -> None:
    """That a pattern is one of Spark's two forms, and what it names is there and is of a kind."""
    plain = pattern.removesuffix("/**")
    if any(sign in plain for sign in "*?["):
        raise ConfigError(f"libraries: {pattern!r} is neither a file nor folder/**")
    found = [folder / plain] if plain == pattern else sorted((folder / plain).rglob("*"))
    files = [file for file in found if file.is_file() and "__pycache__" not in file.parts]
    if not files:
        raise ConfigError(f"libraries: there is no file at {folder / pattern}")
    for file in files:
        if file.suffix not in DEFINITIONS:
            raise ConfigError(f"libraries: {file} is neither Python (.py) nor SQL (.sql)")
        if file.suffix == ".py":
            _check_python(file)


def _check_python(file: Path) -> None:
    try:
        compile(file.read_bytes(), str(file), "exec")
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        told = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{file}{line}: not valid Python: {told}") from None
