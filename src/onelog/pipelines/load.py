"""Reads a pipeline's file strictly: every error names its key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from onelog.base.errors import ConfigError
from onelog.config.keys import nearest
from onelog.config.units import parse_quantity
from onelog.pipelines.spec import (
    STREAM_KINDS,
    TABLE_KINDS,
    TABLES_OF,
    TARGET_KINDS,
    TRANSFORM_KINDS,
    BrokerKeys,
    Keys,
    Pipeline,
    Source,
    Target,
    Transform,
    Upkeep,
)

KeysT = TypeVar("KeysT", bound=Keys)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def load_pipeline(file: Path) -> Pipeline:
    """Read and check a file. Raises ConfigError."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; `onelog pipeline init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    try:
        return parse_pipeline(tree)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def parse_pipeline(tree: Mapping[str, Any]) -> Pipeline:
    """A pipeline of a parsed file. Raises ConfigError that begins with the key."""
    given = dict(tree)
    for key, kind in TABLES_OF.items():
        if key in given:
            given[key] = _named(given[key], key, kind)
    if "broker" in given:
        given["broker"] = read_keys(given["broker"], "broker", BrokerKeys)
    pipeline = read_keys(given, "", Pipeline)
    _check(pipeline)
    return pipeline


def _named(value: Any, path: str, kind: type[KeysT]) -> dict[str, KeysT]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path} has to be a table of named tables, as [{path}.name]")
    for name in value:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{path}.{name}: a name has letters, digits and _, 64 at most")
    return {name: read_keys(inner, f"{path}.{name}", kind) for name, inner in value.items()}


def read_keys(value: Any, path: str, kind: type[KeysT]) -> KeysT:
    """One table of the file; each key is checked alone, so that the error can name it."""
    if not isinstance(value, dict):
        raise ConfigError(f"{path} has to be a table of keys, not a value")
    fields = {one.encode_name: one for one in msgspec.structs.fields(kind)}
    hints = get_type_hints(kind, include_extras=True)
    before = f"{path}." if path else ""
    found: dict[str, Any] = {}
    for key, given in value.items():
        if key not in fields:
            raise ConfigError(f"unknown key {before}{key}{nearest(key, list(fields))}")
        name = fields[key].name
        if isinstance(given, Keys) or key in TABLES_OF:
            found[name] = given
            continue
        try:
            found[name] = msgspec.convert(given, hints[name])
        except msgspec.ValidationError as error:
            told = str(error)[:1].lower() + str(error)[1:]
            raise ConfigError(f"{before}{key} = {given!r}: {told}") from None
    for key, one in fields.items():
        if one.required and one.name not in found:
            raise ConfigError(f"{before}{key} is missing")
    return kind(**found)


# -- what is right alone and wrong together


def _check(pipeline: Pipeline) -> None:
    _duration("every", pipeline.every)
    if not pipeline.targets and not pipeline.upkeep:
        raise ConfigError("targets are missing: add [targets.name], which says where rows go")
    if pipeline.broker.user and not pipeline.broker.password_file:
        raise ConfigError("broker.user needs broker.password_file")
    known: list[str] = []
    for name, source in pipeline.sources.items():
        _check_source(f"sources.{name}", source)
        known.append(name)
    for name, transform in pipeline.transforms.items():
        if name in known:
            raise ConfigError(f"transforms.{name}: a source has this name already")
        _check_transform(f"transforms.{name}", transform, known)
        known.append(name)
    for name, target in pipeline.targets.items():
        _check_target(f"targets.{name}", target, known)
    for name, upkeep in pipeline.upkeep.items():
        _one_of(f"upkeep.{name}", upkeep, TABLE_KINDS)
        _check_ages(f"upkeep.{name}", upkeep)


def _one_of(path: str, keys: Keys, kinds: tuple[str, ...]) -> str:
    """The one key of several that is set."""
    chosen = [kind for kind in kinds if getattr(keys, kind) not in (None, False)]
    if len(chosen) != 1:
        told = " and ".join(chosen) or "none"
        raise ConfigError(f"{path}: one of {', '.join(kinds)} is needed, and {told} is given")
    return chosen[0]


def _check_source(path: str, source: Source) -> None:
    kind = _one_of(path, source, (*STREAM_KINDS, *TABLE_KINDS))
    if kind in TABLE_KINDS:
        for key in ("decode", "schema", "mode", "watermark", "rows_per_trigger", "headers"):
            if getattr(source, key):
                raise ConfigError(f"{path}.{key} is for topics, and this source is a table")
    if source.decode in ("json", "avro") and not source.schema:
        raise ConfigError(f"{path}.schema is missing: decode = {source.decode!r} needs the columns")
    if (source.schema or source.mode) and not source.decode:
        raise ConfigError(f"{path}.decode is missing: schema and mode need it")
    if source.watermark:
        _duration(f"{path}.watermark", source.watermark)


def _check_transform(path: str, transform: Transform, known: list[str]) -> None:
    kind = _one_of(path, transform, TRANSFORM_KINDS)
    if kind == "sql":
        if transform.inputs:
            raise ConfigError(f"{path}.from: the SQL itself names what it reads: drop the key")
    elif not transform.inputs:
        raise ConfigError(
            f"{path}.from is missing: list the names of the sources and transforms that it reads"
        )
    for name in transform.inputs:
        _check_known(f"{path}.from", name, known)
    if kind == "unique" and len(transform.inputs) != 1:
        raise ConfigError(
            f"{path}.from: unique reads exactly one source or transform, as from = [{known[0]!r}]"
        )
    if (kind == "unique") != (transform.within is not None):
        raise ConfigError(f"{path}.within needs unique: it says how far apart duplicates may be")
    if kind == "python" and not re.fullmatch(r".+\.py:[A-Za-z_]\w*", transform.python or ""):
        raise ConfigError(f"{path}.python = {transform.python!r}: write it as file.py:function")
    for key in ("within", "watermark"):
        text = getattr(transform, key)
        if text is not None:
            _duration(f"{path}.{key}", text)


def _check_target(path: str, target: Target, known: list[str]) -> None:
    kind = _one_of(path, target, TARGET_KINDS)
    _check_known(f"{path}.from", target.rows, known)
    if kind in TABLE_KINDS:
        return
    for key in ("keys", "order_by", "delete_column", "partition_by", "catalog", "warehouse",
                "dead_letter_topic", "dead_letter_table"):  # fmt: skip
        if getattr(target, key):
            raise ConfigError(f"{path}.{key} is for tables, and this target is a {kind}")
    if target.mode != "append":
        raise ConfigError(f"{path}.mode = {target.mode!r} is for tables, not for a {kind}")


def _check_known(path: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ConfigError(
            f"{path}: {name!r} is neither a source nor an earlier transform{nearest(name, known)}"
        )


def _check_ages(path: str, upkeep: Upkeep) -> None:
    for key in ("snapshots", "orphans"):
        _duration(f"{path}.{key}", getattr(upkeep, key))
    if isinstance(upkeep.small_bytes, str):
        try:
            parse_quantity(upkeep.small_bytes, "bytes")
        except ValueError as error:
            raise ConfigError(f"{path}.small_bytes: {error}") from None


def _duration(path: str, text: str) -> int:
    try:
        found = parse_quantity(text, "ms")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if found < 0:
        raise ConfigError(f"{path}: {text!r} is not a duration that is allowed here")
    return found


def duration_ms(text: str) -> int:
    """A duration that was checked when it was read."""
    return _duration("duration", text)
