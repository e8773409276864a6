"""Passes: how a command on this machine, which may use the control socket, enters the admin API.

Rules: the control socket answers only the server's own user and root, who may change everything in
the data directory anyway. Such a caller gets a random value that counts as the role `admin` until
it expires or the process ends. Passes are in memory only, `PASSES_MAX` at most: the oldest one
makes room.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from onelog.admin.contract import PassAnswer
from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated

SUBJECT: Final = "api"
MARK: Final = "olp_"
"""What every pass begins with."""
PASSES_MAX: Final = 1000
LIFETIME_S: Final = 60 * 60


class LocalPasses:
    """The passes of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[bytes, tuple[float, int]] = {}
        """By the hash of a pass: when it ends, on both clocks; the oldest first."""

    def __len__(self) -> int:
        return len(self._ends)

    def issue(self) -> str:
        """A new pass."""
        while len(self._ends) >= PASSES_MAX:
            self._ends.pop(next(iter(self._ends)))
        text = MARK + secrets.token_urlsafe(32)
        expires_ms = self._clock.now_ms() + LIFETIME_S * 1000
        self._ends[_hash(text)] = (self._clock.monotonic() + LIFETIME_S, expires_ms)
        return text

    def check(self, text: str) -> int:
        """When a pass expires, in ms since the epoch. Raises NotAuthenticated."""
        key = _hash(text)
        ends, expires_ms = self._ends.get(key, (0.0, 0))
        if not expires_ms or self._clock.monotonic() >= ends:
            self._ends.pop(key, None)
            raise NotAuthenticated("the pass is void or over: run the command again")
        return expires_ms


async def run_pass_command(
    passes: LocalPasses, where: Callable[[], tuple[str, str]], _message: bytes
) -> bytes:
    """Answer `api.pass`: a pass, the URL of the admin listener and its certificate."""
    url, cert_file = where()
    return msgspec.json.encode(
        PassAnswer(url=url, token=passes.issue() if url else "", cert_file=cert_file)
    )


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
