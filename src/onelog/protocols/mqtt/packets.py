"""The fifteen packets of MQTT as values: what the codec reads and writes.

Rules: one shape for all versions; fields that a version does not have are left out when encoding.
Text is `str`, payloads are `bytes`. A packet id of 0 is "none" (a PUBLISH of QoS 0).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties
from onelog.protocols.mqtt.reasons import ReasonCode


class Will(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The message that the server publishes when the connection ends badly."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A client opens a session; `version` is its version from here on."""

    type: ClassVar[PacketType] = PacketType.CONNECT
    client_id: str
    version: int
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES


class Connack(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The server accepts or refuses a session."""

    type: ClassVar[PacketType] = PacketType.CONNACK
    reason: ReasonCode = ReasonCode.SUCCESS
    session_present: bool = False
    properties: Properties = NO_PROPERTIES


class Publish(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A message, in either direction. An empty topic stands for a topic alias."""

    type: ClassVar[PacketType] = PacketType.PUBLISH
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class Puback(msgspec.Struct, frozen=True, gc=False):
    """A message of QoS 1 arrived."""

    type: ClassVar[PacketType] = PacketType.PUBACK
    packet_id: int
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubrec(msgspec.Struct, frozen=True, gc=False):
    """A message of QoS 2 arrived (step 1)."""

    type: ClassVar[PacketType] = PacketType.PUBREC
    packet_id: int
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubrel(msgspec.Struct, frozen=True, gc=False):
    """The sender of QoS 2 forgets the message (step 2)."""

    type: ClassVar[PacketType] = PacketType.PUBREL
    packet_id: int
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubcomp(msgspec.Struct, frozen=True, gc=False):
    """The receiver of QoS 2 forgets the packet id (step 3)."""

    type: ClassVar[PacketType] = PacketType.PUBCOMP
    packet_id: int
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """One row of SUBSCRIBE. Version 3 has only the QoS; the rest are then the defaults."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """A client asks for messages."""

    type: ClassVar[PacketType] = PacketType.SUBSCRIBE
    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


class Suback(msgspec.Struct, frozen=True, gc=False):
    """One code per row of SUBSCRIBE, in its order."""

    type: ClassVar[PacketType] = PacketType.SUBACK
    packet_id: int
    reasons: tuple[ReasonCode, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """A client wants no more of these filters."""

    type: ClassVar[PacketType] = PacketType.UNSUBSCRIBE
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class Unsuback(msgspec.Struct, frozen=True, gc=False):
    """One code per filter of UNSUBSCRIBE, in its order; version 3 has none."""

    type: ClassVar[PacketType] = PacketType.UNSUBACK
    packet_id: int
    reasons: tuple[ReasonCode, ...] = ()
    properties: Properties = NO_PROPERTIES


class Pingreq(msgspec.Struct, frozen=True, gc=False):
    """A client shows that it is alive."""

    type: ClassVar[PacketType] = PacketType.PINGREQ


class Pingresp(msgspec.Struct, frozen=True, gc=False):
    """The server answers a ping."""

    type: ClassVar[PacketType] = PacketType.PINGRESP


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """The last packet of a connection; a server sends it in version 5 only."""

    type: ClassVar[PacketType] = PacketType.DISCONNECT
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Auth(msgspec.Struct, frozen=True, gc=False):
    """One step of an enhanced authentication (version 5)."""

    type: ClassVar[PacketType] = PacketType.AUTH
    reason: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Ack = Puback | Pubrec | Pubrel | Pubcomp

Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
