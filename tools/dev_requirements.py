"""Prints the `dev` group of pyproject.toml, one package per line, for any version of pip."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
sys.stdout.write("\n".join(project["dependency-groups"]["dev"]) + "\n")
