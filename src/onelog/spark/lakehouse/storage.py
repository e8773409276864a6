"""Where files of tables lie: a directory, or an object store by its URI.

Rules: one set of options (`storage.s3.endpoint` …) serves the tasks that write files and the
libraries that commit them; without options each takes what the environment says.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onelog.base.errors import ConfigError


class StorageOption(NamedTuple):
    """One option under the names that Arrow and delta-rs know it by; ours is Iceberg's."""

    arrow: str
    delta: str


S3_OPTIONS: Mapping[str, StorageOption] = {
    "s3.endpoint": StorageOption("endpoint_override", "AWS_ENDPOINT_URL"),
    "s3.region": StorageOption("region", "AWS_REGION"),
    "s3.access-key-id": StorageOption("access_key", "AWS_ACCESS_KEY_ID"),
    "s3.secret-access-key": StorageOption("secret_key", "AWS_SECRET_ACCESS_KEY"),
    "s3.session-token": StorageOption("session_token", "AWS_SESSION_TOKEN"),
}


@dataclass(frozen=True)
class Storage:
    """How files are reached; it goes to tasks, so it holds words and no connection."""

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name, _ in self.options:
            if name not in S3_OPTIONS:
                raise ConfigError(f"storage.{name} is unknown: one of {', '.join(S3_OPTIONS)}")

    def open(self, uri: str) -> tuple[Any, str]:
        """The file system of an address, and the path within it."""
        from pyarrow import fs  # noqa: PLC0415 - an extra

        if self.options and uri.startswith("s3://"):
            named = {S3_OPTIONS[name].arrow: value for name, value in self.options}
            if named.get("endpoint_override", "").startswith("http://"):
                named["scheme"] = "http"
            return fs.S3FileSystem(**named), uri.removeprefix("s3://")
        if uri.startswith("file:"):  # Hadoop writes one slash, others three
            return fs.LocalFileSystem(), "/" + uri.removeprefix("file:").lstrip("/")
        if "://" not in uri:
            return fs.LocalFileSystem(), str(Path(uri).absolute())
        # Names of files stand as they are: only the host is read as part of an address.
        scheme, _, rest = uri.partition("://")
        host, _, path = rest.partition("/")
        files, root = fs.FileSystem.from_uri(f"{scheme}://{host}/")
        return files, f"{root.rstrip('/')}/{path}"

    def for_iceberg(self) -> dict[str, str]:
        """The options as pyiceberg takes them."""
        return dict(self.options)

    def for_delta(self) -> dict[str, str]:
        """The options as delta-rs takes them."""
        named = {S3_OPTIONS[name].delta: value for name, value in self.options}
        if named.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            named["AWS_ALLOW_HTTP"] = "true"
        return named


def create_once(files: Any, path: str, text: bytes) -> bool:
    """Write a small file whole; False when it is there already, which one of two racers sees."""
    from pyarrow import fs  # noqa: PLC0415 - an extra

    files.create_dir(path.rsplit("/", 1)[0], recursive=True)
    if isinstance(files, fs.LocalFileSystem):
        fresh = f"{path}.{uuid.uuid4().hex}"
        with open(fresh, "wb") as out:  # noqa: PTH123 - a path of Arrow's file system
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(fresh, path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(fresh).unlink()
        return True
    if files.get_file_info(path).type != fs.FileType.NotFound:
        return False
    with files.open_output_stream(path) as out:
        out.write(text)
    return True
