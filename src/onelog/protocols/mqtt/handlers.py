"""The function for each packet of a client: one table, one function per packet.

Rules: a handler runs at once or hands a coroutine to `connection.start`. It may raise any error of
`base`: the connection then ends with the code that `errors` has for it. `state` has checked before
that the packet may come now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from onelog.protocols.mqtt.connecting import on_auth, on_connect, on_disconnect
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.packets import Pingreq, Pingresp
from onelog.protocols.mqtt.publishing import (
    on_puback,
    on_pubcomp,
    on_publish,
    on_pubrec,
    on_pubrel,
)
from onelog.protocols.mqtt.subscribing import on_subscribe, on_unsubscribe

if TYPE_CHECKING:
    from onelog.protocols.mqtt.connection import Connection

_PINGRESP: Final = Pingresp()


def on_pingreq(connection: Connection, _packet: Pingreq) -> None:
    """Answer (MQTT5 3.12.4-1)."""
    connection.send(_PINGRESP)


HANDLERS: Final[dict[PacketType, Callable[[Connection, Any], None]]] = {
    PacketType.CONNECT: on_connect,
    PacketType.AUTH: on_auth,
    PacketType.PUBLISH: on_publish,
    PacketType.PUBACK: on_puback,
    PacketType.PUBREC: on_pubrec,
    PacketType.PUBREL: on_pubrel,
    PacketType.PUBCOMP: on_pubcomp,
    PacketType.SUBSCRIBE: on_subscribe,
    PacketType.UNSUBSCRIBE: on_unsubscribe,
    PacketType.PINGREQ: on_pingreq,
    PacketType.DISCONNECT: on_disconnect,
}
