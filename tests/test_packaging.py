"""What is imported is declared, where it is needed, and pinned at a version that is allowed."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
OWN = {"onelog", "pyspark_onelog", "pyspark_onelog_table"}
ROOMS = {
    "onelog/objects/bucket.py": "object",
    "onelog/observe/tracing.py": "otel",
    "onelog/storage/kv/": "rocksdb",
    "onelog/lake/": "lake",
    "onelog/spark/connect.py": "spark-connect",
    "onelog/pipelines/declarative/": "spark-connect",
    "onelog/spark/": "spark",
    "onelog/pipelines/": "spark",
    "pyspark_onelog": "spark",
}
"""Which extra a room may need, beside what everybody has; the first that fits counts."""


def names_of(rows: list[str]) -> set[str]:
    """The packages of requirements, with those of our own extras that they name."""
    found = set()
    for row in map(Requirement, rows):
        if row.name == "onelog":
            found |= {name for extra in row.extras for name in names_of(EXTRAS[extra])}
        else:
            found.add(canonicalize_name(row.name))
    return found


CORE = names_of(PROJECT["project"]["dependencies"])


def allowed_in(path: str) -> set[str]:
    extra = next((name for room, name in ROOMS.items() if path.startswith(room)), None)
    return CORE | (names_of(EXTRAS[extra]) if extra else set())


def imports_of(tree: ast.AST) -> set[str]:
    """The packages, of no standard library, that a module imports anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found - OWN - sys.stdlib_module_names


def undeclared(path: str, tree: ast.AST, homes: dict[str, list[str]]) -> list[str]:
    allowed = allowed_in(path)
    return [
        f"{path}: {name} is of {homes.get(name, ['nothing installed'])}, and not declared for it"
        for name in sorted(imports_of(tree))
        if not allowed & {canonicalize_name(home) for home in homes.get(name, ())}
    ]


def test_every_import_of_the_package_is_declared_for_its_room():
    homes = dict(metadata.packages_distributions())
    found = [
        row
        for path in sorted(SOURCES.rglob("*.py"))
        for row in undeclared(
            path.relative_to(SOURCES).as_posix(), ast.parse(path.read_text()), homes
        )
    ]
    assert not found


def test_an_import_of_another_room_s_extra_is_found():
    homes = {"rocksdict": ["rocksdict"], "yaml": ["PyYAML"], "msgspec": ["msgspec"]}
    kv, elsewhere = "onelog/storage/kv/x.py", "onelog/log/x.py"
    assert not undeclared(kv, ast.parse("from rocksdict import Rdict"), homes)
    assert undeclared(elsewhere, ast.parse("def f():\n    import rocksdict"), homes)
    assert undeclared("onelog/spark/x.py", ast.parse("import yaml.nodes"), homes)
    assert not undeclared("onelog/pipelines/declarative/x.py", ast.parse("import yaml"), homes)
    assert not undeclared(elsewhere, ast.parse("import os, msgspec\nfrom . import y"), homes)


def test_everything_that_is_asked_for_is_pinned_at_a_version_that_it_allows():
    rows = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(row) for row in rows if not row.startswith("#")]
    versions = {row.name: next(iter(row.specifier)).version for row in pins}
    assert list(versions) == sorted(versions)
    groups = (EXTRAS, PROJECT["dependency-groups"])
    asked = PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]
    asked += [row for group in groups for rows in group.values() for row in rows]
    for row in map(Requirement, asked):
        if row.name != "onelog":
            pin = versions.get(canonicalize_name(row.name))
            assert pin is not None, f"{row.name}: make constraints"
            assert row.specifier.contains(pin), f"{row} is pinned at {pin}: make constraints"
