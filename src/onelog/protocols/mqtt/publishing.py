"""Publishes that the kernel leaves to Python (properties, QoS 2, special topics), and
acknowledgements.

Rules:
- PUBACK and PUBREC go out when the message is durable (I4). A QoS 2 packet id that was received
  and not released is answered again and published once (`receiving`).
- PUBACKs go out in the order of their publishes (MQTT5 4.6.0-2), also those of refused ones: the
  kernel keeps the order of a connection, whether it or Python staged the message.
- A publish that is refused is answered with the reason in version 5; version 3 has no code for it,
  so the connection ends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from onelog.base import faults
from onelog.base.errors import InvalidName, NotAuthorized, OnelogError, Timeout
from onelog.broker.showing import note_written
from onelog.protocols.mqtt import delayed
from onelog.protocols.mqtt.errors import MqttError, protocol_error, reason_for
from onelog.protocols.mqtt.mapping import to_message
from onelog.protocols.mqtt.pacing import count_publish
from onelog.protocols.mqtt.packet_types import V5, PacketType
from onelog.protocols.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from onelog.protocols.mqtt.payload import check_payload
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.record.headers import PUBLISHER, Headers

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection


def on_publish(connection: Connection, packet: Publish) -> None:
    """Publish a message that the kernel left to Python."""
    session = connection.session
    assert session is not None
    connection.hub.counters.published += 1
    connection.published += 1
    count_publish(connection, len(packet.topic) + len(packet.payload))
    connection.unanswered.begin(packet.packet_id, packet.qos, connection.version)
    if packet.qos == 2 and packet.packet_id in session.inbound:
        if not session.inbound.is_open(packet.packet_id):
            connection.send(Pubrec(packet.packet_id))  # published already; the client asks again
        return
    try:
        check_payload(packet.payload, packet.properties)
        topic = _topic_of(connection, packet)
        rewriter, name = connection.hub.rewriter, connection.principal.name
        _publish(connection, packet, rewriter.topic(topic, session.client_id, name))
    except OnelogError as error:
        if isinstance(error, MqttError) and error.reason is not ReasonCode.PAYLOAD_FORMAT_INVALID:
            raise
        _refuse(connection, packet, error)


def _publish(connection: Connection, packet: Publish, topic: str) -> None:
    session, hub, principal = connection.session, connection.hub, connection.principal
    publisher = hub.broker.publisher
    assert session is not None
    tag = connection.input.publisher
    own: Headers = ((PUBLISHER, tag),) if tag else ()
    if topic.startswith(delayed.PREFIX):
        home, message = hub.delayed.take(packet, topic, principal, own)
    elif topic.startswith("$") and not hub.may_write(topic):
        raise NotAuthorized(f"clients may not publish to {topic}")
    elif not hub.fits(topic.encode()):
        raise InvalidName(f"the topic {topic[:60]!r} is too long or too deep")
    else:
        message = to_message(packet, topic=topic, now_ms=hub.clock.now_ms())
        if own:
            message = msgspec.structs.replace(message, headers=(*message.headers, *own))
        home = publisher.admit(message, principal)
        note_written(connection.written, topic)
    if publisher.is_crowded(home[0], home[1]):
        hub.routes.crowd.hold(connection)
    if packet.qos == 2:
        session.inbound.publish(
            packet.packet_id, message, home, partial(_received, connection, packet)
        )
        return
    stage = publisher.put(home, message, None)
    if packet.qos:
        connection.input.await_ack(packet.packet_id, stage)


def _topic_of(connection: Connection, packet: Publish) -> str:
    """The topic, resolved if it is an alias (MQTT5 3.3.2.3.4)."""
    alias = packet.properties.topic_alias
    if alias is None:
        return packet.topic
    if alias > connection.hub.limits.topic_alias_maximum:
        raise MqttError(ReasonCode.TOPIC_ALIAS_INVALID, f"the topic alias {alias} is too large")
    if packet.topic:
        connection.aliases[alias] = packet.topic
        return packet.topic
    known = connection.aliases.get(alias)
    if known is None:
        raise protocol_error(f"the topic alias {alias} was never given a topic")
    return known


def _received(connection: Connection, packet: Publish, error: OnelogError | None) -> None:
    """A message of QoS 2 is durable, or has failed."""
    if connection.session is None:
        return
    if isinstance(error, Timeout):
        connection.fail(error)  # neither yes nor no: the client sends it again
    elif error is not None:
        _refuse(connection, packet, error)
    else:
        connection.send(Pubrec(packet.packet_id))


def _refuse(connection: Connection, packet: Publish, error: OnelogError) -> None:
    if packet.qos == 0:
        return  # no packet can report it; the message is dropped
    if connection.version != V5:
        connection.fail(error)
        return
    if packet.qos == 2:
        connection.unanswered.end(packet.packet_id, 2)
        answer = Pubrec(packet.packet_id, reason_for(error, PacketType.PUBREC))
        connection.send_explained(answer, error)
        return
    if connection.input.has_acks:
        connection.hub.broker.publisher.tick()  # those before it are written, and wait in order
    connection.input.answer_next(partial(_refuse_now, connection, packet.packet_id, error))


def _refuse_now(connection: Connection, packet_id: int, error: OnelogError) -> None:
    connection.unanswered.end(packet_id, 1)
    answer = Puback(packet_id, reason_for(error, PacketType.PUBACK))
    connection.send_explained(answer, error)


def on_puback(connection: Connection, packet: Puback) -> None:
    """The client acknowledged a message of QoS 1."""
    _check_step(connection, packet)
    _settle(connection, packet.packet_id, packet.reason)


def on_pubrec(connection: Connection, packet: Pubrec) -> None:
    """The client received a message of QoS 2, or refuses it (MQTT5 4.3.3)."""
    session = connection.session
    assert session is not None
    _check_step(connection, packet)
    if packet.reason >= ReasonCode.UNSPECIFIED_ERROR:
        _settle(connection, packet.packet_id, packet.reason)
    elif session.output.receive(packet.packet_id):
        changed = session.settle_owned(packet.packet_id, accepted=True)
        more = () if changed is None else (changed,)
        connection.after_saving(lambda: connection.send(Pubrel(packet.packet_id)), *more)
    else:
        connection.send(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))


def on_pubcomp(connection: Connection, packet: Pubcomp) -> None:
    """The client completed a message of QoS 2."""
    _check_step(connection, packet)
    _settle(connection, packet.packet_id, ReasonCode.SUCCESS)


def _check_step(connection: Connection, packet: Puback | Pubrec | Pubcomp) -> None:
    """Refuse an answer that does not fit the step of the message in flight (MQTT5 4.3.2-3,
    4.3.3-3).

    An id that is not in flight is no error: the answer may cross with the end of a session.
    """
    assert connection.session is not None
    awaited = connection.session.output.awaits(packet.packet_id)
    if awaited in (0, packet.type) or (awaited == PacketType.PUBCOMP and _repeats(packet)):
        return
    raise protocol_error(
        f"{packet.type.name} for packet identifier {packet.packet_id}, which waits for"
        f" {PacketType(awaited).name}"
    )


def _repeats(packet: Puback | Pubrec | Pubcomp) -> bool:
    """Whether a client repeats its PUBREC, because it did not get our PUBREL."""
    return isinstance(packet, Pubrec) and packet.reason < ReasonCode.UNSPECIFIED_ERROR


def _settle(connection: Connection, packet_id: int, reason: ReasonCode) -> None:
    session = connection.session
    assert session is not None
    session.output.ack(packet_id)
    if session.owned:
        session.settle_owned(packet_id, accepted=reason < ReasonCode.UNSPECIFIED_ERROR)
    session.on_change()


def _complete(connection: Connection, packet_id: int, reason: ReasonCode) -> None:
    faults.hit("mqtt.released_saved")
    connection.unanswered.end(packet_id, 2)
    connection.send(Pubcomp(packet_id, reason))


def on_pubrel(connection: Connection, packet: Pubrel) -> None:
    """The client releases a publish of QoS 2: its packet id may be used again."""
    session = connection.session
    assert session is not None
    if session.inbound.is_open(packet.packet_id):
        connection.start(_release_answered(connection, packet.packet_id))
    else:
        _release(connection, packet.packet_id)


async def _release_answered(connection: Connection, packet_id: int) -> None:
    """Release a publish after its PUBREC, which is still to be sent (MQTT5 4.3.3, figure 4.3).

    No packet of the client is handled meanwhile, so that many of them cost nothing.
    """
    if connection.session is not None:  # it may have ended before this began
        await connection.session.inbound.finish()
    if connection.session is not None:  # otherwise the client's next connection releases it
        _release(connection, packet_id)


def _release(connection: Connection, packet_id: int) -> None:
    session = connection.session
    assert session is not None
    known = session.inbound.release(packet_id)
    reason = ReasonCode.SUCCESS if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    # Durably: the id may be used for another message as soon as this is answered. An unknown id may
    # be one whose release is just being saved.
    connection.after_saving(lambda: _complete(connection, packet_id, reason))
