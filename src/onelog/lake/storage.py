"""Where files of tables lie: a directory, or an object store by its URI.

Rules: one set of options (`s3_access.py`) serves the tasks that write files and the libraries that
commit them. All of them wait about a minute for a store that does not answer. A refusal of the
store is one line that says what to check; no line contains a secret.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from onelog.base.errors import NotAuthorized, NotFound, OnelogError, Unavailable
from onelog.lake.s3_access import S3_OPTIONS, s3_access
from onelog.lake.store_files import CLOUD_STARTS, TYPE_NAME, Words, store_files
from onelog.objects.clouds import endpoint_of
from onelog.objects.credentials import ROOTS
from onelog.objects.failures import explained

S3_SCHEMES: Final = ("s3://", "s3a://")
OBJECT_SCHEMES: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss")
OBJECT_STORES: Final = ("s3", "gcs", "abfs", TYPE_NAME)
"""How Arrow and we call the file systems that have no folders."""
CATALOGS: Final = ("pyiceberg", "requests", "sqlalchemy")
"""Modules whose errors concern a catalog, not the store."""
ATTEMPTS: Final = 8
"""Of Arrow; the time between them doubles up to 20 seconds: about a minute in all."""
PATIENCE_S: Final = 60
"""Of delta-rs, which counts the time instead."""
DELTA_RETRIES: Final = {
    "max_retries": "1000",
    "retry_timeout": "{}s",
    "backoff_config.max_backoff": "3s",
}


@dataclass(frozen=True)
class Storage:
    """How files are reached; it goes to tasks, so it holds words and no connection."""

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    words: Words | None = field(default=None, repr=False)
    """In the words of stores, for a store on Azure or Google Cloud Storage."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Storage:
        """The settings from options, their file and the environment. Raises ConfigError."""
        return cls(tuple(sorted(s3_access(given, os.environ).items())))

    def joined(self, told: Mapping[str, Any]) -> Storage:
        """With what a catalog says of the place of its tables: it may lend keys."""
        lent = {name: str(told[name]) for name in S3_OPTIONS if told.get(name)}
        return Storage(tuple(sorted({**dict(self.options), **lent}.items())), self.words)

    def open(self, uri: str) -> tuple[Any, str]:
        """The file system of an address, and the path within it."""
        from pyarrow import fs  # noqa: PLC0415 - an extra

        if uri.startswith(S3_SCHEMES):
            path = uri.partition("://")[2]
            return _s3(self.options, path.partition("/")[0]), path
        if uri.startswith("file:"):  # Hadoop writes one slash, others three
            return fs.LocalFileSystem(), "/" + uri.removeprefix("file:").lstrip("/")
        if "://" not in uri:
            return fs.LocalFileSystem(), str(Path(uri).absolute())
        # Names of files stand as they are: only the host is read as part of an address.
        scheme, _, rest = uri.partition("://")
        host, _, path = rest.partition("/")
        if self.words is not None and uri.startswith(CLOUD_STARTS):
            return store_files(f"{scheme}://{host}", self.words), rest
        files, root = fs.FileSystem.from_uri(f"{scheme}://{host}/")
        return files, f"{root.rstrip('/')}/{path}"

    def for_iceberg(self) -> dict[str, str]:
        """The options as pyiceberg takes them."""
        if self.words is not None:
            from onelog.lake.iceberg_files import properties  # noqa: PLC0415 - an extra

            return properties(self.words)
        return {**dict(self.options), "s3.retry-strategy-impl": f"{__name__}.patience"}

    def for_delta(self) -> dict[str, str]:
        """The options as delta-rs takes them."""
        named = {S3_OPTIONS[name].delta: value for name, value in self.options}
        if named.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            named["AWS_ALLOW_HTTP"] = "true"
        # A commit is a file that must not be there yet; the store itself decides who was first.
        named["aws_conditional_put"] = "etag"
        named |= dict(self.words or ())
        named.pop(ROOTS, None)  # delta-rs has it from the environment of the lake process
        return named | {name: text.format(PATIENCE_S) for name, text in DELTA_RETRIES.items()}

    @contextlib.contextmanager
    def explained(self, uri: str) -> Iterator[None]:
        """Turn a refusal of the store in the block into one line that says what to check."""
        try:
            yield
        except OnelogError:
            raise
        except Exception as error:
            line = self.told(uri, error)
            if line is None:
                raise
            raise line from error

    def told(self, uri: str, error: Exception) -> OnelogError | None:
        """The error in our words; None when it is not about reaching a store."""
        if type(error).__module__.partition(".")[0] in CATALOGS:
            return None
        text = str(error)
        for failure in FAILURES:
            if failure.pattern.search(text):
                if self.words is not None:
                    return explained(uri, endpoint_of(uri, dict(self.words)), "a table", error)
                found = failure.bucket.search(text)
                bucket = found[1] if found else uri.partition("://")[2].partition("/")[0]
                where = dict(self.options).get("s3.endpoint", "Amazon S3")
                return failure.kind(failure.line.format(uri=uri, where=where, bucket=bucket))
        return None


class SpokenFailure(NamedTuple):
    """How libraries say it, and how we do."""

    pattern: re.Pattern[str]
    kind: type[OnelogError]
    line: str
    bucket: re.Pattern[str] = re.compile(r"in bucket '([^']+)'")


FAILURES: Final = (
    SpokenFailure(
        re.compile(r"NO_SUCH_BUCKET|NoSuchBucket"),
        NotFound,
        "{where} has no bucket {bucket}: make it, or check the address {uri}",
    ),
    SpokenFailure(
        re.compile(
            r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|403 Forbidden"
            r"|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|EXPIRED_TOKEN|ExpiredToken"
            r"|INVALID_CLIENT_TOKEN_ID"
        ),
        NotAuthorized,
        "{where} does not let us into {uri}: check s3.access-key-id and s3.secret-access-key (or"
        " the file or environment that has them), and the rights of that key on bucket {bucket}",
    ),
    SpokenFailure(
        re.compile(r"no (?:valid )?credential|NoCredentials|not loaded.*credential", re.IGNORECASE),
        NotAuthorized,
        "credentials for {where} are missing: set s3.access-key-id and s3.secret-access-key,"
        " s3.credentials-file, or the environment of AWS",
    ),
    SpokenFailure(
        re.compile(
            r"NETWORK_CONNECTION|curlCode: \d+|error sending request|[Cc]onnection refused"
            r"|dns error|SERVICE_UNAVAILABLE|SLOW_DOWN|INTERNAL_FAILURE|50[0234] \w"
        ),
        Unavailable,
        "{where} did not answer for {uri}: check s3.endpoint, and that the store runs; what was"
        " committed stays, and the next run goes on behind it",
    ),
)


def patience() -> Any:
    """How often Arrow asks a store that is away, also for pyiceberg, which calls it by name."""
    from pyarrow import fs  # noqa: PLC0415 - an extra

    return fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)


@functools.lru_cache(maxsize=64)
def _s3(options: tuple[tuple[str, str], ...], bucket: str) -> Any:
    """A connection that the tasks of one process share; a new one costs three round trips."""
    from pyarrow import fs  # noqa: PLC0415 - an extra

    named = {S3_OPTIONS[name].arrow: value for name, value in options}
    if "region" not in named:
        named["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(**named, retry_strategy=patience())


def is_object_store(uri: str) -> bool:
    """Whether an address is of a store that Spark needs a jar for."""
    return uri.startswith(tuple(f"{scheme}://" for scheme in OBJECT_SCHEMES))


def make_folder(files: Any, path: str) -> None:
    """Make a folder where there are such; in an object store it would be an object of its own."""
    if files.type_name not in OBJECT_STORES:
        files.create_dir(path, recursive=True)


def create_once(files: Any, path: str, text: bytes) -> bool:
    """Write a small file whole; False when it is there already, which one of two racers sees."""
    from pyarrow import fs  # noqa: PLC0415 - an extra

    make_folder(files, path.rsplit("/", 1)[0])
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
