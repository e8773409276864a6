"""A declarative pipeline to begin with: a spec, and definitions beside it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from onelog.base.errors import ConfigError

FOLDER: Final = "transformations"
DEFINITIONS: Final = "readings.py"
SPARK_NAME: Final = "spark-pipeline"
"""The file name that Spark's own command looks for; such a spec is named by its directory."""


def write_project(file: Path) -> list[Path]:
    """Write spec and definitions; what was written. Raises ConfigError."""
    name = file.absolute().parent.name if file.stem == SPARK_NAME else file.stem
    definitions = file.parent / FOLDER / DEFINITIONS
    texts = {file: _template("spec.yml").replace("@name@", name)}
    texts[definitions] = _template("readings.py.txt")
    for path in texts:
        if path.exists():
            raise ConfigError(f"{path} exists already; nothing was written")
    try:
        definitions.parent.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    return list(texts)


def _template(name: str) -> str:
    return files("onelog.pipelines.jobs").joinpath("declarative", name).read_text("utf-8")
