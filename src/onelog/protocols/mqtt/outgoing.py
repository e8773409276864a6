"""One message for one client, outside of the kernel's path: packet id, bytes, size.

Rules: a topic alias is set when the packet is queued, not before: a packet that waits for the
session to be saved may be overtaken by another packet of the same topic.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from onelog.kernel import MqttOutput, encode_publish
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packets import Publish
from onelog.protocols.mqtt.properties import NO_PROPERTIES


class Outgoing(NamedTuple):
    """A PUBLISH with its packet id, and as bytes."""

    data: bytes
    publish: Publish

    @property
    def packet_id(self) -> int:
        """The id that the client answers with; 0 at QoS 0."""
        return self.publish.packet_id

    @property
    def qos(self) -> int:
        """The quality of service that it goes out with."""
        return self.publish.qos

    def push(self, output: MqttOutput) -> None:
        """Queue it behind waiting packets, with the alias of its topic if there is one."""
        if not output.alias_maximum:
            output.push(self.data)
            return
        topic = self.publish.topic.encode()
        known = output.alias_of(topic)
        alias = known or output.next_alias(topic)
        if not alias:
            output.push(self.data)
            return
        data = encode_packet(_named(self.publish, alias, known=bool(known)), output.version)
        if 0 < output.packet_bytes_max < len(data):
            data = self.data  # a new alias makes it longer
        elif not known:
            output.give_alias(topic)
        output.push(data)


def prepare(output: MqttOutput, publish: Publish, place: tuple[int, int]) -> Outgoing | None:
    """Take a packet id if the QoS needs one, and encode.

    None when the window is full, or when the client does not accept a packet that large: that
    counts as sent (MQTT5 3.1.2-25). `place` is the source number and offset that the id stands for.
    """
    packet_id = 0
    if publish.qos:
        packet_id = output.take_id(*place, publish.qos)
        if packet_id == 0:
            return None
        publish = msgspec.structs.replace(publish, packet_id=packet_id)
    if publish.properties is NO_PROPERTIES:
        flags = publish.dup << 3 | publish.qos << 1 | publish.retain
        topic = publish.topic.encode()
        data = encode_publish(output.version, topic, publish.payload, flags, packet_id)
    else:
        data = encode_packet(publish, output.version)
    if 0 < output.packet_bytes_max < len(data):
        output.ack(packet_id)
        return None
    return Outgoing(data, publish)


def _named(publish: Publish, alias: int, *, known: bool) -> Publish:
    return msgspec.structs.replace(
        publish,
        topic="" if known else publish.topic,
        properties=msgspec.structs.replace(publish.properties, topic_alias=alias),
    )
