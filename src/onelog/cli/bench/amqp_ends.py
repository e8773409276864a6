"""The ends of an AMQP load: persistent messages with confirms, a queue of its own for each pair.

Rules: queues are exclusive to the consumer, so they go with it. All deliveries of a run have one
length, which the first one tells, so a read is cut by slices. One ack settles all of a read.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Final

from onelog.base.errors import ConfigError, ProtocolViolation
from onelog.cli.bench.load import STAMP_BYTES, Times, stamp, stamps
from onelog.cli.talk import amqp_wire as wire
from onelog.cli.talk.amqp import AmqpTalker
from onelog.cli.talk.link import BrokerAddress
from onelog.protocols.amqp.properties import Properties

ACK_BYTES: Final = 21
ACK_HEAD: Final = wire.acknowledge(0)[:11]
BURST_BYTES: Final = 131_072
SAMPLE_BYTES: Final = 65_536
PREFETCH: Final = 10_000
_PERSISTENT: Final = 2
_FRAMES: Final = 3
_FRAME_EXTRA_BYTES: Final = 8
_TAG: Final = struct.Struct(">Q?")
_MARK: Final = b"\xfe\xdc\xba\x98\x76\x54\x32\x10"


class AmqpReader(AmqpTalker):
    """A consumer of a queue of its own."""

    def __init__(self, address: BrokerAddress, size: int) -> None:
        super().__init__(address)
        self._size = size
        self._each = self._at = 0
        self._tag = 0
        self.sample = b""
        self.queue = str(self._call(wire.declare_queue("", {}), "Queue.DeclareOk").queue)
        self._call(wire.set_prefetch(PREFETCH), "Basic.QosOk")
        self._call(wire.consume(self.queue), "Basic.ConsumeOk")

    def fileno(self) -> int:
        """Of the socket."""
        return self._link.fileno()

    def take(self) -> Times:
        """Whole messages of a read, acknowledged with one write."""
        self._link.receive_there()
        buffer = self._link.buffer
        if not self._each and not self._learn(buffer):
            return Counter()
        count = len(buffer) // self._each
        if not count:
            return Counter()
        data = bytes(buffer[: count * self._each])
        if data[0 :: self._each].count(1) != count:
            raise ProtocolViolation(f"{self._link.address} sends frames that were not expected")
        del buffer[: len(data)]
        self._tag += count
        self._link.send(_ack(self._tag))
        if len(self.sample) < len(data) <= SAMPLE_BYTES:
            self.sample = data
        return stamps(data, self._at, self._each)

    def _learn(self, buffer: bytearray) -> bool:
        """The length of a delivery: method, head and body; False while it is not whole."""
        at = 0
        for number in range(1, _FRAMES + 1):
            if len(buffer) < at + 8:
                return False
            if buffer[at] != number:
                for _method in self._read_frames():  # it raises what the broker says
                    pass
                raise ProtocolViolation(f"{self._link.address} sends what was not expected")
            begin = at + 7
            at = begin + int.from_bytes(buffer[at + 3 : at + 7], "big") + 1
            self._at = begin
        if len(buffer) < at:
            return False
        self._each = at
        return True

    def parse(self, data: bytes) -> Times:
        """The messages of a sample."""
        return stamps(data, self._at, self._each) if self._each else Counter()


class AmqpWriter(AmqpTalker):
    """A publisher to a queue, by the default exchange."""

    def __init__(self, address: BrokerAddress, queue: str, size: int) -> None:
        super().__init__(address)
        self._call(wire.select_confirms(), "Confirm.SelectOk")
        most = self._frame_bytes_max - _FRAME_EXTRA_BYTES
        if size > most:
            self.close()
            raise ConfigError(f"--size {size}: at most {most}, which is a frame of this broker")
        body = _MARK + b"x" * (size - STAMP_BYTES)
        kept = Properties(delivery_mode=_PERSISTENT)
        message = wire.publish("", queue, kept, body, self._frame_bytes_max, mandatory=False)
        self._each, self._at = len(message), message.index(_MARK)
        self.burst_max = max(1, BURST_BYTES // len(message))
        self._block = bytearray(message * self.burst_max)

    def fileno(self) -> int:
        """Of the socket."""
        return self._link.fileno()

    def room(self) -> int:
        """AMQP has no bound of its own."""
        return self.burst_max

    def encode(self, count: int, now_ns: int) -> bytearray:
        """A burst."""
        block = self._block[: count * self._each]
        stamp(block, self._at, self._each, now_ns)
        return block

    def send(self, data: bytes | bytearray, count: int) -> None:
        """Write a burst."""
        self._link.send(data)

    def take_answers(self) -> None:
        """Confirms; anything else is an error, or means nothing."""
        self._link.receive_there()
        buffer = self._link.buffer
        count = len(buffer) // ACK_BYTES
        whole = buffer[: count * ACK_BYTES]
        is_usual = buffer[: len(ACK_HEAD)] == ACK_HEAD[: len(buffer)]
        if not is_usual or whole[len(ACK_HEAD) - 1 :: ACK_BYTES].count(ACK_HEAD[-1]) != count:
            for _method in self._read_frames():  # it raises what the broker says
                pass
            return
        del buffer[: len(whole)]


def _ack(tag: int) -> bytes:
    """All deliveries up to this one."""
    return wire.method(wire.CHANNEL, 60, 80, _TAG.pack(tag, True))
