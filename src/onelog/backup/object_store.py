"""Backups in object storage: S3 and what else obstore speaks. The one room of obstore.

Rules: credentials come from the environment of the process or from options, in the words of
obstore (`aws_access_key_id`, `aws_endpoint`, `aws_region` …). Every request has a deadline and is
tried again. A PUT that was answered is durable, so `flush` has nothing to do.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from onelog.backup.disk import Bytes, read_part
from onelog.backup.stores import StoredObject
from onelog.base import faults
from onelog.base.errors import ConfigError, InvalidRequest, NotFound, StorageError, Unavailable

_CLIENT: Final = ("allow_http", "allow_invalid_certificates", "proxy_url", "timeout")
"""Options of the connection; all others are those of the store."""
_ENDPOINTS: Final = ("aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url")
_TIMEOUT: Final = datetime.timedelta(seconds=60)
_TRIES: Final = datetime.timedelta(seconds=180)
_DELETED_AT_ONCE: Final = 1000
_REFUSALS: Final = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""Answers that obstore does not tell from others when it lists."""

try:
    import obstore
    from obstore.exceptions import (
        BaseError,
        NotFoundError,
        NotSupportedError,
        PermissionDeniedError,
        PreconditionError,
    )
    from obstore.exceptions import UnauthenticatedError as Unauthenticated
    from obstore.store import from_url
except ModuleNotFoundError as missing:
    if missing.name != "obstore":
        raise
    raise ConfigError(
        "object storage needs the library obstore, which is not installed:"
        f" {sys.executable} -m pip install 'onelog[s3]', then try again; a folder needs no library"
    ) from missing


class ObjectBackups:
    """Backups below the prefix of a bucket."""

    at_once = 4
    """A request is on its way for much longer than its bytes are."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        client: dict[str, Any] = {"timeout": _TIMEOUT}
        client |= {name: options[name] for name in _CLIENT if name in options}
        config = {name: value for name, value in options.items() if name not in client}
        endpoint = next((config[name] for name in _ENDPOINTS if name in config), "")
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint.startswith("http://"):
            client.setdefault("allow_http", True)
        try:
            # Its types know each option of each store by name; it checks them when it is called.
            open_store: Any = from_url
            self._store: Any = open_store(
                url,
                config=config,
                client_options=client,
                retry_config={"max_retries": 10, "retry_timeout": _TRIES},
            )
        except (BaseError, ValueError) as error:
            raise InvalidRequest(
                f"{url!r} cannot be used: {error}; write s3://BUCKET/PREFIX, and options as obstore"
                " has them, such as aws_region=eu-central-1"
            ) from error

    def put(self, name: str, data: Bytes) -> None:
        """One PUT."""
        faults.hit("backup.put")
        with self._translated(name):
            obstore.put(self._store, name, bytes(data), use_multipart=False)

    def put_part(self, name: str, file: int, position: int, size_bytes: int) -> None:
        """One PUT of what is read."""
        self.put(name, read_part(file, position, size_bytes))

    def touch(self, name: str) -> None:
        """A PUT of the same bytes, on condition that the name is there; some stores know no
        conditions."""
        with self._translated(name):
            found = obstore.get(self._store, name)
            data, tag = bytes(found.bytes()), found.meta["e_tag"]
            try:
                obstore.put(self._store, name, data, use_multipart=False, mode={"e_tag": tag})
            except (NotImplementedError, NotSupportedError):
                obstore.put(self._store, name, data, use_multipart=False)

    def flush(self) -> None:
        """A PUT that was answered is durable."""

    def get(self, name: str) -> bytes:
        """One GET."""
        with self._translated(name):
            return bytes(obstore.get(self._store, name).bytes())

    def head(self, name: str, size_bytes: int) -> bytes:
        """One GET of a range."""
        with self._translated(name):
            return bytes(obstore.get_range(self._store, name, start=0, length=size_bytes))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All pages of a listing."""
        with self._translated(prefix):
            for page in obstore.list(self._store, prefix):
                for row in page:
                    modified_ms = int(row["last_modified"].timestamp() * 1000)
                    yield StoredObject(row["path"], row["size"], modified_ms)

    def delete(self, names: Sequence[str]) -> None:
        """Delete in groups."""
        for at in range(0, len(names), _DELETED_AT_ONCE):
            with self._translated(names[at]):
                obstore.delete(self._store, list(names[at : at + _DELETED_AT_ONCE]))

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except (NotFoundError, PreconditionError, FileNotFoundError) as error:
            raise NotFound(f"{self._url}: {name} is missing") from error
        except BaseError as error:
            told = str(error).partition("\n\nDebug source")[0]
            refused = isinstance(error, PermissionDeniedError | Unauthenticated)
            if refused or any(f"<Code>{code}<" in told for code in _REFUSALS):
                raise StorageError(
                    f"{self._url} refuses this process ({told}): set AWS_ACCESS_KEY_ID and"
                    " AWS_SECRET_ACCESS_KEY in the environment of the process that asks"
                    " (`onelog serve` for a new backup), and let the key read, write, list and"
                    " delete"
                ) from error
            raise Unavailable(
                f"{self._url}: {name} could not be reached ({told}): check the bucket, the"
                " endpoint (aws_endpoint) and the network, then begin again"
            ) from error
