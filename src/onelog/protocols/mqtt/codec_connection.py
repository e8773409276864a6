"""PINGREQ, PINGRESP, DISCONNECT, AUTH: packets about the connection (MQTT5 3.12 to 3.15)."""

from __future__ import annotations

from onelog.base.errors import InvalidRequest
from onelog.protocols.mqtt.errors import protocol_error
from onelog.protocols.mqtt.packet_types import V5, PacketType, Side
from onelog.protocols.mqtt.packets import Auth, Disconnect, Pingreq, Pingresp
from onelog.protocols.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_properties,
)
from onelog.protocols.mqtt.reason_bytes import decode_reason
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.wire import PacketReader


def decode_pingreq(reader: PacketReader, _flags: int, _version: int, _sender: Side) -> Pingreq:
    """Read PINGREQ, which has no body."""
    reader.finish()
    return Pingreq()


def decode_pingresp(reader: PacketReader, _flags: int, _version: int, _sender: Side) -> Pingresp:
    """Read PINGRESP, which has no body."""
    reader.finish()
    return Pingresp()


def encode_ping(_packet: Pingreq | Pingresp, _version: int) -> tuple[int, bytes]:
    """The flags and body of a ping."""
    return 0, b""


def decode_disconnect(reader: PacketReader, _flags: int, version: int, sender: Side) -> Disconnect:
    """Read DISCONNECT; version 5 may leave out the code and the properties."""
    if version != V5:
        reader.finish()
        return Disconnect()
    reason, properties = _read_tail(reader, PacketType.DISCONNECT, sender)
    if sender is Side.SERVER and properties.session_expiry_s is not None:
        raise protocol_error("a server sent a Session Expiry Interval in DISCONNECT")  # 3.14.2-2
    return Disconnect(reason, properties)


def decode_auth(reader: PacketReader, _flags: int, _version: int, sender: Side) -> Auth:
    """Read AUTH; an empty one is "success"."""
    empty = not reader.left
    reason, properties = _read_tail(reader, PacketType.AUTH, sender)
    if properties.authentication_method is None and not empty:
        raise protocol_error("AUTH has no Authentication Method")  # 3.15.2.2.2
    return Auth(reason, properties)


def _read_tail(
    reader: PacketReader, kind: PacketType, sender: Side
) -> tuple[ReasonCode, Properties]:
    code = reader.u8("reason code") if reader.left else ReasonCode.SUCCESS
    reason = decode_reason(code, kind, sender)
    properties = decode_properties(reader, kind) if reader.left else NO_PROPERTIES
    reader.finish()
    return reason, properties


def encode_disconnect(packet: Disconnect, version: int) -> tuple[int, bytes]:
    """The flags and body of DISCONNECT; version 3 has no body."""
    return 0, _tail(packet) if version == V5 else b""


def encode_auth(packet: Auth, version: int) -> tuple[int, bytes]:
    """The flags and body of AUTH."""
    if version != V5:
        raise InvalidRequest("AUTH exists in MQTT 5 only")
    return 0, _tail(packet)


def _tail(packet: Disconnect | Auth) -> bytes:
    if packet.properties != NO_PROPERTIES:
        return bytes((packet.reason,)) + encode_properties(packet.properties, packet.type)
    return bytes((packet.reason,)) if packet.reason is not ReasonCode.SUCCESS else b""
