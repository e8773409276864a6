"""Checks passwords: first in a cache of earlier checks, then by argon2id in few threads.

Rules:
- The cache answers on the loop and holds no password: its key is the user's name and revision and
  an HMAC of the password under a key of this process. It is bounded in size and time; a changed
  user has another revision, so an old entry never fits.
- A wrong password is remembered, too, for a short time: a device that repeats it costs little.
- Equal checks at one time are one check. The checks that wait are bounded; one more is refused with
  a retriable error (I8).
- An unknown user costs the same work as a known one.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from functools import partial
from typing import Final, NamedTuple

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated, Unavailable
from onelog.security.hashing import NOBODY, PASSWORD_BYTES_MAX, HashThreads, matches
from onelog.security.identity import NAME_BYTES_MAX, Identity
from onelog.security.table import UserTable

_REFUSED: Final = "the login was refused: wrong name or password"


class PasswordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of password checks."""

    cached_max: int = 10_000
    """Checked passwords that are remembered."""
    cached_s: float = 3_600.0
    """How long a right password is remembered."""
    refused_s: float = 5.0
    """How long a wrong password is remembered."""
    waiting_max: int = 256
    """Checks that may wait or run; one more is refused for now."""


class _Key(NamedTuple):
    name: str
    revision: int
    digest: bytes


class _Flight:
    """One check under way and how many peers wait for it."""

    __slots__ = ("future", "waiting")

    def __init__(self, future: asyncio.Future[bool]) -> None:
        self.future = future
        self.waiting = 0


class Passwords:
    """The checks; all methods are called on the loop."""

    def __init__(
        self, table: UserTable, threads: HashThreads, clock: Clock, settings: PasswordSettings
    ) -> None:
        self._table = table
        self._threads = threads
        self._clock = clock
        self._settings = settings
        self._secret = secrets.token_bytes(32)
        self._cache: OrderedDict[_Key, tuple[bool, float]] = OrderedDict()
        self._flights: dict[_Key, _Flight] = {}
        self.checks = 0
        """Hashes computed."""
        self.recalls = 0
        """Checks that the cache answered."""
        self.refusals = 0
        """Checks that were refused because too many waited."""

    def recall(self, name: str, password: bytes) -> Identity | None:
        """The identity, if the same password was right before; else None. Never waits."""
        key = self._key(name, password)
        if key is None or self._cached(key) is not True:
            return None
        self.recalls += 1
        return Identity(name, "password", key.revision)

    async def verify(self, name: str, password: bytes) -> Identity:
        """The identity of a user. Raises NotAuthenticated, or Unavailable when too many checks
        wait."""
        key = self._key(name, password)
        if key is None:
            raise NotAuthenticated(_REFUSED)
        known = self._cached(key)
        if known is None:
            known = await self._check(key, password)
        else:
            self.recalls += 1
        current = self._table.get(name)
        # The user may have changed while the hash was computed.
        if not known or current is None or current.user.disabled:
            raise NotAuthenticated(_REFUSED)
        if current.revision != key.revision:
            return await self.verify(name, password)
        return Identity(name, "password", key.revision)

    def _key(self, name: str, password: bytes) -> _Key | None:
        if len(password) > PASSWORD_BYTES_MAX or len(name) > NAME_BYTES_MAX:
            return None
        known = self._table.get(name)
        revision = known.revision if known is not None and not known.user.disabled else 0
        return _Key(name, revision, hmac.digest(self._secret, password, "sha256"))

    def _cached(self, key: _Key) -> bool | None:
        found = self._cache.get(key)
        if found is None:
            return None
        if found[1] <= self._clock.monotonic():
            del self._cache[key]
            return None
        self._cache.move_to_end(key)
        return found[0]

    async def _check(self, key: _Key, password: bytes) -> bool:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._start(key, password)
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.future)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                flight.future.cancel()  # no effect on a check that runs or is done

    def _start(self, key: _Key, password: bytes) -> _Flight:
        if len(self._flights) >= self._settings.waiting_max:
            self.refusals += 1
            raise Unavailable(
                f"{self._settings.waiting_max} logins wait for their password check; try again"
            )
        known = self._table.get(key.name) if key.revision else None
        encoded = NOBODY if known is None else known.user.password_hash
        self.checks += 1
        flight = _Flight(self._threads.run(partial(matches, encoded, password)))
        self._flights[key] = flight
        flight.future.add_done_callback(partial(self._landed, key))
        return flight

    def _landed(self, key: _Key, future: asyncio.Future[bool]) -> None:
        del self._flights[key]
        if future.cancelled() or future.exception() is not None:
            return
        right = future.result() and key.revision > 0
        lasts_s = self._settings.cached_s if right else self._settings.refused_s
        self._cache[key] = (right, self._clock.monotonic() + lasts_s)
        self._cache.move_to_end(key)
        while len(self._cache) > self._settings.cached_max:
            self._cache.popitem(last=False)
