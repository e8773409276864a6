"""Bearer tokens: signed JWTs (RFC 7519) of an issuer whose public keys lie in a file (JWKS).

Rules: only asymmetric signatures count. A token names its user (a claim), its issuer, its audience
and its expiry; a token without one of them is refused. The key file is read again when it has
changed, so that an issuer may rotate its keys without a restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import jwt
import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ConfigError, NotAuthenticated
from onelog.security.identity import RESERVED_NAMES, Identity

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
TOKEN_BYTES_MAX: Final = 16 * 1024
CLAIMS_MAX: Final = 100
"""Values of claims that a login keeps."""
CLAIM_CHARS_MAX: Final = 512
_LEEWAY_S: Final = 10
_REFUSED: Final = "the token was refused"


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The issuer whose tokens are accepted; without a file, no token is accepted."""

    jwks_file: str = ""
    issuer: str = ""
    audience: str = ""
    name_claim: str = "sub"
    claims: tuple[str, ...] = ()
    """Claims that access rules may name, as `claim:NAME=VALUE`."""


class Tokens:
    """Finds the user of a token."""

    def __init__(self, settings: TokenSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._read_at: tuple[int, int] | None = None
        self._keys: dict[str | None, jwt.PyJWK] = {}
        if settings.jwks_file:
            self._refresh()

    @property
    def enabled(self) -> bool:
        """Whether tokens are taken at all."""
        return bool(self._settings.jwks_file)

    def _refresh(self) -> None:
        path = Path(self._settings.jwks_file)
        try:
            stat = path.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._read_at:
                return
            keys = jwt.PyJWKSet.from_json(path.read_text()).keys
        except (OSError, ValueError, jwt.PyJWTError) as error:
            if self._keys:
                return  # half written; the keys that are known go on
            raise ConfigError(
                f"security.tokens.jwks_file = {path}: cannot be read as a JWKS file: {error}"
            ) from None
        self._keys = {key.key_id: key for key in keys}
        self._read_at = (stat.st_mtime_ns, stat.st_size)

    def identify(self, token: str) -> Identity:
        """The identity of the token's user. Raises NotAuthenticated."""
        if not self.enabled:
            raise NotAuthenticated("this broker takes no tokens: set security.tokens.jwks_file")
        if len(token) > TOKEN_BYTES_MAX:
            raise NotAuthenticated(f"a token has at most {TOKEN_BYTES_MAX} bytes")
        self._refresh()
        claims = self._verify(token)
        name, expires_ms = claims.get(self._settings.name_claim), int(claims["exp"]) * 1000
        if not isinstance(name, str) or not name or name in RESERVED_NAMES:
            raise NotAuthenticated(f"the token has no {self._settings.name_claim!r} claim")
        if expires_ms + _LEEWAY_S * 1000 <= self._clock.now_ms():
            raise NotAuthenticated("the token has expired")
        return Identity(name, "token", expires_ms=expires_ms, claims=self._told(claims))

    def _told(self, claims: dict[str, Any]) -> tuple[str, ...]:
        """What access rules may know of a token: claims that are text, or lists of text."""
        found: list[str] = []
        for name in self._settings.claims:
            value = claims.get(name, ())
            values = [value] if isinstance(value, str) else value
            if not isinstance(values, list | tuple):
                continue
            if name == "scope" and isinstance(value, str):
                values = value.split()  # RFC 6749 3.3
            found += [f"{name}={text}" for text in values if isinstance(text, str) and text]
        if len(found) > CLAIMS_MAX or any(len(text) > CLAIM_CHARS_MAX for text in found):
            raise NotAuthenticated(
                f"{_REFUSED}: the claims that security.tokens.claims names have more than"
                f" {CLAIMS_MAX} values, or one of more than {CLAIM_CHARS_MAX} characters"
            )
        return tuple(found)

    def _verify(self, token: str) -> dict[str, Any]:
        settings = self._settings
        required = ["exp", *(["iss"] if settings.issuer else [])]
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(key_id)
            if key is None and key_id is None and len(self._keys) == 1:
                (key,) = self._keys.values()
            if key is None:
                raise NotAuthenticated(f"{_REFUSED}: its key is unknown")
            return dict(
                jwt.decode(
                    token,
                    key,
                    algorithms=list(ALGORITHMS),
                    issuer=settings.issuer or None,
                    audience=settings.audience or None,
                    leeway=_LEEWAY_S,
                    options={
                        "require": required,
                        "verify_aud": bool(settings.audience),
                        "verify_exp": False,  # by our clock, above
                    },
                )
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise NotAuthenticated(f"{_REFUSED}: {error}") from None
