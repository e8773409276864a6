"""Backups in object storage: S3 and what else `objects/bucket.py` speaks.

Rules: credentials come from the environment of the process or from options, in the words of
obstore (`aws_access_key_id`, `aws_endpoint`, `aws_region` …). Every request has a deadline and is
tried again. A PUT that was answered is durable, so `flush` has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from onelog.backup.disk import Bytes, read_part
from onelog.base import faults
from onelog.base.errors import ColdUnavailable, StorageError, Unavailable
from onelog.objects.access import StoredObject
from onelog.objects.bucket import BucketAccess
from onelog.objects.store import StoreSettings

_DEADLINE_MS: Final = 180_000
"""A backup has no reader that waits for it."""
_RETRIES: Final = 10
_REFUSED: Final = ("refused", "clock")


class ObjectBackups:
    """Backups below the prefix of a bucket."""

    at_once = 4
    """A request is on its way for much longer than its bytes are."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        settings = StoreSettings(url=url, options=options, deadline_ms=_DEADLINE_MS)
        self._bucket = BucketAccess(settings, _RETRIES)

    def put(self, name: str, data: Bytes) -> None:
        """One PUT, or several for a large object."""
        faults.hit("backup.put")
        with self._explained():
            self._bucket.put(name, [bytes(data)], len(data))

    def put_part(self, name: str, file: int, position: int, size_bytes: int) -> None:
        """One PUT of what is read."""
        self.put(name, read_part(file, position, size_bytes))

    def touch(self, name: str) -> None:
        """A PUT of the same bytes, on condition that the name is there; some stores know no
        conditions."""
        with self._explained():
            self._bucket.touch(name)

    def flush(self) -> None:
        """A PUT that was answered is durable."""

    def get(self, name: str) -> bytes:
        """One GET."""
        with self._explained():
            return bytes(self._bucket.get(name))

    def head(self, name: str, size_bytes: int) -> bytes:
        """One GET of a range."""
        with self._explained():
            return bytes(self._bucket.get_range(name, 0, size_bytes))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All pages of a listing."""
        with self._explained():
            yield from self._bucket.list(prefix, "")

    def delete(self, names: Sequence[str]) -> None:
        """Delete in groups."""
        with self._explained():
            self._bucket.delete(names)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what a person has to do, in the words of backups."""
        try:
            yield
        except ColdUnavailable as error:
            if error.reason in _REFUSED:
                raise StorageError(
                    f"{self._url} refuses this process ({error}): set AWS_ACCESS_KEY_ID and"
                    " AWS_SECRET_ACCESS_KEY in the environment of the process that asks"
                    " (`onelog serve` for a new backup), and let the key read, write, list and"
                    " delete"
                ) from error
            raise Unavailable(f"{error}; then begin again") from error
