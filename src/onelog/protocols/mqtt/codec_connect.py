"""CONNECT and CONNACK: the opening of a connection (MQTT5 3.1, 3.2).

Rules: MQTT 3.1 is read loosely, as its specification is loose (unused bits are ignored, a missing
user name means none); 3.1.1 and 5 are read strictly.
"""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidRequest
from onelog.protocols.mqtt.errors import MqttError, malformed, protocol_error
from onelog.protocols.mqtt.packet_types import V5, V31, V311, WILL, PacketType, Side, Version
from onelog.protocols.mqtt.packets import Connack, Connect, Will
from onelog.protocols.mqtt.payload import check_payload
from onelog.protocols.mqtt.properties import NO_PROPERTIES, decode_properties, encode_properties
from onelog.protocols.mqtt.reason_bytes import decode_reason
from onelog.protocols.mqtt.reasons import (
    REASONS_OF_RETURN_CODES,
    RETURN_CODES,
    ReasonCode,
    ReturnCode,
)
from onelog.protocols.mqtt.topics import check_topic_name
from onelog.protocols.mqtt.wire import PacketReader, write_binary, write_text, write_u8, write_u16

_PROTOCOL_NAMES: Final[dict[int, str]] = {
    V31: "MQIsdp",
    V311: "MQTT",
    V5: "MQTT",
}

_BRIDGE: Final = 0x80
_CLEAN: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS_SHIFT: Final = 3
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80

_HEADS: Final = {b"\0\4MQTT\4": V311, b"\0\4MQTT\5": V5}
"""How almost every CONNECT begins: name and level, which say the version."""
_HEAD_BYTES: Final = 7
_PLAIN_FLAGS: Final = (_CLEAN, 0)
_FIXED_BYTES: Final = 10
"""With the flags and the keep alive behind the head."""

ACCEPTED_V3: Final = (b"\x20\x02\x00\x00", b"\x20\x02\x01\x00")
"""The whole CONNACK that accepts a client of version 3, without and with a session. MQTT 3.1 knows
only the first."""


def answer_version(body: bytes | memoryview) -> Version:
    """The version in which a CONNECT is answered, also one that cannot be decoded.

    An unknown level is answered in the newest version (3.1.2-2), unless its high bit is set:
    bridges of version 3 mark themselves so.
    """
    known = _HEADS.get(bytes(body[:_HEAD_BYTES]))
    if known is not None:
        return known
    raw = bytes(body[:16])
    if raw.startswith(b"\0\6MQIsdp"):
        return V31
    if raw.startswith(b"\0\4MQTT") and V5 <= raw[6:7].ljust(1, b"\0")[0] < _BRIDGE:
        return V5
    return V311


def decode_connect(reader: PacketReader, _flags: int, _version: int, _sender: Side) -> Connect:
    """Read CONNECT; its version is in its body."""
    raw = reader.ahead(_FIXED_BYTES)
    version = _HEADS.get(raw[:_HEAD_BYTES], 0) if len(raw) == _FIXED_BYTES else 0
    if version:
        reader.skip(_FIXED_BYTES)
        flags = raw[7]
        _check_flags(flags, version)
        keep_alive_s = raw[8] << 8 | raw[9]
    else:
        version = _read_version(reader)
        flags = reader.u8("connect flags")
        _check_flags(flags, version)
        keep_alive_s = reader.u16("keep alive")
    properties = NO_PROPERTIES
    if version == V5:
        properties = decode_properties(reader, PacketType.CONNECT)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise protocol_error("CONNECT has Authentication Data without a method")  # 3.1.2.11.10
    client_id = reader.text("client identifier")
    clean = bool(flags & _CLEAN)
    _check_client_id(client_id, clean, version)
    will = _read_will(reader, flags, version) if flags & _WILL else None
    # 3.1: the remaining length counts more than the flag; a missing user name or password is none.
    loose = version == V31
    username = password = None
    if flags & _USERNAME and (reader.left or not loose):
        username = reader.text("user name")
    if flags & _PASSWORD and (reader.left or not loose):
        password = reader.binary("password")
    reader.finish()
    return Connect(
        client_id=client_id,
        version=version,
        clean_start=clean,
        keep_alive_s=keep_alive_s,
        will=will,
        username=username,
        password=password,
        properties=properties,
    )


def _read_version(reader: PacketReader) -> int:
    name = reader.text("protocol name")
    level = reader.u8("protocol level")
    if _PROTOCOL_NAMES.get(level) != name:  # 3.1.2-1, 3.1.2-2
        raise MqttError(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"the protocol {name[:20]!r} level {level} is not MQTT 3.1, 3.1.1 or 5.0",
        )
    return level


def _check_flags(flags: int, version: int) -> None:
    if flags in _PLAIN_FLAGS:
        return
    will_qos = flags >> _WILL_QOS_SHIFT & 3
    if flags & _WILL and will_qos == 3:
        raise malformed("the Will QoS is 3")  # 3.1.2-12
    if flags & _PASSWORD and not flags & _USERNAME and version < V5:
        raise malformed("CONNECT has a password without a user name")  # MQTT 3.1.2-22
    if version == V31:
        return
    if flags & 1:
        raise malformed("the reserved connect flag is set")  # 3.1.2-3
    if not flags & _WILL and will_qos:
        raise malformed("CONNECT has a Will QoS without a will")  # 3.1.2-11
    if not flags & _WILL and flags & _WILL_RETAIN:
        raise malformed("CONNECT has Will Retain without a will")  # 3.1.2-13


def _check_client_id(client_id: str, clean: bool, version: int) -> None:
    if client_id or version == V5:
        return
    if version == V31:
        why = "MQTT 3.1 needs a client identifier"
    elif not clean:
        why = "a session that is kept needs a client identifier"  # MQTT 3.1.3-8
    else:
        return
    raise MqttError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, why)


def _read_will(reader: PacketReader, flags: int, version: int) -> Will:
    properties = decode_properties(reader, WILL) if version == V5 else NO_PROPERTIES
    topic = reader.text("will topic")
    check_topic_name(topic, "will topic")
    payload = reader.binary("will payload")
    check_payload(payload, properties)
    return Will(
        topic=topic,
        payload=payload,
        qos=flags >> _WILL_QOS_SHIFT & 3,
        retain=bool(flags & _WILL_RETAIN),
        properties=properties,
    )


def encode_connect(packet: Connect, _version: int) -> tuple[int, bytes]:
    """The flags and body of CONNECT, in the packet's own version."""
    version = packet.version
    name = _PROTOCOL_NAMES.get(version)
    if name is None:
        raise InvalidRequest(f"there is no MQTT protocol level {version}; use 3, 4 or 5")
    if packet.password is not None and packet.username is None and version < V5:
        raise InvalidRequest("a password needs a user name before MQTT 5")
    v5 = version == V5
    flags = _CLEAN if packet.clean_start else 0
    out = b""
    if v5:
        out += encode_properties(packet.properties, PacketType.CONNECT)
    out += write_text(packet.client_id)
    if packet.will is not None:
        will = packet.will
        if will.qos not in (0, 1, 2):
            raise InvalidRequest(f"a will cannot have QoS {will.qos}")
        flags |= _WILL | will.qos << _WILL_QOS_SHIFT | (_WILL_RETAIN if will.retain else 0)
        out += encode_properties(will.properties, WILL) if v5 else b""
        out += write_text(will.topic) + write_binary(will.payload)
    if packet.username is not None:
        flags |= _USERNAME
        out += write_text(packet.username)
    if packet.password is not None:
        flags |= _PASSWORD
        out += write_binary(packet.password)
    head = write_text(name) + write_u8(version) + write_u8(flags) + write_u16(packet.keep_alive_s)
    return 0, head + out


def decode_connack(reader: PacketReader, _flags: int, version: int, sender: Side) -> Connack:
    """Read CONNACK."""
    acknowledge = reader.u8("acknowledge flags")
    if acknowledge > 1 and version != V31:
        raise malformed("a reserved acknowledge flag of CONNACK is set")  # 3.2.2-1
    present = acknowledge == 1 and version != V31
    properties = NO_PROPERTIES
    if version == V5:
        reason = decode_reason(reader.u8("reason code"), PacketType.CONNACK, sender)
        properties = decode_properties(reader, PacketType.CONNACK)
    else:
        code = reader.u8("return code")
        if code > max(ReturnCode):
            raise protocol_error(f"CONNACK has the unknown return code {code}")
        reason = REASONS_OF_RETURN_CODES[ReturnCode(code)]
    reader.finish()
    if present and reason is not ReasonCode.SUCCESS:
        raise protocol_error("CONNACK refuses and says that a session is present")  # 3.2.2-6
    return Connack(reason=reason, session_present=present, properties=properties)


def encode_connack(packet: Connack, version: int) -> tuple[int, bytes]:
    """The flags and body of CONNACK; version 3 has two bytes and no more."""
    present = packet.session_present and packet.reason is ReasonCode.SUCCESS
    if version == V5:
        body = bytes((present, packet.reason))
        return 0, body + encode_properties(packet.properties, PacketType.CONNACK)
    code = RETURN_CODES[packet.reason]
    if code is None:
        raise InvalidRequest(f"MQTT 3 has no return code for {packet.reason.name}; just close")
    return 0, bytes((present and version != V31, code))
