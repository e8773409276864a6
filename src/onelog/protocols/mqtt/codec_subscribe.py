"""SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK (MQTT5 3.8 to 3.11)."""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidRequest
from onelog.protocols.mqtt.codec_publish import read_packet_id, write_packet_id
from onelog.protocols.mqtt.errors import MqttError, malformed, protocol_error
from onelog.protocols.mqtt.packet_types import V5, V31, PacketType, Side
from onelog.protocols.mqtt.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from onelog.protocols.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_properties,
)
from onelog.protocols.mqtt.reason_bytes import decode_reason
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.topics import SHARE_PREFIX, check_topic_filter
from onelog.protocols.mqtt.wire import PacketReader, write_text, write_u8

FILTERS_PER_PACKET_MAX: Final = 10_000
"""Rows of one SUBSCRIBE or UNSUBSCRIBE: a packet of one MiB could hold 200 000 small ones."""

_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_RETAIN_HANDLING_SHIFT: Final = 4
_RESERVED: Final = 0xC0
_RESERVED_V3: Final = 0xFC

_SUBACK_V3: Final = frozenset({0, 1, 2, 0x80})


def _read_head(reader: PacketReader, kind: PacketType, version: int) -> tuple[int, Properties]:
    packet_id = read_packet_id(reader, kind.name)
    if version == V5:
        return packet_id, decode_properties(reader, kind)
    return packet_id, NO_PROPERTIES


def _read_filter(reader: PacketReader, count: int) -> str:
    if count == FILTERS_PER_PACKET_MAX:
        raise MqttError(
            ReasonCode.QUOTA_EXCEEDED, f"more than {FILTERS_PER_PACKET_MAX} filters in a packet"
        )
    text = reader.text("topic filter")
    check_topic_filter(text)
    return text


def decode_subscribe(reader: PacketReader, _flags: int, version: int, _sender: Side) -> Subscribe:
    """Read SUBSCRIBE."""
    packet_id, properties = _read_head(reader, PacketType.SUBSCRIBE, version)
    if not reader.left:
        raise protocol_error("SUBSCRIBE has no topic filter")  # 3.8.3-2
    rows: list[Subscription] = []
    while reader.left:
        text = _read_filter(reader, len(rows))
        options = reader.u8("subscription options")
        rows.append(_subscription(text, options, version))
    return Subscribe(packet_id, tuple(rows), properties)


def _subscription(text: str, options: int, version: int) -> Subscription:
    qos = options & 3
    if version != V5:
        reserved = options & _RESERVED_V3 and version != V31
        if reserved or qos == 3:  # MQTT 3-8.3-4
            raise malformed(f"0x{options:02X} is not a requested QoS")
        return Subscription(text, qos)
    if options & _RESERVED:
        raise malformed("a reserved bit of the subscription options is set")  # 3.8.3-5
    if qos == 3:
        raise protocol_error("a subscription asks for QoS 3")  # 3.8.3.1
    handling = options >> _RETAIN_HANDLING_SHIFT
    if handling == 3:
        raise protocol_error("a subscription has Retain Handling 3")  # 3.8.3.1
    no_local = bool(options & _NO_LOCAL)
    if no_local and text.startswith(SHARE_PREFIX):
        raise protocol_error("a shared subscription has No Local set")  # 3.8.3-4
    return Subscription(text, qos, no_local, bool(options & _RETAIN_AS_PUBLISHED), handling)


def encode_subscribe(packet: Subscribe, version: int) -> tuple[int, bytes]:
    """The flags and body of SUBSCRIBE."""
    if not packet.subscriptions:
        raise InvalidRequest("a SUBSCRIBE needs a topic filter")
    parts = [_head(packet, version)]
    for row in packet.subscriptions:
        if row.qos not in (0, 1, 2) or row.retain_handling not in (0, 1, 2):
            raise InvalidRequest(f"the subscription {row} has an option outside 0 to 2")
        options = row.qos
        if version == V5:
            options |= row.retain_handling << _RETAIN_HANDLING_SHIFT
            options |= _NO_LOCAL if row.no_local else 0
            options |= _RETAIN_AS_PUBLISHED if row.retain_as_published else 0
        parts += (write_text(row.filter), write_u8(options))
    return 2, b"".join(parts)


def _head(packet: Subscribe | Suback | Unsubscribe | Unsuback, version: int) -> bytes:
    head = write_packet_id(packet.packet_id)
    if version == V5:
        head += encode_properties(packet.properties, packet.type)
    return head


def decode_suback(reader: PacketReader, _flags: int, version: int, sender: Side) -> Suback:
    """Read SUBACK."""
    packet_id, properties = _read_head(reader, PacketType.SUBACK, version)
    codes = reader.rest()
    if not codes:
        raise protocol_error("SUBACK has no code")
    if version != V5 and not _SUBACK_V3.issuperset(codes):
        raise protocol_error("SUBACK has a code that MQTT 3 does not know")  # MQTT 3.9.3-2
    reasons = tuple(decode_reason(code, PacketType.SUBACK, sender) for code in codes)
    return Suback(packet_id, reasons, properties)


def encode_suback(packet: Suback, version: int) -> tuple[int, bytes]:
    """The flags and body of SUBACK; version 3 has one code for every failure."""
    codes = bytes(packet.reasons)
    if version != V5:
        codes = bytes(min(code, ReasonCode.UNSPECIFIED_ERROR) for code in codes)
    return 0, _head(packet, version) + codes


def decode_unsubscribe(
    reader: PacketReader, _flags: int, version: int, _sender: Side
) -> Unsubscribe:
    """Read UNSUBSCRIBE."""
    packet_id, properties = _read_head(reader, PacketType.UNSUBSCRIBE, version)
    if not reader.left:
        raise protocol_error("UNSUBSCRIBE has no topic filter")  # 3.10.3-2
    filters: list[str] = []
    while reader.left:
        filters.append(_read_filter(reader, len(filters)))
    return Unsubscribe(packet_id, tuple(filters), properties)


def encode_unsubscribe(packet: Unsubscribe, version: int) -> tuple[int, bytes]:
    """The flags and body of UNSUBSCRIBE."""
    if not packet.filters:
        raise InvalidRequest("an UNSUBSCRIBE needs a topic filter")
    return 2, _head(packet, version) + b"".join(write_text(text) for text in packet.filters)


def decode_unsuback(reader: PacketReader, _flags: int, version: int, sender: Side) -> Unsuback:
    """Read UNSUBACK; it has codes in version 5 only."""
    packet_id, properties = _read_head(reader, PacketType.UNSUBACK, version)
    if version != V5:
        reader.finish()
        return Unsuback(packet_id)
    codes = reader.rest()
    if not codes:
        raise protocol_error("UNSUBACK has no code")
    reasons = tuple(decode_reason(code, PacketType.UNSUBACK, sender) for code in codes)
    return Unsuback(packet_id, reasons, properties)


def encode_unsuback(packet: Unsuback, version: int) -> tuple[int, bytes]:
    """The flags and body of UNSUBACK."""
    return 0, _head(packet, version) + (bytes(packet.reasons) if version == V5 else b"")
