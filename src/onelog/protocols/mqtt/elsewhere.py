"""The answer to a client that another node serves: MQTT's reason codes, and where that node is.

Rules: a client whose shard another node owns has to use that server (0x9C). The answer has the
address of the listener there that has the name of the client's own (MQTT5 4.11). While nobody owns
the shard, or the address is not known, CONNECT is refused with 0x88 and a connection ends with
0x8B: the client tries again, here or at another server that it knows. Version 3 has return code 3
for all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onelog.base.errors import NotOwner, OnelogError
from onelog.broker import address_at
from onelog.protocols.mqtt.errors import reason_for
from onelog.protocols.mqtt.fitting import explained
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.properties import Properties
from onelog.protocols.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection


def told(
    connection: Connection, error: OnelogError, packet: PacketType
) -> tuple[ReasonCode, Properties]:
    """The reason with which a connection ends, in CONNACK or DISCONNECT, and what explains it."""
    words = explained(error)
    if not isinstance(error, NotOwner):
        return reason_for(error, packet), words
    address = address_at(connection.hub.broker.cluster, error.node, connection.peer.listener)
    if address is not None:
        return (
            ReasonCode.USE_ANOTHER_SERVER,
            msgspec.structs.replace(words, server_reference=address),
        )
    if packet is PacketType.CONNACK:
        return ReasonCode.SERVER_UNAVAILABLE, words
    return ReasonCode.SERVER_SHUTTING_DOWN, words
