"""Builds the wheel and the sdist of this tree: `python tools/package.py FOLDER [wheel] [sdist]`.

Rules: they are built from a copy, so the tree gets no new files and remains of older builds do not
get into a package. The copy has the compiled kernel of the tree; `setup.py` takes each module that
carries the digest of its sources as it is, and compiles the others. The web console is built first
where there is a Node; its files are package data.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
REMAINS = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.c")
KINDS = ("wheel", "sdist")


def copy_tree(target: Path) -> None:
    """What packages are made from, without what earlier builds left."""
    target.mkdir(parents=True)
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)
    shutil.copytree(ROOT / "src", target / "src", ignore=REMAINS)


def build(kind: str, tree: Path, folder: Path) -> None:
    """One package, by the door that pip uses; what the build prints goes to stderr."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    subprocess.run(  # noqa: S603 - our own interpreter and our own build
        [sys.executable, "-c", code], cwd=tree, stdout=sys.stderr, env=dict(os.environ), check=True
    )


def main() -> None:
    """Build what the command line names, and print the files."""
    folder, *kinds = sys.argv[1:]
    target = Path(folder).resolve()
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(ROOT / "tools" / "console.py"), "--if-possible"], check=True
    )
    with tempfile.TemporaryDirectory() as scratch:
        copy_tree(Path(scratch) / "tree")
        for kind in kinds or KINDS:
            build(kind, Path(scratch) / "tree", target)
    sys.stdout.write("".join(f"{path}\n" for path in sorted(target.iterdir())))


if __name__ == "__main__":
    main()
