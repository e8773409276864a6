"""Logins of people: a session in memory behind a cookie, and the proof that a page of ours asks.

Rules: a session is a random value in a cookie that no script can read (HttpOnly) and no other site
can cause to be sent (SameSite=Strict). A change needs a second value in a header, which only a page
that could read the answer of the login has (CSRF). Sessions end after a time, after a while
without a request, at logout, when their user changes, and with the process. There are
`SESSIONS_MAX` at most: the one that rests the longest makes room.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from onelog.base.clock import Clock
from onelog.security.identity import Identity

COOKIE: Final = "onelog_session"
CSRF_HEADER: Final = "x-csrf-token"
SESSIONS_MAX: Final = 1000
LIFETIME_S: Final = 12 * 60 * 60
IDLE_S: Final = 60 * 60


@dataclass(slots=True)
class LoginSession:
    """One person's login."""

    identity: Identity
    csrf: str
    ends_at: float
    idle_at: float
    expires_ms: int


class LoginSessions:
    """All logins of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, LoginSession] = {}
        """By cookie; the one that was used last is last."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, identity: Identity) -> tuple[str, LoginSession]:
        """Somebody proved who they are: the value of the cookie, and the session."""
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
        now = self._clock.monotonic()
        session = LoginSession(
            identity,
            secrets.token_urlsafe(24),
            now + LIFETIME_S,
            now + IDLE_S,
            self._clock.now_ms() + LIFETIME_S * 1000,
        )
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = session
        return cookie, session

    def find(self, cookie: str) -> LoginSession | None:
        """The session of a cookie; None: it is over. The session counts as used now."""
        session = self._sessions.pop(cookie, None)
        now = self._clock.monotonic()
        if session is None or now >= session.ends_at or now >= session.idle_at:
            return None
        session.idle_at = now + IDLE_S
        self._sessions[cookie] = session
        return session

    def end(self, cookie: str) -> None:
        """Log out. Idempotent."""
        self._sessions.pop(cookie, None)


def is_same(given: str, expected: str) -> bool:
    """Whether two secrets are the same, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def cookie_header(value: str, *, secure: bool) -> str:
    """The header that sets the cookie; an empty value takes it away."""
    age = f"; Max-Age={LIFETIME_S if value else 0}"
    return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{age}{'; Secure' if secure else ''}"
