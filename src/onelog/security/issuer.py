"""An identity provider: its keys, from a file or a URL, and what its discovery document says.

Rules:
- A file is read again when it has changed. A URL is asked at the start, on a schedule, and when a
  token names a key that is not known, at most once in `UNKNOWN_KEY_S`: no peer can cause more.
- One fetch runs at a time, in a thread of its own. While the provider cannot be reached, or
  answers nonsense, its last keys count and a trouble stands.
- The issuer in a discovery document must be the one that is configured, or the one that its URL
  names (OpenID Connect Discovery 4.3).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from onelog.base.errors import ConfigError
from onelog.observe import Troubles
from onelog.security.fetching import FetchError, check_url, fetch
from onelog.security.signing_keys import JWKS_BYTES_MAX, Keys, read_keys

ISSUER_TROUBLE: Final = "token-issuer"
"""Standing: the identity provider cannot be reached, or answers nonsense."""
UNKNOWN_KEY_S: Final = 30.0
RETRY_S: Final = 30.0
"""How soon a fetch that failed is tried again."""
DISCOVERY_BYTES_MAX: Final = 64 * 1024
WELL_KNOWN: Final = "/.well-known/openid-configuration"

T = TypeVar("T")


class IssuerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the keys come from: exactly one of the three first fields is set."""

    jwks_file: str = ""
    jwks_url: str = ""
    discovery: str = ""
    """URL or file of the discovery document."""
    issuer: str = ""
    ca_file: str = ""
    """PEM file: the authorities that sign the provider's certificate; empty: the system's."""
    refresh_ms: int = 3_600_000


class Discovered(msgspec.Struct, frozen=True):
    """The part of a discovery document that is used."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""


class Issuer:
    """One provider. Made by `open`, ended by `close`."""

    def __init__(self, settings: IssuerSettings, troubles: Troubles) -> None:
        self._settings = settings
        self._troubles = troubles
        self._keys: Keys = {}
        self._read_at: tuple[int, int] | None = None
        self._document: Discovered | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._fetching: asyncio.Task[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at = float("-inf")
        self.fetches = 0
        if settings.jwks_file:
            self._read_file()

    @property
    def is_known(self) -> bool:
        """Whether there is a provider at all."""
        chosen = self._settings
        return bool(chosen.jwks_file or chosen.jwks_url or chosen.discovery)

    @property
    def name(self) -> str:
        """The issuer that tokens must name; empty: any."""
        return self._settings.issuer if self._document is None else self._document.issuer

    @property
    def document(self) -> Discovered | None:
        """The discovery document, once it was read."""
        return self._document

    @property
    def keys(self) -> Keys:
        """The keys that count now."""
        if self._settings.jwks_file:
            self._read_file()
        return self._keys

    async def open(self) -> None:
        """Get the keys of a URL; a provider that cannot be reached is tried again. Raises
        ConfigError."""
        if self.is_known and not self._settings.jwks_file:
            _check_settings(self._settings)
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="onelog-issuer")
            await self.refresh()

    async def close(self) -> None:
        """Ask no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fetching is not None:
            self._fetching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._fetching
            self._fetching = None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    # -- keys of a URL

    def may_know(self, key_id: str | None) -> bool:
        """Whether a provider that was not asked lately may know a key that is unknown here."""
        if self._pool is None or key_id in self._keys:
            return False
        if self._fetching is not None:
            return True
        return asyncio.get_running_loop().time() - self._asked_at >= UNKNOWN_KEY_S

    async def refresh(self) -> bool:
        """Ask the provider for its keys now, or wait for the fetch that runs; whether it worked."""
        if self._pool is None:
            return False
        if self._fetching is None:
            self._asked_at = asyncio.get_running_loop().time()
            self._fetching = asyncio.create_task(self._fetch(), name="issuer-keys")
        return await asyncio.shield(self._fetching)

    async def _fetch(self) -> bool:
        self.fetches += 1
        place = self._settings.discovery or self._settings.jwks_url
        try:
            document, keys = await self.in_thread(partial(_load, self._settings))
        except (FetchError, ValueError) as error:
            self._troubles.stand(
                ISSUER_TROUBLE,
                place,
                f"the keys of tokens cannot be renewed, the last ones count: {error}",
                blocks=False,
            )
            self._schedule(min(RETRY_S, self._settings.refresh_ms / 1000))
            return False
        else:
            self._document, self._keys = document, keys
            self._troubles.clear(ISSUER_TROUBLE, place)
            self._schedule(self._settings.refresh_ms / 1000)
            return True
        finally:
            self._fetching = None

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work with the provider. Raises FetchError when there is none."""
        if self._pool is None:
            raise FetchError("no identity provider is configured by a URL")
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _schedule(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(after_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._fetching is None and self._pool is not None:
            self._asked_at = asyncio.get_running_loop().time()
            self._fetching = asyncio.create_task(self._fetch(), name="issuer-keys")

    # -- keys of a file

    def _read_file(self) -> None:
        path = Path(self._settings.jwks_file)
        try:
            stat = path.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._read_at:
                return
            keys = read_keys(path.read_bytes())
        except (OSError, ValueError) as error:
            if self._keys:
                self._troubles.stand(
                    ISSUER_TROUBLE,
                    str(path),
                    f"the changed key file cannot be used, the last keys count: {error}",
                    blocks=False,
                )
                return
            raise ConfigError(
                f"security.tokens.jwks_file = {path}: cannot be read as a JWKS file: {error}"
            ) from None
        self._keys = keys
        self._read_at = (stat.st_mtime_ns, stat.st_size)
        self._troubles.clear(ISSUER_TROUBLE, str(path))


def _check_settings(settings: IssuerSettings) -> None:
    for key, url in (("jwks_url", settings.jwks_url), ("discovery", settings.discovery)):
        if url and (key == "jwks_url" or is_url(url)):
            try:
                check_url(url)
            except FetchError as error:
                raise ConfigError(f"security.tokens.{key}: {error}") from None
    if settings.discovery and not is_url(settings.discovery):
        try:
            _document_of(settings)
        except (OSError, ValueError, FetchError) as error:
            raise ConfigError(
                f"security.tokens.discovery = {settings.discovery}: cannot be used: {error}"
            ) from None


def is_url(text: str) -> bool:
    """Whether a discovery document is at a URL, and not in a file."""
    return "://" in text


def _load(settings: IssuerSettings) -> tuple[Discovered | None, Keys]:
    """In a thread: the discovery document, if there is one, and the keys."""
    document = _document_of(settings) if settings.discovery else None
    url = settings.jwks_url if document is None else document.jwks_uri
    return document, read_keys(fetch(url, JWKS_BYTES_MAX, ca_file=settings.ca_file))


def _document_of(settings: IssuerSettings) -> Discovered:
    place = settings.discovery
    if is_url(place):
        data = fetch(place, DISCOVERY_BYTES_MAX, ca_file=settings.ca_file)
    else:
        try:
            data = Path(place).read_bytes()
        except OSError as error:
            raise ValueError(f"the file cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data, type=Discovered)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"the discovery document does not fit: {error}") from None
    expected = settings.issuer
    if not expected and is_url(place):  # the issuer may end with a slash, which its URL shares
        stem = place.removesuffix(WELL_KNOWN)
        expected = f"{stem}/" if found.issuer.endswith("/") else stem
    if expected and found.issuer != expected:
        raise ValueError(
            f"the discovery document is of the issuer {found.issuer!r}, not of {expected!r}"
        )
    for url in filter(None, (found.jwks_uri, found.authorization_endpoint, found.token_endpoint)):
        check_url(url)
    return found
