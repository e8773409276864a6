"""Tables of every format in a bucket of a real S3 server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.spark.lakes import Lake


@dataclasses.dataclass(frozen=True)
class S3Lake(Lake):
    """A place for tables below a prefix of a bucket; the catalog is a file beside the test."""

    root: str = ""
    access: tuple[tuple[str, str], ...] = ()

    def options(self, name: str = "t", **more: str) -> dict[str, str]:
        given = super().options(name, **more) | dict(self.access)
        if self.format == "iceberg":
            given["warehouse"] = f"{self.root}/warehouse"
        return given | {name: text for name, text in more.items() if name.startswith("s3.")}

    def table(self, name: str) -> str:
        return f"db.{name}" if self.format == "iceberg" else f"{self.root}/{name}"


def s3_lake(form: str, folder: Path, root: str, access: dict[str, str]) -> S3Lake:
    return S3Lake(form, folder, root, tuple(access.items()))
