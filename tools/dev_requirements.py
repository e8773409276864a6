"""Prints the extras and the `dev` group of pyproject.toml, a package per line, for any pip."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
wanted = [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
wanted += project["dependency-groups"]["dev"]
sys.stdout.write("\n".join(wanted) + "\n")
