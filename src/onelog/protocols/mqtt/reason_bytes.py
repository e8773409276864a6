"""Reading a reason code: known, legal in its packet and allowed for its sender."""

from __future__ import annotations

from typing import Final

from onelog.protocols.mqtt.errors import protocol_error
from onelog.protocols.mqtt.packet_types import PacketType, Side
from onelog.protocols.mqtt.reasons import ReasonCode, is_legal

_CODES: Final[dict[int, ReasonCode]] = {int(code): code for code in ReasonCode}


def decode_reason(byte: int, packet: PacketType, sender: Side) -> ReasonCode:
    """The code of a byte. Raises a protocol error where it is not allowed (MQTT5 2.4)."""
    code = _CODES.get(byte)
    if code is None or not is_legal(code, packet, sender):
        raise protocol_error(f"a {sender.value} may not send {packet.name} with code 0x{byte:02X}")
    return code
