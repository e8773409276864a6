"""The login: start, tune, open (AMQP 0-9-1 2.2.4), and the later methods of channel 0.

Rules: one step at a time, in order; a step out of turn is CHANNEL_ERROR. A client that announced it
gets 403 for a refused login; for any other, the connection just ends, as the specification says. A
tune-ok beyond the offer is refused; so is 0, which means no bound at all (channels and frames;
heartbeats may be off). A connection ends when the token that opened it expires. Every refused login
is in the log, with the name that the client gave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

import onelog
from onelog.base.errors import NotAuthenticated, OnelogError, ProtocolViolation
from onelog.broker import note_failed_login
from onelog.net import Deadline
from onelog.observe import get_logger
from onelog.protocols.amqp.errors import AmqpError, Reply, amqp_error
from onelog.protocols.amqp.owned import TOGETHER
from onelog.record.tables import decode_table
from onelog.security.identity import Identity
from onelog.security.quotas.entities import NAME_BYTES_MAX
from onelog.security.quotas.seat import CountExceeded

if TYPE_CHECKING:
    from onelog.protocols.amqp.connection import Connection

FRAME_BYTES_MIN: Final = 4096
CAPABILITIES: Final[dict[str, bool]] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
"""Capabilities that clients look for."""

SPOKEN: Final = ("RabbitMQ", "3.10.8")
"""The product whose AMQP dialect is spoken here. Clients read it: only with this name does kombu
use prefetch as RabbitMQ means it; otherwise waiting tasks of Celery would block others."""

NAME_CHARS_MAX: Final = 256
"""Characters of a name in the log: a peer that was refused chose the name."""

_TOKEN_LOOK_S: Final = 3600.0
"""How long a timer waits for a token to expire before it looks at the clock again."""

_log = get_logger("amqp")

_REFUSED: Final = (
    "Login was refused using authentication mechanism {}. For details see the broker logfile."
)


class Handshake:
    """The steps of one connection on channel 0."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._expected: type[Any] | None = None
        self._mechanism = ""
        self._login_name = ""
        self._is_renewing = False
        self._token_deadline = Deadline(connection.hub.loop)

    def begin(self) -> None:
        """Send connection.start: our properties and the login mechanisms."""
        hub, peer = self._connection.hub, self._connection.peer
        mechanisms = ["PLAIN", "AMQPLAIN"]
        if peer.certificate is not None:
            mechanisms.append("EXTERNAL")
        if hub.allows_anonymous(peer):
            mechanisms.append("ANONYMOUS")
        self._expected = commands.Connection.StartOk
        self._connection.send(
            0,
            commands.Connection.Start(
                version_major=0,
                version_minor=9,
                server_properties={
                    "product": SPOKEN[0],
                    "version": SPOKEN[1],
                    "platform": f"OneLog {onelog.__version__}",
                    "information": "OneLog, which does what RabbitMQ does",
                    "cluster_name": hub.cluster_name,
                    "capabilities": dict(CAPABILITIES),
                },
                mechanisms=" ".join(mechanisms),
                locales="en_US",
            ),
        )

    def take(self, method: Any) -> None:
        """Take one method of the peer. Raises AmqpError."""
        if self._expected is None:
            self._take_later(method)
            return
        if not isinstance(method, self._expected):
            raise AmqpError(
                Reply.CHANNEL_ERROR, f"{method.name} where {self._expected.name} was expected"
            )
        if isinstance(method, commands.Connection.StartOk):
            self._start_ok(method)
        elif isinstance(method, commands.Connection.TuneOk):
            self._tune_ok(method)
        else:
            self._open(method)

    def _take_later(self, method: Any) -> None:
        """Take a method on channel 0 of an open connection."""
        if isinstance(method, commands.Connection.UpdateSecret):
            self._take_secret(method)
        elif not isinstance(method, (commands.Connection.Blocked, commands.Connection.Unblocked)):
            raise AmqpError(Reply.CHANNEL_ERROR, f"{method.name} on an open connection")

    # -- login

    def _start_ok(self, method: Any) -> None:
        self._expected = _Nothing
        self._mechanism = self._connection.mechanism = method.mechanism
        self._connection.properties = dict(method.client_properties or {})
        response = method.response
        if isinstance(response, str):
            response = response.encode("utf-8", "surrogateescape")
        self._connection.run(self._log_in(bytes(response)))

    async def _log_in(self, response: bytes) -> None:
        connection = self._connection
        try:
            identity = await self._identify(response)
        except OnelogError as error:
            connection.hub.counters.refused += 1
            self._note(error)
            self._refuse(error)
            return
        if not connection.log_in(identity, self._login_name):
            return  # the peer sent a method out of turn: nothing is sent after a close
        self._watch_token()
        limits = connection.hub.limits
        self._expected = commands.Connection.TuneOk
        connection.send(
            0,
            commands.Connection.Tune(
                channel_max=limits.channels,
                frame_max=limits.frame_bytes,
                heartbeat=limits.heartbeat_s,
            ),
        )

    async def _identify(self, response: bytes) -> Identity:
        connection = self._connection
        authenticator, peer = connection.hub.authenticator, connection.peer
        if self._mechanism == "EXTERNAL":
            return authenticator.certificate(peer.certificate)
        if self._mechanism == "ANONYMOUS":
            return connection.hub.anonymous(peer)
        readers = {"PLAIN": _plain, "AMQPLAIN": _amqplain}
        if self._mechanism not in readers:
            raise NotAuthenticated(f"the mechanism {self._mechanism[:40]!r} is not known here")
        name, password = readers[self._mechanism](response)
        self._login_name = name
        return await authenticator.bans.guard(peer.host, lambda: self._check_secret(name, password))

    async def _check_secret(self, name: str, secret: bytes) -> Identity:
        """The identity of a name with a password or token. Raises NotAuthenticated."""
        authenticator = self._connection.hub.authenticator
        known = authenticator.recall(name, secret)
        if known is not None:
            return known
        if (name, secret) == ("guest", b"guest") and not authenticator.knows("guest"):
            # The default user name of every AMQP client is no user here: where anonymous peers are
            # allowed it means anonymous, and elsewhere it is refused like any other.
            return self._connection.hub.anonymous(self._connection.peer)
        if authenticator.takes_tokens and secret.count(b".") == 2:
            found = await authenticator.token(secret.decode("ascii", "replace"))
            self._login_name = found.name  # with a token, clients give any name
            return found
        return await authenticator.password(name, secret)

    def _note(self, error: OnelogError) -> None:
        """A login that was refused goes to the audit trail; one that could not be checked does
        not."""
        connection = self._connection
        if isinstance(error, NotAuthenticated):
            audit = connection.hub.broker.audit
            note_failed_login(audit, "amqp", connection.peer.host, self._login_name, error)

    def _refuse(self, error: OnelogError) -> None:
        connection = self._connection
        _log.warning(
            "an AMQP login was refused",
            peer=connection.name,
            user=self._login_name[:NAME_CHARS_MAX],
            mechanism=self._mechanism[:40],
            why=str(error),
        )
        told = connection.is_able("authentication_failure_close")
        if isinstance(error, NotAuthenticated) and not told:
            connection.abort(f"login refused: {error}")
        elif isinstance(error, NotAuthenticated):
            text = AmqpError(Reply.ACCESS_REFUSED, _REFUSED.format(self._mechanism)).reply_text
            connection.close(Reply.ACCESS_REFUSED, text)
        else:
            connection.fail(amqp_error(error))

    def _take_secret(self, method: Any) -> None:
        """A client renews its token before the old one expires.

        If no token opened the connection, nothing expires and, as in RabbitMQ, nothing is checked.
        One token is checked at a time, so that a peer that sends many starts only one check.
        """
        connection = self._connection
        identity = connection.identity
        assert identity is not None
        if identity.proof != "token":
            connection.send(0, commands.Connection.UpdateSecretOk())
        elif self._is_renewing:
            raise AmqpError(Reply.CHANNEL_ERROR, f"{method.name} while another one is checked")
        else:
            self._is_renewing = True
            connection.run(self._update_secret(method, identity))

    async def _update_secret(self, method: Any, identity: Identity) -> None:
        connection = self._connection
        secret = method.new_secret
        data = secret.encode() if isinstance(secret, str) else bytes(secret)
        try:
            renewed = await connection.hub.authenticator.bans.guard(
                connection.peer.host, lambda: self._check_secret(self._login_name, data)
            )
            if renewed.name != identity.name:
                raise NotAuthenticated(f"the secret is of {renewed.name}, not of {identity.name}")
        except OnelogError as error:
            self._note(error)
            connection.fail(AmqpError(Reply.NOT_ALLOWED, f"new secret was refused: {error}"))
            return
        finally:
            self._is_renewing = False
        if connection.log_in(renewed, self._login_name):
            self._watch_token()
            connection.send(0, commands.Connection.UpdateSecretOk())

    def _watch_token(self) -> None:
        """End the connection when its token expires, unless the client renews it."""
        self.end()
        connection = self._connection
        identity = connection.identity
        if identity is None or not identity.expires_ms:
            return
        left_ms = identity.expires_ms - connection.hub.clock.now_ms()
        if left_ms <= 0:
            connection.close(320, "CONNECTION_FORCED - the token has expired")
            return
        self._token_deadline.start(min(left_ms / 1000, _TOKEN_LOOK_S), self._watch_token)

    def end(self) -> None:
        """Stop the timer of the token. Idempotent."""
        self._token_deadline.stop()

    # -- tune and open

    def _tune_ok(self, method: Any) -> None:
        limits = self._connection.hub.limits
        _check_tune("channel_max", method.channel_max, 1, limits.channels)
        _check_tune("frame_max", method.frame_max, FRAME_BYTES_MIN, limits.frame_bytes)
        self._connection.tuned(method.channel_max, method.frame_max, method.heartbeat)
        self._expected = commands.Connection.Open

    def _open(self, method: Any) -> None:
        connection = self._connection
        hub = connection.hub
        if hub.is_abandoned or not hub.broker.shards.holds(TOGETHER):
            raise hub.why_abandoned(connection)
        vhost = connection.hub.vhosts.find(method.virtual_host)
        if vhost is None:
            raise AmqpError(Reply.NOT_ALLOWED, f"vhost {method.virtual_host} not found")
        self._take_seat()
        self._expected = None
        connection.send(0, commands.Connection.OpenOk())
        connection.opened(vhost)

    def _take_seat(self) -> None:
        """Count the connection in the quotas of its user."""
        connection = self._connection
        assert connection.identity is not None
        user, client = connection.identity.name, connection.properties.get("connection_name")
        try:
            connection.seat = connection.hub.broker.client_quotas.join(
                connection,
                "amqp",
                user,
                client[:NAME_BYTES_MAX] if isinstance(client, str) else "",
                connection.peer.listener,
            )
        except CountExceeded as error:
            raise AmqpError(
                Reply.NOT_ALLOWED,
                f"connection refused for user '{user}': user connection limit ({error.most}) is"
                " reached",
            ) from None


class _Nothing:
    """No method: the login is being checked."""

    name = "nothing"


def _check_tune(name: str, wish: int, low: int, high: int) -> None:
    """Refuse a tune-ok beyond the offer; 0 means no bound at all."""
    if 0 < wish < low:
        raise AmqpError(
            Reply.NOT_ALLOWED,
            f"negotiated {name} = {wish} is lower than the minimum allowed value ({low})",
        )
    if wish > high or not wish:
        raise AmqpError(
            Reply.NOT_ALLOWED,
            f"negotiated {name} = {wish} is higher than the maximum allowed value ({high})",
        )


def _plain(response: bytes) -> tuple[str, bytes]:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise NotAuthenticated("a PLAIN response is: NUL, name, NUL, password")
    return _name(parts[1]), parts[2]


def _amqplain(response: bytes) -> tuple[str, bytes]:
    try:
        table = decode_table(response)
    except ProtocolViolation:
        table = {}
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    # Only texts: a number would be taken for a length.
    if not isinstance(name, str) or not isinstance(password, str | bytes):
        raise NotAuthenticated("an AMQPLAIN response is a table with LOGIN and PASSWORD")
    return name, password.encode() if isinstance(password, str) else password


def _name(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NotAuthenticated("the user's name is not UTF-8") from None
