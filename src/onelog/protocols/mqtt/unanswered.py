"""Publishes of a connection that the kernel left to Python and that wait for their last answer.

Rules: a client may have so many of them as CONNACK told it (receive maximum, MQTT5 4.9). Clients of
older versions do not know that limit: only their publishes of QoS 2 count, which take memory.
"""

from __future__ import annotations

from onelog.kernel import MqttInput
from onelog.protocols.mqtt.errors import MqttError
from onelog.protocols.mqtt.packet_types import V5
from onelog.protocols.mqtt.reasons import ReasonCode


class Unanswered:
    """What a connection owes answers to."""

    __slots__ = ("_input", "_most", "receiving")

    def __init__(self, input_: MqttInput, most: int) -> None:
        self._input = input_
        self._most = most
        self.receiving: set[int] = set()
        """Packet ids of QoS 2 that this connection began and did not complete."""

    def begin(self, packet_id: int, qos: int, version: int) -> None:
        """A publish came. Raises MqttError 0x93 if too many wait."""
        if qos == 0 or (qos == 2 and packet_id in self.receiving):
            return
        counted = self._input.unanswered if version == V5 else len(self.receiving)
        if counted >= self._most and (qos == 2 or version == V5):
            raise MqttError(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                f"more than {self._most} publishes are unanswered",
            )
        self._input.unanswered += 1
        if qos == 2:
            self.receiving.add(packet_id)

    def end(self, packet_id: int, qos: int) -> None:
        """The last answer to a publish is sent now."""
        if qos == 1:
            self._input.unanswered -= 1
        elif packet_id in self.receiving:
            self.receiving.remove(packet_id)
            self._input.unanswered -= 1
