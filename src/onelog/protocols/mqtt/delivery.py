"""The properties of a delivered PUBLISH as bytes, for the kernel's fan-out."""

from __future__ import annotations

from onelog.kernel import decode_uvarint
from onelog.protocols.mqtt.mapping import remaining_expiry_s, to_properties
from onelog.protocols.mqtt.packet_types import PacketType
from onelog.protocols.mqtt.properties import encode_properties
from onelog.record.headers import Headers


def delivery_properties(headers: Headers, now_ms: int) -> bytes | None:
    """The property bytes (without their length) of a record; None when it has expired."""
    remaining_s = remaining_expiry_s(headers, now_ms=now_ms)
    if remaining_s == 0:
        return None
    block = encode_properties(to_properties(headers, remaining_s), PacketType.PUBLISH)
    _size, start = decode_uvarint(block, 0)
    return block[start:]
