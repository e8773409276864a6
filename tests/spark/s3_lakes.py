"""Tables of every format in a bucket of a real S3 server."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tests.spark.lakes import Lake

TOLD = "s3.json"


@dataclasses.dataclass(frozen=True)
class S3Lake(Lake):
    """A place for tables below a prefix of a bucket; the catalog is a file beside the test."""

    root: str = ""
    access: tuple[tuple[str, str], ...] = ()
    rest: str = ""
    """The address of a REST catalog, which knows its warehouse itself."""
    namespace: str = "db"

    def options(self, name: str = "t", **more: str) -> dict[str, str]:
        given = super().options(name, **more) | dict(self.access)
        if self.format == "iceberg":
            given["warehouse"] = f"{self.root}/warehouse"
        if self.rest:
            del given["warehouse"]
            given["catalog"] = self.rest
        return given

    def table(self, name: str) -> str:
        return f"{self.namespace}.{name}" if self.format == "iceberg" else f"{self.root}/{name}"


def s3_lake(form: str, folder: Path, root: str, access: dict[str, str]) -> S3Lake:
    return S3Lake(form, folder, root, tuple(access.items()))


def lake_of(form: str, folder: Path) -> Lake:
    """The tables of a test: in the bucket that `s3.json` of its folder names, or in the folder."""
    told = folder / TOLD
    if not told.exists():
        return Lake(form, folder)
    root, access = json.loads(told.read_text())
    return s3_lake(form, folder, root, access)
