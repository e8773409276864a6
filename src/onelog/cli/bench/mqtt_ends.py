"""The ends of an MQTT load: one topic for each pair, QoS 0 or 1.

Rules: all packets of a run have one length, so a read is cut and acknowledged by slices with a
step. A packet that does not fit is given to the client of the command line, which knows its error.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from onelog.base.errors import NotAuthorized, ProtocolViolation
from onelog.cli.bench.load import STAMP_BYTES, Times, stamp, stamps
from onelog.cli.talk.link import BrokerAddress
from onelog.cli.talk.mqtt import MqttTalker
from onelog.protocols.mqtt.codec import encode_packet
from onelog.protocols.mqtt.packet_types import Version
from onelog.protocols.mqtt.packets import Publish, Suback, Subscribe, Subscription
from onelog.protocols.mqtt.properties import NO_PROPERTIES
from onelog.protocols.mqtt.reasons import ReasonCode

IDS: Final = 16_384
"""Packet ids that a publisher uses in turn; more of them are never under way."""
PUBACK: Final = b"\x40\x02"
PUBACK_BYTES: Final = 4
BURST_BYTES: Final = 131_072
SAMPLE_BYTES: Final = 65_536
_MARK: Final = b"\xfe\xdc\xba\x98\x76\x54\x32\x10"


def packet_of(topic: str, size: int, qos: int) -> bytes:
    """A message with a mark where the time goes."""
    payload = _MARK + b"x" * (size - STAMP_BYTES)
    one = Publish(topic=topic, payload=payload, qos=qos, packet_id=1 if qos else 0,
                  retain=False, properties=NO_PROPERTIES)  # fmt: skip
    return encode_packet(one, Version.V5)


class MqttWriter(MqttTalker):
    """A publisher."""

    def __init__(self, address: BrokerAddress, topic: str, size: int, qos: int) -> None:
        super().__init__(address)
        packet = packet_of(topic, size, qos)
        self._each, self._at = len(packet), packet.index(_MARK)
        self._qos = qos
        self.burst_max = max(1, min(IDS // 2, BURST_BYTES // len(packet)))
        self._most = min(self.receive_maximum, IDS // 2)
        self._unanswered = 0
        self._turn = 0
        # Packet ids differ from message to message, and come back after a turn of all.
        self._packets = bytearray(packet * (IDS if qos else self.burst_max))
        if qos:
            high = bytes(number >> 8 for number in range(1, IDS + 1))
            low = bytes(number & 0xFF for number in range(1, IDS + 1))
            # The id stands before the length of the properties, which is 0.
            self._packets[self._at - 3 :: self._each] = high
            self._packets[self._at - 2 :: self._each] = low

    def fileno(self) -> int:
        """Of the socket."""
        return self._link.fileno()

    def room(self) -> int:
        """QoS 1: what the broker takes before it acknowledges."""
        return self._most - self._unanswered if self._qos else self.burst_max

    def encode(self, count: int, now_ns: int) -> bytearray:
        """A burst."""
        if self._turn + count > len(self._packets) // self._each:
            self._turn = 0
        begin = self._turn * self._each
        block = self._packets[begin : begin + count * self._each]
        if self._qos:
            self._turn += count
        stamp(block, self._at, self._each, now_ns)
        return block

    def send(self, data: bytes | bytearray, count: int) -> None:
        """Write a burst."""
        self._link.send(data)
        if self._qos:
            self._unanswered += count

    def take_answers(self) -> None:
        """Count PUBACKs; any other packet is an error or means nothing."""
        self._link.receive_there()
        buffer = self._link.buffer
        count = len(buffer) // PUBACK_BYTES
        whole = buffer[: count * PUBACK_BYTES]
        if whole[0::PUBACK_BYTES].count(PUBACK[0]) + whole[1::PUBACK_BYTES].count(PUBACK[1]) != (
            2 * count
        ):
            packet = self._take_packet()
            if packet is not None:
                self._took(packet)
            raise ProtocolViolation(f"{self._link.address} answers otherwise than was expected")
        self._unanswered -= count
        del buffer[: count * PUBACK_BYTES]


class MqttReader(MqttTalker):
    """A subscriber to one topic."""

    def __init__(self, address: BrokerAddress, topic: str, size: int, qos: int) -> None:
        super().__init__(address)
        packet = packet_of(topic, size, qos)
        self._each, self._at = len(packet), packet.index(_MARK)
        self._head = packet[0]
        self._qos = qos
        self.sample = b""
        self._send(Subscribe(self._take_id(), (Subscription(topic, qos),)))
        answer = self._expect(Suback)
        if answer.reasons[0] >= ReasonCode.UNSPECIFIED_ERROR:
            self.close()
            raise NotAuthorized(f"{topic} cannot be read at {address}")

    def fileno(self) -> int:
        """Of the socket."""
        return self._link.fileno()

    def take(self) -> Times:
        """Whole messages of a read, acknowledged with one write."""
        self._link.receive_there()
        buffer = self._link.buffer
        count = len(buffer) // self._each
        if not count:
            return Counter()
        data = bytes(buffer[: count * self._each])
        del buffer[: len(data)]
        if data[0 :: self._each].count(self._head) != count:
            raise ProtocolViolation(f"{self._link.address} sends packets that were not expected")
        if self._qos:
            self._link.send(self._pubacks(data, count))
        if len(self.sample) < len(data) <= SAMPLE_BYTES:
            self.sample = data
        return stamps(data, self._at, self._each)

    def _pubacks(self, data: bytes, count: int) -> bytearray:
        acks = bytearray((PUBACK + b"\0\0") * count)
        acks[2::PUBACK_BYTES] = data[self._at - 3 :: self._each]
        acks[3::PUBACK_BYTES] = data[self._at - 2 :: self._each]
        return acks

    def parse(self, data: bytes) -> Times:
        """The messages of a sample, and their acknowledgements."""
        if self._qos:
            self._pubacks(data, len(data) // self._each)
        return stamps(data, self._at, self._each)
