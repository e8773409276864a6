"""Signed tokens: whose they are, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from onelog.base.clock import ManualClock
from onelog.base.errors import ConfigError, NotAuthenticated
from onelog.security.tokens import Tokens, TokenSettings

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


def write_keys(path: Path, *keys: ec.EllipticCurvePrivateKey) -> str:
    rows = []
    for number, key in enumerate(keys):
        row = json.loads(ECAlgorithm.to_jwk(key.public_key()))
        rows.append(row | {"kid": f"k{number}", "use": "sig", "alg": "ES256"})
    path.write_text(json.dumps({"keys": rows}))
    return str(path)


def sign(clock: ManualClock, key=KEY, kid: str = "k0", **claims) -> str:
    rows = {"sub": "alice", "exp": clock.now_ms() // 1000 + 60, "iss": "us", "aud": "broker"}
    rows |= claims
    return jwt.encode(
        {name: value for name, value in rows.items() if value is not None},
        key,
        "ES256",
        headers={"kid": kid},
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tokens(tmp_path: Path, clock: ManualClock) -> Tokens:
    path = write_keys(tmp_path / "jwks.json", KEY)
    return Tokens(TokenSettings(jwks_file=path, issuer="us", audience="broker"), clock)


def test_a_good_token_says_who_and_until_when(tokens: Tokens, clock: ManualClock) -> None:
    identity = tokens.identify(sign(clock))
    assert (identity.name, identity.proof) == ("alice", "token")
    assert identity.expires_ms == (clock.now_ms() // 1000 + 60) * 1000


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": None},
        {"exp": 1},
        {"iss": "them"},
        {"iss": None},
        {"aud": "other"},
        {"sub": None},
        {"sub": "anonymous"},
        {"sub": "a\nb"},
        {"sub": "a\ud800"},
        {"kid": "k9"},
        {"key": OTHER},
    ],
)
def test_a_token_that_lacks_something_is_refused(tokens, clock, claims) -> None:
    with pytest.raises(NotAuthenticated):
        tokens.identify(sign(clock, **claims))


def test_a_token_without_a_signature_or_with_a_shared_secret_is_refused(tokens, clock) -> None:
    claims = {"sub": "alice", "exp": clock.now_ms() // 1000 + 60, "iss": "us", "aud": "broker"}
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "k0"})
    shared = jwt.encode(claims, "x" * 32, "HS256", headers={"kid": "k0"})
    for token in (unsigned, shared, "nonsense", "a.b.c", "x" * 20_000):
        with pytest.raises(NotAuthenticated):
            tokens.identify(token)


def test_new_keys_are_taken_without_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    path = write_keys(tmp_path / "jwks.json", KEY)
    tokens = Tokens(TokenSettings(jwks_file=path), clock)
    with pytest.raises(NotAuthenticated):
        tokens.identify(sign(clock, key=OTHER, kid="k1"))
    write_keys(Path(path), KEY, OTHER)
    assert tokens.identify(sign(clock, key=OTHER, kid="k1")).name == "alice"
    Path(path).write_text("{")
    assert tokens.identify(sign(clock)).name == "alice"  # the keys that are known go on


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(ConfigError, match="jwks_file"):
        Tokens(TokenSettings(jwks_file=str(tmp_path / "none.json")), clock)
    with pytest.raises(NotAuthenticated, match="jwks_file"):
        Tokens(TokenSettings(), clock).identify("x")
