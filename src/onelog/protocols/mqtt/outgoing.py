"""One message on its way to one client, off the kernel's path: packet id, bytes, size."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from onelog.kernel import MqttOutput, encode_publish
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Publish
from onelog.protocols.mqtt.properties import NO_PROPERTIES


class Outgoing(NamedTuple):
    """A PUBLISH as bytes."""

    data: bytes
    packet_id: int
    qos: int


def prepare(output: MqttOutput, publish: Publish, place: tuple[int, int]) -> Outgoing | None:
    """Take a packet id if the QoS needs one, and encode.

    None when the window is full, or when the client takes no packet that large: that counts as
    sent (MQTT5 3.1.2-25). `place` is the source number and offset that the id stands for.
    """
    packet_id = 0
    if publish.qos:
        packet_id = output.take_id(*place, publish.qos)
        if packet_id == 0:
            return None
    if publish.properties is NO_PROPERTIES:
        flags = publish.dup << 3 | publish.qos << 1 | publish.retain
        topic = publish.topic.encode()
        data = encode_publish(output.version, topic, publish.payload, flags, packet_id)
    else:
        publish = msgspec.structs.replace(publish, packet_id=packet_id)
        data = encode_packet(publish, output.version)
    if 0 < output.packet_bytes_max < len(data):
        output.ack(packet_id)
        return None
    return Outgoing(data, packet_id, publish.qos)
