"""PUBACKs of publishes that were staged: they wait for the partitions that hold the messages.

Rules: a PUBACK goes out when its message is durable (I4), after the earlier PUBACKs of its
connection (MQTT5 4.6.0-2); the kernel keeps that order. A connection waits for no partition that it
did not publish to.
"""

from __future__ import annotations

from onelog.base.errors import OnelogError
from onelog.protocols.mqtt.errors import reason_for
from onelog.protocols.mqtt.packet_types import PacketType


def puback_reason(error: OnelogError) -> int:
    """What a PUBACK says of a message that a partition did not take."""
    return int(reason_for(error, PacketType.PUBACK))
