"""Tokens of the admin API: made once, shown once, kept as a hash, with a role and an end.

Rules: one key per token, `tokens/<id>`. The record holds the SHA-256 of a secret of 256 random
bits, which needs no slow hash. A token that belongs to a user is worth what the user is worth now,
at most: it is void while the user is disabled, and once the user is gone. A later user of the same
name does not bring it back. A person whose role the identity provider gives may lose the role there
at any time, and the broker hears of it at the next login only. So a token of such a person ends
with the login that made it. What counts is what the store's watch showed (`Projection`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotAuthenticated,
    NotFound,
)
from onelog.metadata.projection import Projection
from onelog.metadata.store import Entry, MetadataStore
from onelog.observe import Troubles
from onelog.security.roles import AdminRole
from onelog.security.token_commands import LIFETIME_MS_MAX, TokenInfo

_PREFIX: Final = "tokens/"
MARK: Final = "olt_"
"""What every token begins with, so that people and scanners know one when they see it."""
TOKENS_MAX: Final = 1000
LABEL_CHARS_MAX: Final = 200
_ID_CHARS: Final = 12
_TOKEN_CHARS_MAX: Final = 256


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a token in the store."""

    id: str
    label: str
    role: AdminRole
    owner: str
    """The user that it belongs to; empty: it was made by a command on the machine itself."""
    created_ms: int
    expires_ms: int
    secret_hash: bytes
    by_provider: bool = False
    """Whether the identity provider gave the owner the role; else the owner's record here does."""


class ApiTokens:
    """Every token; made by `open`, ended by `close`."""

    def __init__(self, store: MetadataStore, clock: Clock, troubles: Troubles) -> None:
        self._clock = clock
        self._rows = Projection(store, _PREFIX, _decode, troubles)

    async def open(self) -> None:
        """Load every token and begin to watch."""
        await self._rows.open()

    async def close(self) -> None:
        """End the watch. Idempotent."""
        await self._rows.close()

    def __len__(self) -> int:
        return len(self._rows)

    async def create(
        self,
        label: str,
        role: AdminRole,
        lifetime_ms: int,
        owner: str = "",
        login_ends_ms: int | None = None,
    ) -> tuple[str, TokenInfo]:
        """Make a token: its text, which nobody can show again, and what is shown of it.

        `login_ends_ms` is given when the owner's role comes from the identity provider.
        """
        if not 0 < len(label) <= LABEL_CHARS_MAX or not label.isprintable():
            raise InvalidRequest(
                f"the label of a token has 1 to {LABEL_CHARS_MAX} printable characters"
            )
        if role is AdminRole.NONE:
            raise InvalidRequest("a token has the role viewer, operator or admin")
        if not 0 < lifetime_ms <= LIFETIME_MS_MAX:
            raise InvalidRequest(f"a token lives 1 to {LIFETIME_MS_MAX} ms, not {lifetime_ms}")
        now_ms = self._clock.now_ms()
        if login_ends_ms is not None and now_ms + lifetime_ms > login_ends_ms:
            raise InvalidRequest(
                f"the role of {owner} comes from the identity provider, so the token ends with this"
                f" login, in {max(0, login_ends_ms - now_ms) / 3_600_000:.1f} hours: ask for less,"
                " log in as a user of this broker (`onelog user add`), or make the token on the"
                " broker's machine (`onelog token create`)"
            )
        await self._drop_expired()
        if len(self._rows) >= TOKENS_MAX:
            raise LimitExceeded(f"there are {TOKENS_MAX} tokens already; revoke one first")
        secret = secrets.token_urlsafe(32)
        token = ApiToken(
            id=secrets.token_hex(_ID_CHARS // 2),
            label=label,
            role=role,
            owner=owner,
            created_ms=now_ms,
            expires_ms=now_ms + lifetime_ms,
            secret_hash=_hash(secret),
            by_provider=login_ends_ms is not None,
        )
        await self._rows.put(_PREFIX + token.id, msgspec.msgpack.encode(token))
        return f"{MARK}{token.id}_{secret}", self._info(token)

    async def revoke(self, token_id: str) -> None:
        """Forget a token; it is void when this returns. Raises NotFound."""
        key = _PREFIX + token_id
        while self._rows.get(key) is not None:
            try:
                await self._rows.delete(key)
            except Conflict:
                continue  # another revoked it meanwhile
            return
        raise NotFound(f"there is no token {token_id[:40]!r}; `onelog token list` shows all tokens")

    def infos(self) -> tuple[TokenInfo, ...]:
        """Every token, the oldest first."""
        found = sorted(
            (token for _key, token in self._rows.rows()), key=lambda row: (row.created_ms, row.id)
        )
        return tuple(map(self._info, found))

    def check(self, text: str) -> ApiToken:
        """The token of a text. Raises NotAuthenticated."""
        head, _, secret = text.removeprefix(MARK).partition("_")
        row = None
        if text.startswith(MARK) and len(text) <= _TOKEN_CHARS_MAX and head.isalnum():
            row = self._rows.get(_PREFIX + head)
        if row is None or not hmac.compare_digest(row.value.secret_hash, _hash(secret)):
            raise NotAuthenticated("the token is not known; `onelog token create` makes one")
        if row.value.expires_ms <= self._clock.now_ms():
            raise NotAuthenticated("the token has expired; `onelog token create` makes a new one")
        return row.value

    async def _drop_expired(self) -> None:
        now_ms = self._clock.now_ms()
        for key, token in list(self._rows.rows()):
            if token.expires_ms <= now_ms:
                await self.revoke(key.removeprefix(_PREFIX))

    def _info(self, token: ApiToken) -> TokenInfo:
        return TokenInfo(
            id=token.id,
            label=token.label,
            role=token.role,
            owner=token.owner,
            created_ms=token.created_ms,
            expires_ms=token.expires_ms,
            expired=token.expires_ms <= self._clock.now_ms(),
        )


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _decode(entry: Entry) -> ApiToken:
    return msgspec.msgpack.decode(entry.value, type=ApiToken)
