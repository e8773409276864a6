"""CONNECT, AUTH and DISCONNECT: the identity of a client, its session, and how it leaves.

Rules:
- The old connection of a client id is closed (0x8E) before the new one is accepted.
- A session is promised only when it is kept: CONNACK of a persistent session waits until its row in
  `~sessions` is durable.
- A will is published unless the client sent DISCONNECT; its delay ends with the session at the
  latest.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import (
    NotAuthenticated,
    NotAuthorized,
    NotLeader,
    OnelogError,
    StateLoading,
    Unavailable,
)
from onelog.broker import note_failed_login
from onelog.broker.sessions import NEVER_MS
from onelog.observe import get_logger
from onelog.protocols.mqtt.auto_subscribe import subscribe_configured
from onelog.protocols.mqtt.codec_connect import ACCEPTED_V3
from onelog.protocols.mqtt.delayed import PREFIX as DELAYED
from onelog.protocols.mqtt.errors import MqttError, protocol_error
from onelog.protocols.mqtt.fitting import fit_packet
from onelog.protocols.mqtt.keeping import KeptBody
from onelog.protocols.mqtt.limits import MqttLimits
from onelog.protocols.mqtt.pacing import count_subscriptions, take_seat
from onelog.protocols.mqtt.packet_types import V5, V31
from onelog.protocols.mqtt.packets import Auth, Connack, Connect, Disconnect, Will
from onelog.protocols.mqtt.payload import check_payload
from onelog.protocols.mqtt.permission import check_owner, principal_of, session_cursor
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.session import MqttSession
from onelog.protocols.mqtt.session_state import cursor_name
from onelog.protocols.mqtt.special import parse_address
from onelog.protocols.mqtt.state import CLOSED, CONNECTED
from onelog.protocols.mqtt.subscribed import Subscribed
from onelog.protocols.mqtt.traced import TracedSession
from onelog.queues.addresses import is_writable
from onelog.security.bans import AddressBanned
from onelog.security.identity import Identity

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection

_log = get_logger("mqtt")

EXPIRY_NEVER_S: Final = 0xFFFF_FFFF
_TOKEN_LOOK_S: Final = 3600.0
"""Longest time between two looks at the clock: the wall clock may change."""
RECEIVE_MAXIMUM_DEFAULT: Final = 65_535
_IDS_PER_SHARD: Final = 20
"""How often an id is drawn, per shard, before a client is told to go elsewhere."""

_Told = tuple[int | None, str | None, int | None]
"""What a client of version 5 hears of itself: the expiry of its session, its id, its keep alive."""


def on_connect(connection: Connection, packet: Connect) -> None:
    """Begin: authenticate, attach the session, answer."""
    connection.output.packet_bytes_max = packet.properties.maximum_packet_size or 0
    if connection.hub.is_abandoned:
        raise Unavailable("MQTT could not recover and is not served now; /health says why")
    method = packet.properties.authentication_method
    if method is None:
        # Without a password nothing has to wait, unless the session is kept.
        connection.start(
            _connect_with_password(connection, packet), at_once=packet.password is None
        )
        return
    try:
        connection.exchange = connection.hub.authenticator.scram(method)
    except NotAuthenticated as error:
        _note(connection, packet.username, error)
        raise MqttError(ReasonCode.BAD_AUTHENTICATION_METHOD, str(error)) from None
    connection.connect_packet = packet
    connection.start(_step(connection, packet.properties.authentication_data))


def on_auth(connection: Connection, packet: Auth) -> None:
    """Go on with an enhanced authentication, or begin a new one on a live connection."""
    exchange = connection.exchange
    method = packet.properties.authentication_method
    if connection.state is CONNECTED and packet.reason is ReasonCode.REAUTHENTICATE:
        known = connection.connect_packet
        if known is None or method is None or known.properties.authentication_method != method:
            raise protocol_error("re-authentication needs the method of CONNECT")  # 4.12.1-1
        connection.exchange = connection.hub.authenticator.scram(method)
    elif exchange is None or exchange.mechanism != method:  # 4.12.0-5
        raise protocol_error("this AUTH does not belong to an exchange")
    connection.start(_step(connection, packet.properties.authentication_data))


async def _step(connection: Connection, data: bytes | None) -> None:
    exchange = connection.exchange
    assert exchange is not None

    async def check() -> bytes:
        return exchange.step(data or b"")

    try:
        answer = await connection.hub.authenticator.bans.guard(connection.peer.host, check)
    except AddressBanned as error:
        raise MqttError(ReasonCode.BANNED, str(error)) from None
    except NotAuthenticated as error:
        _note(connection, exchange.user, error)
        raise MqttError(ReasonCode.NOT_AUTHORIZED, str(error)) from None
    properties = Properties(authentication_method=exchange.mechanism, authentication_data=answer)
    if not exchange.done:
        connection.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
    elif connection.state is CONNECTED:
        connection.exchange = None
        assert exchange.identity is not None
        if exchange.identity.name != connection.principal.name:
            raise MqttError(ReasonCode.NOT_AUTHORIZED, "a session stays with its user")
        connection.identity = exchange.identity
        connection.send(Auth(ReasonCode.SUCCESS, properties))
    else:
        packet, connection.exchange = connection.connect_packet, None
        assert packet is not None
        assert exchange.identity is not None
        await _accept(connection, packet, exchange.identity, properties)


async def _connect_with_password(connection: Connection, packet: Connect) -> None:
    try:
        identity = await _identify(connection, packet)
    except NotAuthenticated as error:
        _note(connection, packet.username, error)
        if packet.username is None:  # no credentials were given
            raise MqttError(ReasonCode.NOT_AUTHORIZED, str(error)) from None
        raise
    await _accept(connection, packet, identity, NO_PROPERTIES)


def _note(connection: Connection, user: str | None, error: NotAuthenticated) -> None:
    audit = connection.hub.broker.audit
    note_failed_login(audit, "mqtt", connection.peer.host, user or "", error)


async def _identify(connection: Connection, packet: Connect) -> Identity:
    authenticator, peer = connection.hub.authenticator, connection.peer
    password = packet.password or b""
    name = packet.username
    is_token = authenticator.takes_tokens and password.count(b".") == 2
    if name is None and not is_token:
        if peer.certificate is not None:
            return authenticator.certificate(peer.certificate)
        return authenticator.anonymous(
            listener_is_loopback=peer.listener_is_loopback, peer_host=peer.host
        )

    async def check() -> Identity:
        known = authenticator.recall(name or "", password)
        if known is not None:
            return known
        if is_token:  # it says who it is, whatever the user name is
            return await authenticator.token(password.decode("ascii", "replace"))
        return await authenticator.password(name or "", password)

    try:
        return await authenticator.bans.guard(peer.host, check)
    except AddressBanned as error:
        raise MqttError(ReasonCode.BANNED, str(error)) from None


async def _accept(
    connection: Connection, packet: Connect, identity: Identity, extra: Properties
) -> None:
    hub, output = connection.hub, connection.output
    connection.identity = identity
    redirect = hub.features.redirect
    if redirect.to:  # MQTT5 4.11
        connection.refuse(
            ReasonCode.SERVER_MOVED if redirect.permanent else ReasonCode.USE_ANOTHER_SERVER,
            Properties(server_reference=redirect.to),
        )
        return
    client_id, assigned = _client_id(connection, packet)
    connection.principal = principal_of(hub, identity, client_id)
    hub.clients.check(client_id)
    expiry_ms, expiry_told = _session_expiry(connection, packet)
    if expiry_ms:
        check_owner(hub, connection.principal, session_cursor(client_id))
    keep_alive_s, keep_alive_told = _keep_alive(connection, packet)
    answers = ACCEPTED_V3
    if connection.version == V5:  # earlier versions have no field for it
        told = expiry_told, assigned, keep_alive_told
        answers = _accepted_v5(hub.limits, extra, told, output.packet_bytes_max)
    _check_will(connection, packet.will)
    _check_room(connection, client_id, expiry_ms)
    take_seat(connection, client_id)
    connection.is_entering = True
    try:
        session = await _enter(connection, packet, client_id, expiry_ms)
    finally:
        connection.entered.set()
    if connection.state is CLOSED or connection.transport.is_closing():
        connection.will = None  # the client was not accepted
        await hub.leave(connection)
        return
    assert connection.door is not None
    hub.sessions[client_id] = session
    hub.counters.connects += 1
    connection.state = CONNECTED
    knows = connection.version != V31
    connection.send_bytes(answers[knows and connection.door.resumed])
    connection.open_up()
    count_subscriptions(connection)
    connection.accept(keep_alive_s)
    if identity.expires_ms:
        _watch_token(connection)
    session.begin(connection)
    await subscribe_configured(connection)


def _accepted_v5(
    limits: MqttLimits, extra: Properties, told: _Told, bytes_max: int
) -> tuple[bytes, bytes]:
    """The whole CONNACK that accepts a client, without and with a session. Raises MqttError when it
    is larger than the client takes."""
    ours = limits.receive_maximum, limits.packet_bytes, limits.topic_alias_maximum or None
    if extra is NO_PROPERTIES and told[1] is None and not bytes_max:
        return _common_v5(told, ours)
    return _encode_v5(extra, told, ours, bytes_max)


@lru_cache(maxsize=64)
def _common_v5(told: _Told, ours: tuple[int, int, int | None]) -> tuple[bytes, bytes]:
    """What most clients get: all of it is settings of ours."""
    return _encode_v5(NO_PROPERTIES, told, ours, 0)


def _encode_v5(
    extra: Properties, told: _Told, ours: tuple[int, int, int | None], bytes_max: int
) -> tuple[bytes, bytes]:
    properties = msgspec.structs.replace(
        extra,
        session_expiry_s=told[0],
        assigned_client_id=told[1],
        server_keep_alive_s=told[2],
        receive_maximum=ours[0],
        maximum_packet_size=ours[1],
        topic_alias_maximum=ours[2],
    )
    without = fit_packet(Connack(properties=properties), V5, bytes_max)
    resumed = fit_packet(Connack(session_present=True, properties=properties), V5, bytes_max)
    if without is None or resumed is None:
        raise MqttError(ReasonCode.PACKET_TOO_LARGE, "CONNACK is larger than the client takes")
    return without, resumed


def _watch_token(connection: Connection) -> None:
    """End the connection when the token of its login expires."""
    connection.token_timer = None
    identity, hub = connection.identity, connection.hub
    if identity is None or connection.state is not CONNECTED:
        return
    left_ms = identity.expires_ms - hub.clock.now_ms()
    if left_ms <= 0:
        told = Properties(reason_string="the token has expired; connect again with a new one")
        connection.end(ReasonCode.NOT_AUTHORIZED, told)
        return
    after_s = min(left_ms / 1000, _TOKEN_LOOK_S)
    connection.token_timer = hub.loop.call_later(after_s, _watch_token, connection)


async def _enter(
    connection: Connection, packet: Connect, client_id: str, expiry_ms: int
) -> MqttSession:
    """Attach the client's session. A connection that takes over or lets go waits for this."""
    hub, limits, output = connection.hub, connection.hub.limits, connection.output
    try:
        door = await hub.broker.sessions.attach(
            client_id,
            protocol="mqtt",
            owner=connection.principal.name,
            expiry_ms=expiry_ms,
            clean=packet.clean_start,
            on_takeover=connection.taken_over,
            cursors=(cursor_name(client_id),),
        )
    except NotAuthorized as error:
        raise MqttError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, str(error)) from None
    hub.wills.back(client_id, clean=packet.clean_start)
    output.version = connection.version
    output.window = min(
        limits.inflight, packet.properties.receive_maximum or RECEIVE_MAXIMUM_DEFAULT
    )
    make = MqttSession if hub.broker.traces is None else TracedSession
    session = make(hub, client_id, output, connection.principal)
    connection.door, connection.session = door, session
    connection.will, connection.connect_packet = packet.will, packet
    output.alias_maximum = min(
        packet.properties.topic_alias_maximum or 0, limits.topic_alias_maximum
    )
    try:
        if door.resumed:
            await _restore(connection, session, door.record.body)
        await hub.wills.keep(client_id, connection.principal, packet.will)
        if expiry_ms:
            await hub.broker.cursors.adopt(session, write=False)
            session.is_kept = True
        hub.clients.check(client_id)  # the shard may be lost by now
    except OnelogError:
        connection.session = None
        try:
            hub.wills.forget(client_id)
            # Messages that wait for a resumed session outlive a connection that was not accepted.
            await hub.broker.sessions.detach(door, expiry_ms=None if door.resumed else 0)
        except NotLeader:  # the next owner has what was kept
            hub.broker.cursors.abandon(session)
        raise
    return session


async def _restore(connection: Connection, session: MqttSession, body: bytes) -> None:
    hub = connection.hub
    rows = msgspec.msgpack.decode(body, type=KeptBody).subscriptions if body else []
    specials: list[Subscribed] = []
    await hub.clients.observed.bring([parse_address(row.filter).filter for row in rows])
    for row in rows:
        try:
            hub.clients.observed.check(parse_address(row.filter).filter)
        except Unavailable as error:
            raise _not_whole(row, error) from error
        try:
            if row.exclusive:
                hub.clients.exclusive.claim(row.filter, session.client_id)
        except (NotLeader, StateLoading) as error:
            raise _not_whole(row, error) from error
        except OnelogError as error:  # another client has subscribed by now
            _log.info("a subscription ended", filter=row.filter, reason=str(error))
            continue
        if parse_address(row.filter).kind == "plain":
            session.subscriptions[row.filter] = row
        else:
            specials.append(row)
    kept = hub.broker.cursors.kept(session.name)
    if kept is not None:
        session.restore(kept)
        await session.bound_backlog()
    for row in specials:
        try:
            session.specials[row.filter] = await hub.open_special(
                session, row, connection.principal
            )
        except (NotLeader, StateLoading) as error:
            raise _not_whole(row, error) from error
        except OnelogError as error:  # no longer allowed, or its group cannot be read
            _log.warning("a subscription ended", filter=row.filter, reason=str(error))


def _not_whole(row: Subscribed, error: OnelogError) -> Unavailable:
    """The error for a session that would go on without one of its subscriptions."""
    return Unavailable(
        f"the session cannot be resumed here with its subscription {row.filter}: {error}"
    )


def _check_room(connection: Connection, client_id: str, expiry_ms: int) -> None:
    """Refuse one kept session too many: a client chooses its id and may leave at once (I8)."""
    sessions, most = connection.hub.broker.sessions, connection.hub.limits.kept_sessions
    if expiry_ms and sessions.kept_count >= most and not sessions.keeps(client_id):
        raise MqttError(ReasonCode.QUOTA_EXCEEDED, f"the broker keeps {most} sessions already")


def _check_will(connection: Connection, will: Will | None) -> None:
    """Refuse now a will that could not be published later."""
    if will is None:
        return
    if len(will.payload) > connection.hub.limits.will_bytes:
        raise MqttError(ReasonCode.QUOTA_EXCEEDED, "the will is too large")
    if not is_writable(will.topic) and not will.topic.startswith(DELAYED):
        raise NotAuthorized(f"clients may not publish to {will.topic}")
    if not connection.hub.fits(will.topic.encode()):
        raise MqttError(ReasonCode.TOPIC_NAME_INVALID, "the topic of the will is too long")
    check_payload(will.payload, will.properties)


def _client_id(connection: Connection, packet: Connect) -> tuple[str, str | None]:
    if not packet.client_id:
        if connection.version != V5 and not packet.clean_start:  # MQTT 3.1.3-8
            raise MqttError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id is clean")
        made = _own_id(connection)
        return made, made
    size = len(packet.client_id.encode())
    if size > connection.hub.limits.client_id_bytes:
        raise MqttError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, f"a client id of {size} bytes is too long"
        )
    return packet.client_id, None


def _own_id(connection: Connection) -> str:
    """A new client id, of a shard that this node owns if it owns any."""
    shards = connection.hub.broker.shards
    made = f"auto-{secrets.token_hex(10)}"
    for _ in range(_IDS_PER_SHARD * len(shards)):
        if shards.leads(made.encode()):
            break
        made = f"auto-{secrets.token_hex(10)}"
    return made


def _session_expiry(connection: Connection, packet: Connect) -> tuple[int, int | None]:
    """How long the session outlives its connection in ms, and the seconds to tell the client."""
    most_s = connection.hub.limits.session_expiry_max_s
    if connection.version != V5:
        return (0 if packet.clean_start else _granted_ms(EXPIRY_NEVER_S, most_s)), None
    asked_s = packet.properties.session_expiry_s or 0
    return _granted_ms(asked_s, most_s), most_s if asked_s > most_s else None


def _granted_ms(asked_s: int, most_s: int) -> int:
    granted_s = min(asked_s, most_s)
    return NEVER_MS if granted_s == EXPIRY_NEVER_S else granted_s * 1000


def _keep_alive(connection: Connection, packet: Connect) -> tuple[int, int | None]:
    most_s = connection.hub.limits.keep_alive_max_s
    asked_s = packet.keep_alive_s
    if connection.version == V5 and most_s and (asked_s == 0 or asked_s > most_s):
        return most_s, most_s
    return asked_s, None


def on_disconnect(connection: Connection, packet: Disconnect) -> None:
    """The client leaves; its will is dropped unless the packet asks for it (MQTT5 3.14.4-3)."""
    if packet.reason is ReasonCode.SUCCESS:
        connection.will = None
    expiry_s = packet.properties.session_expiry_s
    door = connection.door
    if expiry_s is not None and door is not None:
        if door.record.expiry_ms == 0 and expiry_s:  # 3.14.2.2.2
            connection.state = CONNECTED
            raise protocol_error("a session without expiry cannot be given one at its end")
        granted_ms = _granted_ms(expiry_s, connection.hub.limits.session_expiry_max_s)
        door.record = msgspec.structs.replace(door.record, expiry_ms=granted_ms)
    if connection.will is None and connection.session is not None:
        # At once: saving the session comes first, and a broker that dies meanwhile would publish
        # it.
        connection.hub.wills.forget(connection.session.client_id)
    connection.send_no_more()
    connection.transport.close()
