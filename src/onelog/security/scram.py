"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677): credentials, and the server's side of a login.

Rules:
- Sans-IO: client messages in, server messages out. No channel binding (the `-PLUS` mechanisms).
- For a user who does not exist, is disabled or has no SCRAM credentials, the exchange goes on with
  a made-up salt that stays the same, and fails at the proof: names do not leak.
- The password is never kept: only salt, iterations, stored key and server key are.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, get_args

import msgspec
from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from onelog.base.errors import InvalidRequest, NotAuthenticated, ProtocolViolation
from onelog.security.identity import Identity

Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
MECHANISMS: Final[tuple[Mechanism, ...]] = get_args(Mechanism)

ITERATIONS: Final = 16_384
"""PBKDF2 rounds of new credentials: the most that every Kafka client takes."""

SALT_BYTES: Final = 16

MESSAGE_BYTES_MAX: Final = 4_096
"""Bytes of one client message."""

_HASHES: Final = {SCRAM_SHA_256: hashlib.sha256, SCRAM_SHA_512: hashlib.sha512}
_REFUSED: Final = "the login was refused: wrong name or password"


class ScramCredential(msgspec.Struct, frozen=True):
    """The keys that the server keeps of a password, for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class Account(NamedTuple):
    """The facts of a user that a login needs."""

    name: str
    revision: int
    credential: ScramCredential


Find = Callable[[str, Mechanism], Account | None]
"""Looks an enabled user with credentials of a mechanism up, in memory."""


def prepare(text: str) -> str:
    """A name or password after SASLprep (RFC 4013). Raises InvalidRequest."""
    try:
        return str(saslprep(text))
    except ScramException as error:
        raise InvalidRequest(f"not allowed by SASLprep (RFC 4013): {error.args[0]}") from None


def make_credential(mechanism: Mechanism, password: str) -> ScramCredential:
    """Derive the credential of a password; milliseconds of work, so off the loop."""
    salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(
        password, iteration_count=ITERATIONS, salt=secrets.token_bytes(SALT_BYTES)
    )
    return ScramCredential(salt, iterations, stored_key, server_key)


def derived_credential(
    mechanism: str, salt: bytes, iterations: int, salted_password: bytes
) -> ScramCredential:
    """The credential of a password that its owner salted (RFC 5802, section 3).

    Raises InvalidRequest when it is not as long as the mechanism's hash.
    """
    digest = _HASHES[mechanism]
    size = digest().digest_size
    if len(salted_password) != size:
        raise InvalidRequest(
            f"a salted password of {mechanism} has {size} bytes, not {len(salted_password)}"
        )
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    server_key = hmac.digest(salted_password, b"Server Key", digest)
    return ScramCredential(salt, iterations, digest(client_key).digest(), server_key)


class ScramExchange:
    """One login: two client messages in, two server messages out."""

    __slots__ = (
        "_account",
        "_find",
        "_secret",
        "_server",
        "_steps",
        "identity",
        "mechanism",
        "user",
    )

    def __init__(
        self, mechanism: Mechanism, find: Find, secret: bytes, server_nonce: str | None = None
    ) -> None:
        self.mechanism = mechanism
        self.identity: Identity | None = None
        """The name of the peer, after the second step succeeded."""
        self.user = ""
        """The name that the peer gave."""
        self._find = find
        self._secret = secret
        self._account: Account | None = None
        self._steps = 0
        self._server = ScramMechanism(mechanism).make_server(self._credential, s_nonce=server_nonce)

    @property
    def done(self) -> bool:
        """Whether the peer proved who it is."""
        return self.identity is not None

    @property
    def refusal(self) -> bytes:
        """The message for a failed login, for protocols that send one."""
        return b"e=" + self._server.error.value.encode() if self._server.error else b"e=other-error"

    def step(self, message: bytes) -> bytes:
        """The answer to a client message. Raises NotAuthenticated; see `refusal`."""
        self._steps += 1
        if self._steps > 2 or self.done:
            raise ProtocolViolation("a SCRAM login has two client messages, this is a third one")
        if len(message) > MESSAGE_BYTES_MAX:
            self._steps = 2
            raise NotAuthenticated(f"a SCRAM message has at most {MESSAGE_BYTES_MAX} bytes")
        try:
            return self._take(message.decode()).encode()
        except (ScramException, UnicodeDecodeError):
            self._steps = 2  # a failed login does not go on
            raise NotAuthenticated(_REFUSED) from None

    def _take(self, text: str) -> str:
        server = self._server
        if self._steps == 1:
            server.set_client_first(text)
            return str(server.get_server_first())
        server.set_client_final(text)
        account = self._account
        if account is None or self._find(account.name, self.mechanism) != account:
            # Unknown from the start, or the user changed since the first step.
            raise NotAuthenticated(_REFUSED)
        self.identity = Identity(account.name, "scram", account.revision)
        return str(server.get_server_final())

    def _credential(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = name
        self._account = self._find(name, self.mechanism)
        found = self._account.credential if self._account else self._made_up(name)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def _made_up(self, name: str) -> ScramCredential:
        salt = hmac.digest(self._secret, f"{self.mechanism} {name}".encode(), "sha256")
        size = _HASHES[self.mechanism]().digest_size
        # The stored key is random, so no password fits it.
        key = secrets.token_bytes(size)
        return ScramCredential(salt[:SALT_BYTES], ITERATIONS, key, key)
