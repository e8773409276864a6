"""SASL: the login of a Kafka client by PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.

Rules:
- A login is a handshake that names the mechanism, then one exchange. After a handshake of version 0
  its tokens come as bare frames; after version 1 in SaslAuthenticate.
- A failed login is answered and the connection ends. If a session has a limited lifetime (a token,
  `reauth_ms`), the answer says so, and the client logs in again on the same connection as the same
  user (KIP-368).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from onelog.base.errors import NotAuthenticated, OnelogError, ProtocolViolation
from onelog.broker import note_failed_login
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.request import Request
from onelog.security.authenticator import Authenticator
from onelog.security.identity import Identity

if TYPE_CHECKING:
    from onelog.protocols.kafka.connection import Connection
    from onelog.protocols.kafka.hub import Hub

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
_PLAIN_BYTES_MAX: Final = 16 * 1024
_RAW_TOKENS_VERSION: Final = 0
_SEPARATOR: Final = "\x01"
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'


class SaslExchange(Protocol):
    """One login in progress: the client's messages in, ours out."""

    @property
    def identity(self) -> Identity | None:
        """The identity of the peer, once it is proved."""
        ...

    @property
    def user(self) -> str:
        """The name that the peer gave; empty: none yet."""
        ...

    @property
    def refusal(self) -> NotAuthenticated | None:
        """Why the login will fail, if the peer gets an answer first."""
        ...

    async def step(self, message: bytes) -> bytes:
        """The answer to one message. Raises NotAuthenticated."""
        ...


class PlainExchange:
    """RFC 4616: one message with name and password."""

    refusal: NotAuthenticated | None = None

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.identity: Identity | None = None
        self.user = ""

    async def step(self, message: bytes) -> bytes:
        """Check the password."""
        if len(message) > _PLAIN_BYTES_MAX:
            raise NotAuthenticated(f"a PLAIN message has at most {_PLAIN_BYTES_MAX} bytes")
        parts = message.split(b"\0")
        if len(parts) != 3:
            raise NotAuthenticated("a PLAIN message is: authorization id, NUL, name, NUL, password")
        try:
            acting, name = parts[0].decode(), parts[1].decode()
            self.user = name
        except UnicodeDecodeError:
            raise NotAuthenticated("the user's name is not UTF-8") from None
        if acting not in ("", name):
            raise NotAuthenticated(f"{name!r} may not act for {acting!r}")
        known = self._authenticator.recall(name, parts[2])
        self.identity = known or await self._authenticator.password(name, parts[2])
        return b""


class ScramExchangeStep:
    """RFC 5802: the client proves that it knows the password, without sending it."""

    refusal: NotAuthenticated | None = None

    def __init__(self, authenticator: Authenticator, mechanism: str) -> None:
        self._exchange = authenticator.scram(mechanism)

    @property
    def identity(self) -> Identity | None:
        """The identity of the peer, once it is proved."""
        return self._exchange.identity

    @property
    def user(self) -> str:
        """The name that the peer gave."""
        return self._exchange.user

    async def step(self, message: bytes) -> bytes:
        """The answer to one message."""
        return self._exchange.step(message)


class BearerExchange:
    """RFC 7628: one message with a signed token. A refused token is answered, then the login
    fails."""

    user = ""  # the token names it, and what it says does not count before it is checked

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.refusal: NotAuthenticated | None = None
        self.identity: Identity | None = None

    async def step(self, message: bytes) -> bytes:
        """Check the token."""
        if self.refusal is not None:
            raise self.refusal
        try:
            self.identity = await self._authenticator.token(_bearer_token(message))
        except NotAuthenticated as error:
            self.refusal = error
            return _INVALID_TOKEN
        return b""


def _bearer_token(message: bytes) -> str:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise NotAuthenticated("an OAUTHBEARER message is UTF-8") from None
    head, _, rest = text.partition(_SEPARATOR)
    if head.split(",")[0] not in ("n", "y"):
        raise NotAuthenticated("an OAUTHBEARER message begins with n,, (no channel binding)")
    for pair in rest.split(_SEPARATOR):
        name, _, value = pair.partition("=")
        if name == "auth" and value[:7].lower() == "bearer ":
            return value[7:].strip()
    raise NotAuthenticated("an OAUTHBEARER message has auth=Bearer and a token")


def mechanisms(authenticator: Authenticator) -> dict[str, Callable[[], SaslExchange]]:
    """The mechanisms that a client may choose."""
    found: dict[str, Callable[[], SaslExchange]] = {PLAIN: lambda: PlainExchange(authenticator)}
    for name in authenticator.scram_mechanisms:
        found[name] = partial(ScramExchangeStep, authenticator, name)
    if authenticator.takes_tokens:
        found[OAUTHBEARER] = lambda: BearerExchange(authenticator)
    return found


async def sasl_handshake(hub: Hub, request: Request) -> Body:
    """Choose a mechanism."""
    offered = mechanisms(hub.authenticator)
    make = offered.get(request.body.mechanism)
    if make is None:
        return {
            "error_code": ErrorCode.unsupported_sasl_mechanism,
            "mechanisms": sorted(offered),
        }
    connection = request.connection
    connection.exchange = make()
    if request.version == _RAW_TOKENS_VERSION:
        connection.on_raw_frame = lambda token: _raw_step(hub, connection, token)
    return {"error_code": ErrorCode.none, "mechanisms": sorted(offered)}


async def sasl_authenticate(hub: Hub, request: Request) -> Body:
    """One step of the exchange."""
    connection = request.connection
    if connection.exchange is None:
        connection.close_after_answer()
        raise KafkaError(ErrorCode.illegal_sasl_state, "a login begins with SaslHandshake")
    try:
        answer = await _step(hub, connection, bytes(request.body.auth_bytes))
    except ProtocolViolation:
        raise
    except OnelogError as error:
        # The client gets the error, and the connection ends: each guess costs a connection.
        connection.close_after_answer()
        raise KafkaError(ErrorCode.sasl_authentication_failed, str(error)) from None
    return {
        "error_code": ErrorCode.none,
        "auth_bytes": answer,
        "session_lifetime": _lifetime_ms(hub, connection),
    }


def _lifetime_ms(hub: Hub, connection: Connection) -> int:
    """How long the login is valid; 0: for ever, or while it is in progress."""
    identity = connection.identity
    if connection.exchange is not None or identity is None or not identity.expires_ms:
        return 0
    return max(1, identity.expires_ms - hub.clock.now_ms())


async def _raw_step(hub: Hub, connection: Connection, token: bytes) -> bytes:
    answer = await _step(hub, connection, token)
    if connection.exchange is None:
        connection.on_raw_frame = None
    return answer


async def _step(hub: Hub, connection: Connection, message: bytes) -> bytes:
    exchange = connection.exchange
    assert exchange is not None
    known = exchange.refusal
    try:
        answer = await hub.authenticator.bans.guard(
            connection.peer.host, lambda: exchange.step(message)
        )
        if exchange.refusal is not None:
            _note(hub, connection, exchange, exchange.refusal)
        if exchange.identity is not None:
            connection.exchange = None
            _log_in(hub, connection, exchange.identity)
    except NotAuthenticated as error:
        if error is not known:
            _note(hub, connection, exchange, error)
        raise
    return answer


def _note(
    hub: Hub, connection: Connection, exchange: SaslExchange, error: NotAuthenticated
) -> None:
    note_failed_login(hub.broker.audit, "kafka", connection.peer.host, exchange.user, error)


def _log_in(hub: Hub, connection: Connection, identity: Identity) -> None:
    before = connection.identity
    if before is not None and before.proof != "anonymous" and before.name != identity.name:
        raise NotAuthenticated(
            f"this connection belongs to {before.name!r}; {identity.name!r} needs its own"
        )
    reauth_ms = hub.limits.reauth_ms
    if reauth_ms:
        until_ms = hub.clock.now_ms() + reauth_ms
        sooner_ms = min(identity.expires_ms or until_ms, until_ms)
        identity = msgspec.structs.replace(identity, expires_ms=sooner_ms)
    connection.log_in(identity)
    hub.counters.logins += 1
