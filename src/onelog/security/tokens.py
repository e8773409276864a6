"""Bearer tokens: signed JWTs (RFC 7519) of an issuer whose public keys are known (`issuer.py`).

Rules: only asymmetric signatures count, and a key counts for its own algorithms only. A token names
its user (a claim), its issuer, its audience and its expiry; a token without one of them is refused.
Clocks may differ by `leeway_ms`. Groups and roles come from claims that the configuration names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jwt

from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated
from onelog.observe import Troubles
from onelog.security.identity import Identity, is_name
from onelog.security.issuer import Issuer, IssuerSettings
from onelog.security.principals import TOKEN_GROUP
from onelog.security.roles import AdminRole
from onelog.security.signing_keys import ALGORITHMS, SigningKey

TOKEN_BYTES_MAX: Final = 16 * 1024
CLAIMS_MAX: Final = 100
"""Values of claims that a login keeps."""
CLAIM_CHARS_MAX: Final = 512
_REFUSED: Final = "the token was refused"


class TokenSettings(IssuerSettings, frozen=True, kw_only=True):
    """The issuer whose tokens are accepted; without keys, no token is accepted."""

    audience: str = ""
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway_ms: int = 10_000
    name_claim: str = "sub"
    claims: tuple[str, ...] = ()
    """Claims that access rules may name, as `claim:NAME=VALUE`."""
    groups_claim: str = ""
    """The claim whose values are groups for access rules; empty: none is."""
    roles_claim: str = ""
    """The claim whose values give roles of the admin API; empty: none does."""
    viewers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()


class Tokens:
    """Finds the user of a token. `open` it if the keys come from a URL."""

    def __init__(
        self, settings: TokenSettings, clock: Clock, troubles: Troubles | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.issuer = Issuer(settings, troubles or Troubles(clock))

    @property
    def enabled(self) -> bool:
        """Whether tokens are taken at all."""
        return self.issuer.is_known

    async def open(self) -> None:
        """Ask for the keys. Raises ConfigError."""
        await self.issuer.open()

    async def close(self) -> None:
        """Ask no more. Idempotent."""
        await self.issuer.close()

    async def renew_keys_for(self, token: str) -> None:
        """Ask the issuer for its keys if the token names a key that is not known."""
        if len(token) > TOKEN_BYTES_MAX:
            return
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, ValueError, TypeError):
            return
        if self.issuer.may_know(key_id):
            await self.issuer.refresh()

    def identify(self, token: str) -> Identity:
        """The identity of the token's user. Raises NotAuthenticated."""
        return self.identity_of(self.verified(token, self._settings.audience))

    def verified(self, token: str, audience: str) -> dict[str, Any]:
        """The claims of a token that counts now. Raises NotAuthenticated."""
        if not self.enabled:
            raise NotAuthenticated(
                "this broker takes no tokens: set security.tokens.discovery or jwks_file"
            )
        if len(token) > TOKEN_BYTES_MAX:
            raise NotAuthenticated(f"a token has at most {TOKEN_BYTES_MAX} bytes")
        claims = self._verify(token, audience)
        expires = claims["exp"]
        if not isinstance(expires, int | float) or not abs(expires) < 2**53:
            raise NotAuthenticated(f"{_REFUSED}: its expiry is no time")
        if int(expires) * 1000 + self._settings.leeway_ms <= self._clock.now_ms():
            raise NotAuthenticated("the token has expired")
        return claims

    def identity_of(self, claims: dict[str, Any]) -> Identity:
        """Who a token with these claims belongs to. Raises NotAuthenticated."""
        settings = self._settings
        name = claims.get(settings.name_claim)
        if not is_name(name):
            raise NotAuthenticated(f"the token has no {settings.name_claim!r} claim")
        told = [f"{claim}={text}" for claim in settings.claims for text in _texts(claims, claim)]
        if settings.groups_claim:
            told += [f"{TOKEN_GROUP}{text}" for text in _texts(claims, settings.groups_claim)]
        _check_bounds((name, *told))
        return Identity(
            name,
            "token",
            expires_ms=int(claims["exp"]) * 1000,
            claims=tuple(told),
            role=self._role(claims),
        )

    def _role(self, claims: dict[str, Any]) -> AdminRole:
        settings = self._settings
        given = set(_texts(claims, settings.roles_claim)) if settings.roles_claim else set()
        for role, values in (
            (AdminRole.ADMIN, settings.admins),
            (AdminRole.OPERATOR, settings.operators),
            (AdminRole.VIEWER, settings.viewers),
        ):
            if given.intersection(values):
                return role
        return AdminRole.NONE

    def _verify(self, token: str, audience: str) -> dict[str, Any]:
        issuer = self.issuer.name
        required = ["exp", *(["iss"] if issuer else [])]
        try:
            key = self._key(jwt.get_unverified_header(token).get("kid"))
            return dict(
                jwt.decode(
                    token,
                    key.key,
                    algorithms=[name for name in key.algorithms if name in self._allowed],
                    issuer=issuer or None,
                    audience=audience or None,
                    leeway=self._settings.leeway_ms / 1000,
                    options={
                        "require": required,
                        "verify_aud": bool(audience),
                        "verify_exp": False,  # by our clock, above
                    },
                )
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise NotAuthenticated(f"{_REFUSED}: {error}") from None

    @property
    def _allowed(self) -> tuple[str, ...]:
        return self._settings.algorithms

    def _key(self, key_id: Any) -> SigningKey:
        keys = self.issuer.keys
        key = keys.get(key_id)
        if key is None and key_id is None and len(keys) == 1:
            (key,) = keys.values()
        if key is None:
            raise NotAuthenticated(f"{_REFUSED}: its key is unknown")
        return key


def _texts(claims: dict[str, Any], name: str) -> list[str]:
    """The values of a claim that are text; `a.b` is the claim `b` inside the claim `a`."""
    value: Any = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str):
        values: Sequence[Any] = value.split() if name == "scope" else [value]  # RFC 6749 3.3
    else:
        values = value if isinstance(value, list | tuple) else ()
    return [text for text in values if isinstance(text, str) and text]


def _check_bounds(texts: tuple[str, ...]) -> None:
    if len(texts) - 1 > CLAIMS_MAX or any(len(text) > CLAIM_CHARS_MAX for text in texts):
        raise NotAuthenticated(
            f"{_REFUSED}: the claims that security.tokens names have more than {CLAIMS_MAX}"
            f" values, or one of more than {CLAIM_CHARS_MAX} characters"
        )
