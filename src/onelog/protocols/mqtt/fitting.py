"""Packets to a client in the size that it accepts (MQTT5 3.1.2-24).

Rules: explanations (reason string, user properties) are left out first: 3.2.2-19, 3.2.2-20 and the
same rule of every other answering packet. A packet that is still too large is not sent at all.
"""

from __future__ import annotations

from typing import Final

import msgspec

from onelog.base.errors import NotAuthenticated, OnelogError
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Packet
from onelog.protocols.mqtt.properties import NO_PROPERTIES, Properties

REASON_CHARS_MAX: Final = 200
"""Characters of a reason string."""


def explained(error: OnelogError) -> Properties:
    """The reason for people. After bad credentials it says no more than the code."""
    if isinstance(error, NotAuthenticated):
        return NO_PROPERTIES
    text = str(error)[:REASON_CHARS_MAX]
    return Properties(reason_string=text.encode(errors="replace").decode().replace("\0", "?"))


def fit_packet(packet: Packet, version: int, bytes_max: int) -> bytes | None:
    """The packet in at most `bytes_max` bytes (0: no bound); None: it needs more."""
    data = encode_packet(packet, version)
    if not bytes_max or len(data) <= bytes_max:
        return data
    properties: Properties | None = getattr(packet, "properties", None)
    if properties is None or (properties.reason_string is None and not properties.user_properties):
        return None
    silent = msgspec.structs.replace(properties, reason_string=None, user_properties=())
    if silent == NO_PROPERTIES:
        silent = NO_PROPERTIES
    return fit_packet(msgspec.structs.replace(packet, properties=silent), version, bytes_max)
