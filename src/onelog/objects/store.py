"""A store of objects: a bucket of S3, GCS or Azure, a folder, or (for tests) memory.

Rules: every call blocks, has a deadline (`deadline_ms` and the time that its bytes take at 1 MB/s),
and may be made by any thread except that of a loop. Names are relative to the URL. "It exists" is
never believed: `create` reads the object back and compares. After ColdUnavailable a write may be
done or not; the same `create` with the same bytes finds out. Every length is checked.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from onelog.base import faults
from onelog.base.errors import (
    ColdDamaged,
    ColdUnavailable,
    InvalidRequest,
    NotFound,
    StorageError,
)
from onelog.objects.access import Access, Buffer, NameTaken, StoredObject, size_of
from onelog.objects.counts import RequestCounts
from onelog.objects.shown import StoreWords, shown_words

__all__ = ["RequestCounts", "ObjectStore", "StoreSettings", "StoredObject", "Taken", "open_store"]

T = TypeVar("T")
B = TypeVar("B", bytes, Buffer)

BYTES_PER_S_MIN: Final = 1_000_000
"""A store that is slower than this counts as away."""
LIST_PAGE: Final = 1000
"""Names that one listing request returns at most."""
_PAUSE_S: Final = 0.05
"""Before a create is tried again whose name is said to exist, and does not."""
_CLOUDS: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https")


class Taken(StorageError):
    """A name that was to be created holds other bytes: another writer was first."""

    def __init__(self, name: str, found: bytes) -> None:
        super().__init__(f"object {name} exists and holds other bytes: another broker wrote it")
        self.name = name
        self.found = found


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which store, and how it is reached."""

    url: str
    """`s3://BUCKET/PREFIX`, `gs://…`, `az://…`, `file:///FOLDER`; `memory://NAME` is one store for
    everybody in this process."""
    options: Mapping[str, str] = {}
    """In the words of obstore (`aws_endpoint`, `aws_region` …); also `credentials_file` and
    `profile`, a file in the form of ~/.aws/credentials, which is read anew when it changes."""
    deadline_ms: int = 30_000
    """Of each call, and of each of its requests, beside the time for its bytes."""


def deadline_s(settings: StoreSettings, size_bytes: int) -> float:
    """How long a call that moves so many bytes may take."""
    return settings.deadline_ms / 1000 + size_bytes / BYTES_PER_S_MIN


class ObjectStore:
    """The objects below one URL."""

    def __init__(self, settings: StoreSettings, access: Access) -> None:
        self.url = settings.url
        self.counts = RequestCounts()
        self._settings = settings
        self._access = access

    def shown(self) -> StoreWords:
        """Where it is, for clients that read its objects themselves."""
        return shown_words(self.url, self._settings.options)

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write a name that nobody wrote before. It is done if the name holds these bytes, whoever
        wrote them. Raises Taken, ColdUnavailable."""
        size_bytes = size_of(parts)
        ends = time.monotonic() + deadline_s(self._settings, size_bytes)
        while True:
            with contextlib.suppress(NameTaken):
                self._put(name, parts, size_bytes, is_new=True)
                return
            whole = b"".join(parts)
            # An answer that was lost is asked for again inside, and a 409 may be about another
            # writer who then gave up: the store says "exists" of our own object and of nothing.
            try:
                found = self.get(name)
                if found == whole:
                    return
                found = self.get(name)  # bytes also go bad on their way, and much hangs on these
            except NotFound:
                if time.monotonic() > ends:
                    raise ColdUnavailable(
                        f"{self.url} says that {name} exists, and that it does not: try again later"
                    ) from None
                time.sleep(_PAUSE_S)
                continue
            if found == whole:
                return
            raise Taken(name, found)

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write a name that is unique by itself (a random tag). Large ones go in several parts."""
        self._put(name, parts, size_of(parts), is_new=False)

    def _put(self, name: str, parts: Sequence[Buffer], size_bytes: int, *, is_new: bool) -> None:
        def ask() -> int:
            faults.hit("store.put")
            requests = self._access.put(name, parts, size_bytes, is_new=is_new)
            faults.hit("store.put.after")
            return requests

        requests = self._asked("put", name, ask)
        self.counts.note("put", requests, sent_bytes=size_bytes)

    def get(self, name: str) -> bytes:
        """All bytes of a name. Raises NotFound, ColdUnavailable."""
        return bytes(self.get_view(name))

    def get_view(self, name: str) -> Buffer:
        """The same, as the store's client has them: not copied."""
        return self._got(name, lambda: self._access.get(name))

    def get_range(self, name: str, start: int, length: int) -> Buffer:
        """Exactly `length` bytes from `start` on, as the store's client has them: not copied.

        Raises NotFound, ColdDamaged, ColdUnavailable.
        """
        found = self._got(name, lambda: self._access.get_range(name, start, length))
        return self._whole(name, found, length)

    def get_suffix(self, name: str, length: int) -> bytes:
        """Exactly the last `length` bytes. Raises as `get_range`."""
        found = self._got(name, lambda: self._access.get_suffix(name, length))
        return self._whole(name, found, length)

    def _got(self, name: str, ask: Callable[[], B]) -> B:
        def ask_store() -> B:
            faults.hit("store.get")
            return ask()

        found = self._asked("get", name, ask_store)
        self.counts.note("get", 1, received_bytes=len(found))
        return found

    def _whole(self, name: str, found: B, length: int) -> B:
        if len(found) != length:
            raise ColdDamaged(
                f"{self.url}: {name} is shorter than it was written: {len(found)} bytes came where"
                f" {length} were asked for; restore the object from a copy"
            )
        return found

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[StoredObject]:
        """Names below a folder (`prefix` ends with a slash, or is empty), ascending.

        A folder and a name beside it that begins alike (`a/1`, `a-b`) have no order: some stores
        list as file systems do. `onelog store check` looks whether a store lists in order.
        """
        rows = self._access.list(prefix, after)
        count = 0
        while limit is None or count < limit:
            row = self._asked("list", prefix, lambda: next(rows, None))
            if count % LIST_PAGE == 0:
                self.counts.note("list", 1)
            if row is None:
                return
            count += 1
            yield row

    def delete(self, names: Sequence[str]) -> None:
        """Delete names; one that is not there is no error."""
        if not names:
            return

        def ask() -> int:
            faults.hit("store.delete")
            return self._access.delete(names)

        self.counts.note("delete", self._asked("delete", names[0], ask))

    def _asked(self, kind: str, name: str, ask: Callable[[], T]) -> T:
        """Ask the store, and count a failure."""
        try:
            return ask()
        except (NotFound, NameTaken):
            self.counts.note(kind, 1)
            raise
        except ColdUnavailable as error:
            self.counts.note_failure(kind, error.reason, str(error))
            raise
        except OSError as error:
            failure = ColdUnavailable(f"{self.url}: {name} could not be reached: {error}")
            self.counts.note_failure(kind, failure.reason, str(failure))
            raise failure from error


def open_store(settings: StoreSettings) -> ObjectStore:
    """The store of a URL; it is not asked anything yet. Raises InvalidRequest, ConfigError."""
    scheme, found, rest = settings.url.partition("://")
    if found and scheme == "memory":
        from onelog.objects.memory import memory_access  # noqa: PLC0415 - for tests

        return ObjectStore(settings, memory_access(rest))
    if found and scheme == "file":
        from onelog.objects.folder import FolderAccess  # noqa: PLC0415 - one of several

        return ObjectStore(settings, FolderAccess(rest, settings.options))
    if found and scheme in _CLOUDS:
        from onelog.objects.bucket import BucketAccess  # noqa: PLC0415 - an extra

        return ObjectStore(settings, BucketAccess(settings))
    raise InvalidRequest(
        f"{settings.url!r} is no store: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,"
        " az://CONTAINER/PREFIX or file:///FOLDER"
    )
