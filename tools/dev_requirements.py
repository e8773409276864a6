"""Prints the extras and the `dev` group of pyproject.toml, a package per line, for any pip.

With names as arguments: only these packages, as the group asks for them, and extras of these names.
With `--console`: the Node that builds the web console, where the system has none.
With `--site`: what builds the documentation's site.
With `--runtime`: what OneLog itself needs, and the library of every storage engine.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]
chosen = set(sys.argv[1:])
wanted = [row for name, rows in extras.items() if not chosen or name in chosen for row in rows]
wanted += [
    row
    for row in project["dependency-groups"]["dev"]
    if not chosen or re.split(r"[\[<>=]", row)[0] in chosen
]
if chosen == {"--runtime"}:
    wanted = project["project"]["dependencies"] + extras["rocksdb"]
if chosen == {"--console"}:
    wanted = project["dependency-groups"]["console"]
if chosen == {"--site"}:
    wanted = project["dependency-groups"]["site"]
sys.stdout.write("\n".join(wanted) + "\n")
