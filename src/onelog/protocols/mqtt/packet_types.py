"""The kinds of MQTT packets: their numbers, who may send them and their fixed header flags."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class Version(IntEnum):
    """The protocol level byte of CONNECT."""

    V31 = 3
    V311 = 4
    V5 = 5


# Python 3.11 looks up a member of an enumeration by calls of functions: hot paths use these names.
V31: Final = Version.V31
V311: Final = Version.V311
V5: Final = Version.V5


class Side(Enum):
    """The two ends of a connection."""

    CLIENT = "client"
    SERVER = "server"


class PacketType(IntEnum):
    """The high four bits of a packet's first byte (MQTT5 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


WILL: Final = 16
"""Not a packet: the will inside CONNECT, which has properties of its own."""

_CLIENT: Final = frozenset({Side.CLIENT})
_SERVER: Final = frozenset({Side.SERVER})
_BOTH: Final = _CLIENT | _SERVER

SENDERS: Final[dict[PacketType, frozenset[Side]]] = {
    PacketType.CONNECT: _CLIENT,
    PacketType.CONNACK: _SERVER,
    PacketType.PUBLISH: _BOTH,
    PacketType.PUBACK: _BOTH,
    PacketType.PUBREC: _BOTH,
    PacketType.PUBREL: _BOTH,
    PacketType.PUBCOMP: _BOTH,
    PacketType.SUBSCRIBE: _CLIENT,
    PacketType.SUBACK: _SERVER,
    PacketType.UNSUBSCRIBE: _CLIENT,
    PacketType.UNSUBACK: _SERVER,
    PacketType.PINGREQ: _CLIENT,
    PacketType.PINGRESP: _SERVER,
    PacketType.DISCONNECT: _BOTH,
    PacketType.AUTH: _BOTH,
}
"""Who may send a packet in MQTT 5."""

SENDERS_V3: Final[dict[PacketType, frozenset[Side]]] = {
    **SENDERS,
    PacketType.DISCONNECT: _CLIENT,
    PacketType.AUTH: frozenset(),
}
"""Who may send a packet in MQTT 3.1 and 3.1.1."""

FIXED_FLAGS: Final[dict[PacketType, int]] = {
    kind: 2 if kind in (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE) else 0
    for kind in PacketType
    if kind is not PacketType.PUBLISH
}
"""The only legal low four bits of the first byte (MQTT5 2.1.3-1); PUBLISH has real flags."""
