"""Writes constraints.txt: what pyproject.toml asks for, in the versions that are installed here.

Only what the project needs is pinned, directly or through others, and not what else is installed.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
OWN = "onelog"
HEAD = """\
# The versions that CI tested together; `make` installs these. Written by `make constraints`:
# CONTRIBUTING.md says how to renew them.
"""


def declared() -> list[Requirement]:
    """Everything that the project asks for: to build, to run, its extras, for development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rows = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for group in (project["project"]["optional-dependencies"], project["dependency-groups"]):
        rows += [row for found in group.values() for row in found]
    return [Requirement(row) for row in rows]


def needed_by(row: Requirement) -> list[Requirement]:
    """What an installed package asks for itself, on this machine."""
    found = (Requirement(text) for text in metadata.requires(row.name) or ())
    extras = row.extras or {""}
    return [
        one
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def pins() -> dict[str, str]:
    """Each package by its name, and its version here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = declared()
    while left:
        row = left.pop()
        name = canonicalize_name(row.name)
        if name == OWN or (name, frozenset(row.extras)) in seen:
            continue
        seen.add((name, frozenset(row.extras)))
        found[name] = metadata.version(name)
        left += needed_by(row)
    return found


def main() -> None:
    """Write the file."""
    rows = [f"{name}=={version}\n" for name, version in sorted(pins().items())]
    (ROOT / "constraints.txt").write_text(HEAD + "".join(rows))
    sys.stdout.write(f"onelog: {len(rows)} versions are in constraints.txt\n")


if __name__ == "__main__":
    main()
