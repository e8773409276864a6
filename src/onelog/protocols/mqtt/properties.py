"""The 27 properties of MQTT 5 as one table; it drives decoding, encoding and every check.

Rules: a property that does not belong into the packet, or an unknown number, is malformed (MQTT5
2.2.2.2); a property that may occur once and occurs twice, or has a value that is not allowed, is a
protocol error unless its row names another code. Absent is None (or an empty tuple).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.base.limits import HEADERS_PER_RECORD_MAX
from onelog.protocols.mqtt.errors import MqttError, malformed, protocol_error
from onelog.protocols.mqtt.packet_types import WILL, PacketType
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.topics import has_wildcard
from onelog.protocols.mqtt.wire import (
    VARINT_MAX,
    PacketReader,
    write_binary,
    write_text,
    write_u8,
    write_u16,
    write_u32,
    write_varint,
)

USER_PROPERTIES_MAX: Final = HEADERS_PER_RECORD_MAX - 32
"""User properties of one packet: they become record headers, and OneLog's own headers need room,
too."""

SUBSCRIPTION_IDS_MAX: Final = 65_535
"""Subscription identifiers of one PUBLISH."""


class Properties(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The properties of one packet or will; durations in seconds, as on the wire."""

    payload_format: int | None = None
    message_expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    session_expiry_s: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_s: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: bool | None = None
    subscription_ids_available: bool | None = None
    shared_subscription_available: bool | None = None


NO_PROPERTIES: Final = Properties()


class PropertyType(Enum):
    """How a property's value is written."""

    BYTE = "byte"
    FLAG = "byte, 0 or 1"
    U16 = "two byte integer"
    U32 = "four byte integer"
    VARINT = "variable byte integer"
    TEXT = "UTF-8 string"
    BINARY = "binary data"
    PAIR = "UTF-8 string pair"

    __hash__ = object.__hash__  # as `state.State`


class PropertyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One property: its type, where it may occur and which values it may have."""

    number: int
    name: str
    """Its name in the specification."""
    field: str
    """The attribute of `Properties`."""
    type: PropertyType
    places: frozenset[int]
    """Packet types (and WILL) where it is legal."""
    repeats_in: frozenset[int] = frozenset()
    """Packet types where it may occur more than once."""
    repeats_max: int = 1
    least: int | None = None
    most: int | None = None
    is_topic: bool = False
    """The value is a topic name: no wildcards."""
    refusal: ReasonCode = ReasonCode.PROTOCOL_ERROR
    """The code for a value that is not allowed."""

    @property
    def is_list(self) -> bool:
        """Whether the attribute is a tuple of values."""
        return bool(self.repeats_in)

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value of this property, if anything is."""
        if self.least is not None and value < self.least:
            return f"is {value}, at least {self.least} is allowed"
        if self.most is not None and value > self.most:
            return f"is {value}, at most {self.most} is allowed"
        if self.is_topic and (not value or has_wildcard(value)):
            return f"is {value[:60]!r}, which is empty or has a wildcard"
        return None


_P = PacketType
_T = PropertyType

_MESSAGE: Final = frozenset({_P.PUBLISH, WILL})
_CONNECT: Final = frozenset({_P.CONNECT})
_CONNACK: Final = frozenset({_P.CONNACK})
_BOTH_CONNECT: Final = _CONNECT | _CONNACK
_ANSWERS: Final = frozenset(
    {_P.CONNACK, _P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK}
    | {_P.DISCONNECT, _P.AUTH}
)
_EVERYWHERE: Final = _ANSWERS | _MESSAGE | frozenset({_P.CONNECT, _P.SUBSCRIBE, _P.UNSUBSCRIBE})


def _row(
    number: int, name: str, field: str, kind: PropertyType, places: frozenset[int], **rest: Any
) -> PropertyRow:
    return PropertyRow(number=number, name=name, field=field, type=kind, places=places, **rest)


PROPERTY_TABLE: Final[tuple[PropertyRow, ...]] = (
    _row(0x01, "Payload Format Indicator", "payload_format", _T.BYTE, _MESSAGE, most=1),
    _row(0x02, "Message Expiry Interval", "message_expiry_s", _T.U32, _MESSAGE),
    _row(0x03, "Content Type", "content_type", _T.TEXT, _MESSAGE),
    _row(0x08, "Response Topic", "response_topic", _T.TEXT, _MESSAGE, is_topic=True),  # 3.3.2-14
    _row(0x09, "Correlation Data", "correlation_data", _T.BINARY, _MESSAGE),
    _row(
        0x0B,
        "Subscription Identifier",
        "subscription_ids",
        _T.VARINT,
        frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
        repeats_in=frozenset({_P.PUBLISH}),
        repeats_max=SUBSCRIPTION_IDS_MAX,
        least=1,
        most=VARINT_MAX,
    ),
    _row(
        0x11,
        "Session Expiry Interval",
        "session_expiry_s",
        _T.U32,
        _BOTH_CONNECT | {_P.DISCONNECT},
    ),
    _row(0x12, "Assigned Client Identifier", "assigned_client_id", _T.TEXT, _CONNACK),
    _row(0x13, "Server Keep Alive", "server_keep_alive_s", _T.U16, _CONNACK),
    _row(
        0x15,
        "Authentication Method",
        "authentication_method",
        _T.TEXT,
        _BOTH_CONNECT | {_P.AUTH},
    ),
    _row(0x16, "Authentication Data", "authentication_data", _T.BINARY, _BOTH_CONNECT | {_P.AUTH}),
    _row(0x17, "Request Problem Information", "request_problem_information", _T.FLAG, _CONNECT),
    _row(0x18, "Will Delay Interval", "will_delay_s", _T.U32, frozenset({WILL})),
    _row(0x19, "Request Response Information", "request_response_information", _T.FLAG, _CONNECT),
    _row(0x1A, "Response Information", "response_information", _T.TEXT, _CONNACK),
    _row(0x1C, "Server Reference", "server_reference", _T.TEXT, _CONNACK | {_P.DISCONNECT}),
    _row(0x1F, "Reason String", "reason_string", _T.TEXT, _ANSWERS),
    _row(0x21, "Receive Maximum", "receive_maximum", _T.U16, _BOTH_CONNECT, least=1),
    _row(0x22, "Topic Alias Maximum", "topic_alias_maximum", _T.U16, _BOTH_CONNECT),
    _row(
        0x23,
        "Topic Alias",
        "topic_alias",
        _T.U16,
        frozenset({_P.PUBLISH}),
        least=1,
        refusal=ReasonCode.TOPIC_ALIAS_INVALID,  # 3.3.2-8
    ),
    _row(0x24, "Maximum QoS", "maximum_qos", _T.BYTE, _CONNACK, most=1),
    _row(0x25, "Retain Available", "retain_available", _T.FLAG, _CONNACK),
    _row(
        0x26,
        "User Property",
        "user_properties",
        _T.PAIR,
        _EVERYWHERE,
        repeats_in=_EVERYWHERE,
        repeats_max=USER_PROPERTIES_MAX,
    ),
    _row(0x27, "Maximum Packet Size", "maximum_packet_size", _T.U32, _BOTH_CONNECT, least=1),
    _row(
        0x28,
        "Wildcard Subscription Available",
        "wildcard_subscription_available",
        _T.FLAG,
        _CONNACK,
    ),
    _row(
        0x29,
        "Subscription Identifiers Available",
        "subscription_ids_available",
        _T.FLAG,
        _CONNACK,
    ),
    _row(0x2A, "Shared Subscription Available", "shared_subscription_available", _T.FLAG, _CONNACK),
)

_BY_NUMBER: Final[dict[int, PropertyRow]] = {row.number: row for row in PROPERTY_TABLE}


def _read_flag(reader: PacketReader, name: str) -> bool:
    value = reader.u8(name)
    if value > 1:
        raise protocol_error(f"{name} is {value}, only 0 and 1 are allowed")
    return bool(value)


_READ: Final[dict[PropertyType, Callable[[PacketReader, str], Any]]] = {
    _T.BYTE: PacketReader.u8,
    _T.FLAG: _read_flag,
    _T.U16: PacketReader.u16,
    _T.U32: PacketReader.u32,
    _T.VARINT: PacketReader.varint,
    _T.TEXT: PacketReader.text,
    _T.BINARY: PacketReader.binary,
    _T.PAIR: lambda reader, name: (reader.text(name), reader.text(name)),
}

_WRITE: Final[dict[PropertyType, Callable[[Any], bytes]]] = {
    _T.BYTE: write_u8,
    _T.FLAG: lambda value: b"\1" if value else b"\0",
    _T.U16: write_u16,
    _T.U32: write_u32,
    _T.VARINT: write_varint,
    _T.TEXT: write_text,
    _T.BINARY: write_binary,
    _T.PAIR: lambda pair: write_text(pair[0]) + write_text(pair[1]),
}


def decode_properties(body: PacketReader, place: int) -> Properties:
    """Read a property block: its length and that many bytes of properties."""
    size = body.varint("property length")
    if not size:
        return NO_PROPERTIES
    reader = body.part(size, "properties")
    single: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {}
    while reader.left:
        number = reader.varint("property number")
        row = _BY_NUMBER.get(number)
        if row is None or place not in row.places:
            name = row.name if row else f"0x{number:02X}"
            raise malformed(f"the property {name} is not allowed in {_place_name(place)}")
        value = _READ[row.type](reader, row.name)
        fault = row.fault(value)
        if fault is not None:
            raise MqttError(row.refusal, f"the {row.name} {fault}")
        if row.is_list:
            _add(lists.setdefault(row.field, []), value, row, place)
        elif row.field in single:
            raise _twice(row, place)
        else:
            single[row.field] = value
    single.update((field, tuple(values)) for field, values in lists.items())
    return Properties(**single)


def _add(values: list[Any], value: Any, row: PropertyRow, place: int) -> None:
    if values and place not in row.repeats_in:
        raise _twice(row, place)
    if len(values) == row.repeats_max:
        raise MqttError(
            ReasonCode.QUOTA_EXCEEDED, f"{row.name} stands more than {row.repeats_max} times"
        )
    values.append(value)


def encode_properties(properties: Properties, place: int) -> bytes:
    """The property block of a packet. Raises InvalidRequest for properties that may not occur
    there."""
    if properties is NO_PROPERTIES:
        return b"\0"
    out = bytearray()
    for row in PROPERTY_TABLE:
        held = getattr(properties, row.field)
        if held is None or held == ():
            continue
        values = held if row.is_list else (held,)
        if place not in row.places or (len(values) > 1 and place not in row.repeats_in):
            raise InvalidRequest(f"{row.name} may not stand so in {_place_name(place)}")
        for value in values:
            fault = row.fault(value)
            if fault is not None:
                raise InvalidRequest(f"the {row.name} {fault}")
            out.append(row.number)
            out += _WRITE[row.type](value)
    return write_varint(len(out)) + out


def _place_name(place: int) -> str:
    return "a will" if place == WILL else PacketType(place).name


def _twice(row: PropertyRow, place: int) -> MqttError:
    return protocol_error(f"the property {row.name} stands twice in {_place_name(place)}")
