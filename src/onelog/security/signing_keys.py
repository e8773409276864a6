"""The public keys of an issuer (JWKS, RFC 7517): which of them count, and for which signatures.

Rules: only asymmetric keys count, each for the algorithms of its kind: so no public key is ever
taken for the secret of a symmetric signature. A key that cannot be used is left out, as the RFC
says; a set that is too large is refused as a whole. Reading a set takes time: do it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
import msgspec

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
KEYS_MAX: Final = 100
JWKS_BYTES_MAX: Final = 256 * 1024
_OF_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "Ed25519": "EdDSA", "Ed448": "EdDSA"}
_RSA: Final = ("RS256", "RS384", "RS512", "PS256")
_MODULUS_CHARS_MAX: Final = 1366
"""Base64 characters of 8192 bits: a check with a longer key takes too long."""
_EXPONENT_CHARS_MAX: Final = 6


class SigningKey(NamedTuple):
    """A key, and the algorithms that it may be used with."""

    key: Any
    algorithms: tuple[str, ...]


Keys = Mapping[str | None, SigningKey]
"""By the id of the key."""


def read_keys(data: bytes) -> Keys:
    """The keys of a JWKS document. Raises ValueError."""
    if len(data) > JWKS_BYTES_MAX:
        raise ValueError(f"the key set has more than {JWKS_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the key set is no JSON: {error}") from None
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError("the key set has no list `keys`")  # noqa: TRY004 - of a document
    if len(rows) > KEYS_MAX:
        raise ValueError(f"the key set has {len(rows)} keys, more than {KEYS_MAX}")
    found: dict[str | None, SigningKey] = {}
    for row in rows:
        key = _read_key(row) if isinstance(row, dict) else None
        if key is not None:
            key_id = row.get("kid")
            found[key_id if isinstance(key_id, str) else None] = key
    if not found:
        raise ValueError("the key set has no key for signatures of " + ", ".join(ALGORITHMS))
    return found


def _read_key(row: dict[str, Any]) -> SigningKey | None:
    allowed = _allowed(row)
    if not allowed or row.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(row, algorithm=allowed[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    # A private key would verify, too; but who publishes one has lost it.
    return None if hasattr(key, "private_bytes") else SigningKey(key, allowed)


def _allowed(row: dict[str, Any]) -> tuple[str, ...]:
    kind, stated = row.get("kty"), row.get("alg")
    if kind == "RSA":
        sizes = (("n", _MODULUS_CHARS_MAX), ("e", _EXPONENT_CHARS_MAX))
        if any(not 0 < len(str(row.get(part, ""))) <= most for part, most in sizes):
            return ()
        found: tuple[str, ...] = _RSA
    elif kind in ("EC", "OKP"):
        found = tuple(filter(None, (_OF_CURVE.get(str(row.get("crv"))),)))
    else:
        return ()
    return found if stated is None else tuple(name for name in found if name == stated)
