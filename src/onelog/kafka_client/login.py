"""SASL as a client: PLAIN and SCRAM (RFC 5802), as steps that know no socket.

Rules: a login is a generator: it yields what to send and is sent what came. The server has to prove
itself too (SCRAM's signature), or the login fails.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator
from typing import Final

from onelog.base.errors import NotAuthenticated
from onelog.kafka_client.access import Access

Login = Generator[bytes, bytes, None]

ITERATIONS_MAX: Final = 1_000_000
"""How much work a server may ask of us."""


def plain(access: Access) -> Login:
    """RFC 4616: name and password, as they are."""
    yield f"\0{access.user}\0{access.password}".encode()


def scram(access: Access, digest: str) -> Login:
    """RFC 5802 without channel binding."""
    name = access.user.replace("=", "=3D").replace(",", "=2C")
    nonce = base64.b64encode(secrets.token_bytes(24)).decode()
    first = f"n={name},r={nonce}"
    server_first = (yield f"n,,{first}".encode()).decode(errors="replace")
    told = _attributes(server_first)
    try:
        salt, rounds = base64.b64decode(told["s"]), int(told["i"])
    except (KeyError, ValueError, binascii.Error):
        raise NotAuthenticated("the broker's SCRAM answer cannot be read") from None
    if not told.get("r", "").startswith(nonce) or not 0 < rounds <= ITERATIONS_MAX:
        raise NotAuthenticated("the broker's SCRAM answer is not one to ours")
    salted = hashlib.pbkdf2_hmac(digest, access.password.encode(), salt, rounds)
    final = f"c=biws,r={told['r']}"
    said = f"{first},{server_first},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored = hashlib.new(digest, client_key).digest()
    signature = hmac.digest(stored, said, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    proven = _attributes(server_final.decode(errors="replace")).get("v", "")
    wanted = hmac.digest(hmac.digest(salted, b"Server Key", digest), said, digest)
    if not hmac.compare_digest(proven, base64.b64encode(wanted).decode()):
        raise NotAuthenticated("the broker does not know the password: it is not the one meant")


def _attributes(message: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in message.split(",") if part[1:2] == "="}


LOGINS: Final[dict[str, Callable[[Access], Login]]] = {
    "PLAIN": plain,
    "SCRAM-SHA-256": lambda access: scram(access, "sha256"),
    "SCRAM-SHA-512": lambda access: scram(access, "sha512"),
}
"""Per mechanism how one logs in; `access.MECHANISMS` are its names."""
