"""Which packet may come when, seen by the server: a connection's states as a table.

A connection is NEW until its first packet, which must be CONNECT (MQTT5 3.1.0-1). From there until
the server sends CONNACK it is AUTHENTICATING: the server checks the password, or exchanges AUTH
packets. A client that named an authentication method may send only AUTH and DISCONNECT then
(3.1.2-30). A client that did not may send further packets without waiting (3.1.4): the connection
does not handle them until it has answered, so that the table is true for both.

CONNECTED takes everything that a client may send, except a second CONNECT (3.1.0-2). AUTH there
is a re-authentication and does not stop the traffic (4.12.1). DISCONNECT from either side, or a
CONNACK that refuses, leads to CLOSED, where nothing is legal any more (3.14.4).

A pair that is not in the table is a protocol error.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from onelog.protocols.mqtt.errors import protocol_error
from onelog.protocols.mqtt.packet_types import PacketType


class State(Enum):
    """The state of a connection."""

    NEW = "new"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSED = "closed"

    # That of Python 3.11 is a function of Python's; the members are compared by identity anyway.
    __hash__ = object.__hash__


# Python 3.11 looks up a member of an enumeration by calls of functions: hot paths use these names.
NEW: Final = State.NEW
CONNECTED: Final = State.CONNECTED
CLOSED: Final = State.CLOSED

_S = State
_P = PacketType

RECEIVED: Final[dict[State, dict[PacketType, State]]] = {
    _S.NEW: {
        _P.CONNECT: _S.AUTHENTICATING,
    },
    _S.AUTHENTICATING: {
        _P.AUTH: _S.AUTHENTICATING,
        _P.DISCONNECT: _S.CLOSED,
    },
    _S.CONNECTED: {
        _P.PUBLISH: _S.CONNECTED,
        _P.PUBACK: _S.CONNECTED,
        _P.PUBREC: _S.CONNECTED,
        _P.PUBREL: _S.CONNECTED,
        _P.PUBCOMP: _S.CONNECTED,
        _P.SUBSCRIBE: _S.CONNECTED,
        _P.UNSUBSCRIBE: _S.CONNECTED,
        _P.PINGREQ: _S.CONNECTED,
        _P.AUTH: _S.CONNECTED,
        _P.DISCONNECT: _S.CLOSED,
    },
    _S.CLOSED: {},
}
"""Transitions by packets of the client."""


def advance(state: State, packet: PacketType) -> State:
    """The state after a packet of the client. Raises a protocol error where it is not legal."""
    after = RECEIVED[state].get(packet)
    if after is None:
        raise protocol_error(f"{packet.name} is not allowed while the connection is {state.value}")
    return after
