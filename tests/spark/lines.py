"""Other lines of Spark beside the installed one, under `build/spark`; pip fetches them.

Usage: python -m tests.spark.lines 4.1
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCH_S = 900
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def line_folder(line: str) -> Path:
    """Where the packages of a line lie; they come before the installed ones on the path."""
    return ROOT / "build" / "spark" / f"pyspark-{line}"


def has_line(line: str) -> bool:
    return (line_folder(line) / "complete").exists()


def fetch(line: str) -> None:
    """Fetch a line of PySpark once."""
    folder = line_folder(line)
    if has_line(line):
        return
    sys.stderr.write(f"onelog: fetching PySpark {line}\n")
    subprocess.run(
        [*PIP, "--target", str(folder), f"pyspark=={line}.*"],
        check=True,
        timeout=FETCH_S,
    )
    (folder / "complete").touch()


def environment(line: str) -> dict[str, str]:
    """The environment in which a Python finds this line and the sources.

    Its Java has a home of its own: Spark takes a jar for there when Maven's cache names it.
    """
    home = ROOT / "build" / "spark" / "home"
    home.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(line_folder(line)), str(ROOT / "src"), str(ROOT)])
    clean = {name: text for name, text in os.environ.items() if not name.startswith("SPARK_")}
    return clean | {"PYTHONPATH": path, "SPARK_SUBMIT_OPTS": f"-Duser.home={home}"}


if __name__ == "__main__":
    fetch(sys.argv[1])
