"""Buckets of S3, GCS and Azure by obstore. The one room of obstore.

Rules: only its blocking calls, in threads that are not those of a loop (its asynchronous ones end
short programs with SIGABRT), and never across a fork. It tries a request again at most twice,
within the deadline; what comes after that is for the caller. Credentials that changed open the
clients anew. Bodies are not signed where TLS protects them: that takes three quarters of the CPU of
a PUT.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from onelog.base.errors import ColdUnavailable, ConfigError, InvalidRequest, NotFound
from onelog.objects.access import Buffer, NameTaken, StoredObject
from onelog.objects.clouds import AZURE, cloud_of, endpoint_of
from onelog.objects.credentials import Credentials, State
from onelog.objects.failures import explained

if TYPE_CHECKING:
    from onelog.objects.store import StoreSettings

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotSupportedError,
        PreconditionError,
    )
    from obstore.store import from_url
except ModuleNotFoundError as missing:
    if missing.name != "obstore":
        raise
    raise ConfigError(
        "object storage needs the library obstore, which is not installed:"
        f" {sys.executable} -m pip install 'onelog[object]', then try again; a folder (file://)"
        " needs no library"
    ) from missing

T = TypeVar("T")

PART_BYTES: Final = 32 * 1024 * 1024
"""Bytes of one request. Larger objects are put in several parts, and got in several ranges."""
_PARTS_AT_ONCE: Final = 2
_SMALL_BYTES: Final = 1024 * 1024
_CLIENT: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "root_certificate",
)
"""Options of the connection; all others are those of the store."""
_BYTES_PER_S_MIN: Final = 1_000_000
RETRIES: Final = 2
_CONNECT_S: Final = 5.0
_LOOK_S: Final = 1.0
"""How often a change of credentials is looked for."""
_DELETED_AT_ONCE: Final = 1000


class _Clients(NamedTuple):
    """A client has one time for all of its requests, so there is one for each kind of them."""

    small: Any
    reading: Any
    """For large answers: as long as bytes come, it goes on."""
    writing: Any
    state: State


class BucketAccess:
    """Objects below the prefix of a bucket."""

    def __init__(self, settings: StoreSettings, retries: int = RETRIES) -> None:
        self._url = settings.url
        self._retries = retries
        self._deadline_s = settings.deadline_ms / 1000
        self._credentials = Credentials(settings.options)
        self._endpoint = endpoint_of(settings.url, settings.options)
        self._begins_early = cloud_of(settings.url) is AZURE
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._clients: _Clients | None = None
        # A file of credentials that is not there yet: the first call says so.
        with contextlib.suppress(ColdUnavailable):
            self._current()

    def _current(self, *, now: bool = False) -> _Clients:
        """The clients, opened anew when the credentials changed; looked at once a second."""
        with self._lock:
            moment = time.monotonic()
            if self._clients is None or now or moment - self._looked_at > _LOOK_S:
                self._looked_at = moment
                state = self._credentials.state()
                if self._clients is None or state != self._clients.state:
                    self._clients = self._opened(state)
            return self._clients

    def _opened(self, state: State) -> _Clients:
        words = self._credentials.words()
        client: dict[str, Any] = {name: words.pop(name) for name in _CLIENT if name in words}
        if self._endpoint.startswith("http://"):
            client.setdefault("allow_http", True)
        elif self._url.startswith(("s3:", "s3a:")):
            words.setdefault("aws_unsigned_payload", "true")
        # A last try may begin when half of the time is over.
        silence = datetime.timedelta(seconds=self._deadline_s / 2)
        large = silence + datetime.timedelta(seconds=PART_BYTES / _BYTES_PER_S_MIN)
        connect = min(silence, datetime.timedelta(seconds=_CONNECT_S))
        small, reading, writing = (
            self._client(words, {"connect_timeout": connect, **waits, **client}, silence)
            for waits in (
                {"timeout": silence},
                {"timeout": large, "read_timeout": silence},
                {"timeout": large},
            )
        )
        return _Clients(small, reading, writing, state)

    def _client(
        self, words: dict[str, str], client: dict[str, Any], tries: datetime.timedelta
    ) -> Any:
        try:
            # Its types know each option of each store by name; it checks them when it is called.
            open_client: Any = from_url
            return open_client(
                self._url,
                config=words,
                client_options=client,
                retry_config={"max_retries": self._retries, "retry_timeout": tries},
            )
        except (BaseError, ValueError, TypeError) as error:
            raise self._unusable(error) from error
        except BaseException as error:
            # A panic of Rust is no Exception: some options that it does not know end in one.
            if type(error).__name__ != "PanicException":
                raise
            raise self._unusable(error) from error

    def _unusable(self, error: BaseException) -> InvalidRequest:
        why = str(error).partition("\n\nDebug source")[0]
        return InvalidRequest(
            f"{self._url!r} cannot be used: {why}; write s3://BUCKET/PREFIX, and options as"
            " obstore has them, such as aws_region=eu-central-1"
        )

    def put(
        self, name: str, parts: Sequence[Buffer], size_bytes: int, *, is_new: bool = False
    ) -> int:
        """See `Access`."""
        if size_bytes <= PART_BYTES or is_new:
            mode: Literal["create", "overwrite"] = "create" if is_new else "overwrite"
            self._asked(
                name,
                size_bytes,
                lambda client: obstore.put(
                    client, name, list(parts), mode=mode, use_multipart=False
                ),
                is_write=True,
            )
            return 1
        self._asked(
            name,
            size_bytes,
            lambda client: obstore.put(
                client,
                name,
                list(parts),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            ),
            is_write=True,
        )
        return -(-size_bytes // PART_BYTES) + 2  # beginning and ending it are requests, too

    def get(self, name: str) -> Buffer:
        """See `Access`."""
        return self._asked(
            name, PART_BYTES, lambda client: memoryview(obstore.get(client, name).bytes())
        )

    def get_range(self, name: str, start: int, length: int) -> Buffer:
        """See `Access`."""
        if length == 0:
            return b""
        return self._asked(
            name,
            length,
            lambda client: memoryview(obstore.get_range(client, name, start=start, length=length)),
        )

    def get_suffix(self, name: str, length: int) -> bytes:
        """See `Access`."""

        def ask(client: Any) -> bytes:
            try:
                found = obstore.get(client, name, options={"range": {"suffix": length}})
            except NotSupportedError:  # Azure has no such ranges: its size is asked for first
                size_bytes = _size_bytes(client, name)
                start = max(0, size_bytes - length)
                if start == size_bytes:
                    return b""
                return bytes(obstore.get_range(client, name, start=start, end=size_bytes))
            return bytes(found.bytes())

        return self._asked(name, length, ask)

    def size_bytes(self, name: str) -> int:
        """How long a name is. Raises NotFound."""
        return self._asked(name, 0, lambda client: _size_bytes(client, name))

    def list(self, prefix: str, after: str) -> Iterator[StoredObject]:
        """See `Access`."""
        offset = after or None
        pages = self._asked(
            prefix, 0, lambda client: obstore.list(client, prefix or None, offset=offset)
        )
        while True:
            page = self._asked(prefix, 0, lambda _client: next(pages, ()))
            if not page:
                return
            for row in page:
                # A store that does not know the parameter (Azurite) lists from the beginning.
                if self._begins_early and row["path"] <= after:
                    continue
                modified_ms = int(row["last_modified"].timestamp() * 1000)
                yield StoredObject(row["path"], row["size"], modified_ms)

    def delete(self, names: Sequence[str]) -> int:
        """See `Access`."""
        requests = 0
        for at in range(0, len(names), _DELETED_AT_ONCE):
            group = list(names[at : at + _DELETED_AT_ONCE])
            try:
                self._delete(group)
                requests += 1
            except NotFound:  # some stores say so of a name that is gone, and leave the others
                for name in group:
                    with contextlib.suppress(NotFound):
                        self._delete([name])
                requests += 1 + len(group)
        return requests

    def touch(self, name: str) -> None:
        """Make a name as young as one that is put now, on condition that it is there; some stores
        know no conditions. Raises NotFound."""

        def ask(client: Any) -> None:
            found = obstore.get(client, name)
            data, meta = bytes(found.bytes()), found.meta
            # Google's condition is the version; the key is left out where a store has none.
            held: Any = {"e_tag": meta["e_tag"]}
            if meta.get("version"):
                held["version"] = meta["version"]
            try:
                obstore.put(client, name, data, use_multipart=False, mode=held)
            except (NotImplementedError, NotSupportedError):
                obstore.put(client, name, data, use_multipart=False)

        try:
            self._asked(name, PART_BYTES, ask)
        except NameTaken:  # what was there is gone, or it is another now
            raise NotFound(f"{self._url}: {name} is missing") from None

    def _delete(self, group: Sequence[str]) -> None:
        self._asked(group[0], 0, lambda client: obstore.delete(client, group))

    def _asked(
        self, name: str, size_bytes: int, ask: Callable[[Any], T], *, is_write: bool = False
    ) -> T:
        """Ask with the clients of now; a refusal looks at the credentials, and asks once more."""
        clients = self._current()
        for again in (True, False):
            large = clients.writing if is_write else clients.reading
            client = clients.small if size_bytes <= _SMALL_BYTES else large
            try:
                return ask(client)
            except (AlreadyExistsError, PreconditionError) as error:
                raise NameTaken(name) from error
            except (BaseError, FileNotFoundError) as error:
                told = explained(self._url, self._endpoint, name, error)
                if again and isinstance(told, ColdUnavailable) and told.reason == "refused":
                    anew = self._current(now=True)
                    if anew is not clients:
                        clients = anew
                        continue
                raise told from error
        raise AssertionError("the second try returns or raises")


def _size_bytes(client: Any, name: str) -> int:
    try:
        return int(obstore.head(client, name)["size"])
    except FileNotFoundError:
        # No answer to a HEAD has a body, which would say that the bucket is missing.
        obstore.get_range(client, name, start=0, length=1)
        raise
