"""Prints the extras and the `dev` group of pyproject.toml, a package per line, for any pip.

With names as arguments: only these, as the group asks for them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
wanted = [name for extra in project["project"]["optional-dependencies"].values() for name in extra]
wanted += project["dependency-groups"]["dev"]
if chosen := set(sys.argv[1:]):
    wanted = [row for row in wanted if re.split(r"[\[<>=]", row)[0] in chosen]
sys.stdout.write("\n".join(wanted) + "\n")
