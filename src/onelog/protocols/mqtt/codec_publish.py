"""PUBLISH and its four answers: PUBACK, PUBREC, PUBREL, PUBCOMP (MQTT5 3.3 to 3.7)."""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidRequest
from onelog.protocols.mqtt.errors import malformed, protocol_error
from onelog.protocols.mqtt.packet_types import V5, V31, PacketType, Side
from onelog.protocols.mqtt.packets import Ack, Puback, Pubcomp, Publish, Pubrec, Pubrel
from onelog.protocols.mqtt.properties import NO_PROPERTIES, decode_properties, encode_properties
from onelog.protocols.mqtt.reason_bytes import decode_reason
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.topics import check_topic_name, has_wildcard
from onelog.protocols.mqtt.wire import PacketReader, write_text, write_u16

_RETAIN: Final = 1
_DUP: Final = 8

_ACKS: Final[dict[PacketType, type[Ack]]] = {
    PacketType.PUBACK: Puback,
    PacketType.PUBREC: Pubrec,
    PacketType.PUBREL: Pubrel,
    PacketType.PUBCOMP: Pubcomp,
}


def read_packet_id(reader: PacketReader, what: str) -> int:
    """A packet identifier, which is never 0 (2.2.1-3)."""
    packet_id = reader.u16("packet identifier")
    if not packet_id:
        raise protocol_error(f"{what} has the packet identifier 0")
    return packet_id


def write_packet_id(packet_id: int) -> bytes:
    """A packet identifier; 0 is refused."""
    if not packet_id:
        raise InvalidRequest("this packet needs a packet identifier from 1 to 65535")
    return write_u16(packet_id)


def decode_publish(reader: PacketReader, flags: int, version: int, sender: Side) -> Publish:
    """Read PUBLISH. The session resolves a topic alias, because it knows the connection's
    aliases."""
    qos = flags >> 1 & 3
    if qos == 3:
        raise malformed("PUBLISH has QoS 3")  # 3.3.1-4
    if flags & _DUP and not qos and version != V31:
        raise malformed("PUBLISH of QoS 0 is marked as a duplicate")  # 3.3.1-2
    topic = reader.text("topic name")
    if version != V5:
        check_topic_name(topic, "topic name")
    packet_id = read_packet_id(reader, "PUBLISH") if qos else 0
    properties = NO_PROPERTIES
    if version == V5:
        properties = decode_properties(reader, PacketType.PUBLISH)
        if topic:
            check_topic_name(topic, "topic name")
        elif properties.topic_alias is None:
            raise protocol_error("PUBLISH has neither a topic nor a topic alias")  # 3.3.2.3.4
        if properties.subscription_ids and sender is Side.CLIENT:
            raise protocol_error("a client sent a Subscription Identifier in PUBLISH")  # 3.3.4-6
    return Publish(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        retain=bool(flags & _RETAIN),
        dup=bool(flags & _DUP and qos),
        packet_id=packet_id,
        properties=properties,
    )


def encode_publish(packet: Publish, version: int) -> tuple[int, bytes]:
    """The flags and body of PUBLISH."""
    if packet.qos not in (0, 1, 2):
        raise InvalidRequest(f"a PUBLISH cannot have QoS {packet.qos}")
    if packet.dup and not packet.qos:
        raise InvalidRequest("a PUBLISH of QoS 0 is never a duplicate")
    if has_wildcard(packet.topic):
        raise InvalidRequest(f"the topic {packet.topic[:60]!r} has a wildcard")
    aliased = version == V5 and packet.properties.topic_alias is not None
    if not packet.topic and not aliased:
        raise InvalidRequest("a PUBLISH needs a topic or, in MQTT 5, a topic alias")
    flags = packet.qos << 1 | (_RETAIN if packet.retain else 0) | (_DUP if packet.dup else 0)
    parts = [write_text(packet.topic)]
    if packet.qos:
        parts.append(write_packet_id(packet.packet_id))
    if version == V5:
        parts.append(encode_properties(packet.properties, PacketType.PUBLISH))
    parts.append(packet.payload)
    return flags, b"".join(parts)


def decode_ack(kind: PacketType, reader: PacketReader, version: int, sender: Side) -> Ack:
    """Read one of the four answers; version 5 may leave out the code and the properties."""
    packet_id = read_packet_id(reader, kind.name)
    reason, properties = ReasonCode.SUCCESS, NO_PROPERTIES
    if version == V5 and reader.left:
        reason = decode_reason(reader.u8("reason code"), kind, sender)
        if reader.left:  # 3.4.2.2.1: without a property length it is 0
            properties = decode_properties(reader, kind)
    reader.finish()
    return _ACKS[kind](packet_id, reason, properties)


def encode_ack(packet: Ack, version: int) -> tuple[int, bytes]:
    """The flags and body of an answer, as short as the version allows."""
    flags = 2 if packet.type is PacketType.PUBREL else 0
    body = write_packet_id(packet.packet_id)
    if version != V5:
        return flags, body
    if packet.properties != NO_PROPERTIES:
        body += bytes((packet.reason,)) + encode_properties(packet.properties, packet.type)
    elif packet.reason is not ReasonCode.SUCCESS:
        body += bytes((packet.reason,))
    return flags, body
