"""MQTT's input interpreted: packets in, records staged.

Rules:
- `MqttInput.feed` stages every plain PUBLISH (QoS 0 or 1, known route, no properties) and settles
  every plain PUBACK by itself. At any other packet it stops and returns it, so that nothing
  overtakes it; the caller handles it and calls `feed` again with no bytes.
- A packet whose header claims more than the limit is refused at once.
- A packet is done when it is staged, settled or returned: when `resolve` raises, it comes again.
- A packet for which the builder has no room is returned, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onelog.base.errors import InvalidRequest, MessageTooLarge, OnelogError, ProtocolViolation
from onelog.kernel.pure.mqtt_acks import MqttAcks, encode_acks
from onelog.kernel.pure.mqtt_fanout import PUBLISHER_HEADER, QOS_HEADER, RETAIN_HEADER
from onelog.kernel.pure.mqtt_output import MqttOutput

if TYPE_CHECKING:
    from onelog.kernel.pure.mqtt_acks import MqttPass
    from onelog.kernel.pure.stage import MqttRoute, Stage
    from onelog.kernel.types import Header

_STAGES_MAX = 65_536


class MqttInput:
    """One connection's byte stream."""

    __slots__ = (
        "_acks",
        "_feeding",
        "_position",
        "_rest",
        "_turn",
        "_turn_bytes",
        "_waiting",
        "charge",
        "heard",
        "output",
        "owner",
        "packet_bytes_max",
        "publisher",
        "receive_maximum",
        "resolve",
        "routes",
        "staged",
        "staged_bytes",
        "suspended",
        "unanswered",
        "version",
    )

    def __init__(
        self,
        output: MqttOutput,
        routes: dict[bytes, MqttRoute],
        resolve: Callable[[bytes], MqttRoute | None],
        packet_bytes_max: int,
    ) -> None:
        self.output = output
        self.routes = routes
        self.resolve = resolve
        self.packet_bytes_max = packet_bytes_max
        self.version = 0
        """3, 4 or 5 once connected; until then every packet is returned."""
        self.publisher = b""
        """When set, records carry it, so that `no local` subscriptions know their own."""
        self.staged = 0
        """Records staged since the start."""
        self.staged_bytes = 0
        """Bytes of the topics and payloads of these records."""
        self.charge: Callable[[int, int], None] | None = None
        """Called with the messages and bytes that a read staged, if they are to be counted."""
        self.unanswered = 0
        """Publishes of QoS 1 and 2 that wait for their last answer; one too many is returned."""
        self.receive_maximum = 0
        """How many may wait; 0: any number."""
        self._rest = b""
        self._position = 0
        self._acks: list[tuple[int, int]] = []
        self._waiting: list[MqttAcks] = []
        """Acknowledgements that wait for stages, in the order in which they go out."""
        self._feeding = False
        self.owner: Any = None
        self.heard = False
        """Whether bytes came since the owner set it to False."""
        self.suspended = False
        """While set, `receive` only passes the bytes to the owner."""
        self._turn: MqttPass | None = None
        self._turn_bytes = 0

    # -- a connection of the loop

    def join(self, owner: Any, turn: MqttPass) -> None:
        """Let `receive` serve a connection: `owner` handles packets that are not plain."""
        self.owner = owner
        self._turn = turn

    def receive(self, data: bytes) -> None:
        """Take a read. The owner is called only for packets that are not plain."""
        turn, staged, staged_bytes = self._turn, self.staged, self.staged_bytes
        assert turn is not None, "it has joined"
        if self.suspended:
            self.owner.keep_unread(data)
            return
        clean = not turn.dirty
        self.heard = True
        if clean:
            turn.now_ms = turn.clock.now_ms()
        try:
            event = self.feed(data, turn.now_ms)
            if event is not None:
                self.owner.take_packets(event)
        except OnelogError as error:
            self.owner.fail(error)
        finally:  # also after an error, staged records are written
            self.finish(clean)
        turn.received_bytes += len(data)
        if self.staged != staged:
            turn.received_messages += self.staged - staged
            if self.charge is not None:
                self.charge(self.staged - staged, self.staged_bytes - staged_bytes)
        self._turn_bytes += len(data)
        if self._turn_bytes >= turn.bytes_max:
            self._turn_bytes = 0
            self.owner.rest()

    def finish(self, clean: bool = True) -> None:
        """Have staged records written; let a session that reads the log go on."""
        turn = self._turn
        assert turn is not None, "it has joined"
        if clean and turn.dirty:
            turn.tick_soon()
        if not self.output.live:
            self.owner.catch_up()

    # -- bytes in

    def feed(self, data: bytes, now_ms: int) -> tuple[int, bytes] | None:
        """Take received bytes. Returns the next packet that the caller has to handle; None: all are
        done."""
        if self._feeding:
            raise InvalidRequest("this connection is being fed: `resolve` must not feed it")
        if data:
            self._rest = self._rest[self._position :] + data
            self._position = 0
        self._feeding = True
        try:
            return self._feed(now_ms)
        finally:
            self._feeding = False

    def _feed(self, now_ms: int) -> tuple[int, bytes] | None:
        buffer = self._rest
        while (bounds := self._next(buffer, self._position)) is not None:
            at, end = bounds
            first = buffer[self._position]
            handled = self._handle(first, buffer, at, end, now_ms)
            self._position = end
            if not handled:
                return first, buffer[at:end]
        self._rest = buffer[self._position :]
        self._position = 0
        return None

    def _next(self, buffer: bytes, start: int) -> tuple[int, int] | None:
        """Where the body of the packet at `start` begins and ends; None if bytes are missing."""
        size = 0
        for index in range(4):
            at = start + 1 + index
            if at >= len(buffer):
                return None
            size |= (buffer[at] & 0x7F) << 7 * index
            if buffer[at] < 0x80:
                break
        else:
            raise ProtocolViolation("the remaining length of a packet has more than four bytes")
        end = at + 1 + size
        if end - start > self.packet_bytes_max:
            raise MessageTooLarge(
                f"a packet of {end - start} bytes is larger than {self.packet_bytes_max}"
            )
        return (at + 1, end) if end <= len(buffer) else None

    def _handle(self, first: int, buffer: bytes, at: int, end: int, now_ms: int) -> bool:
        if self.version == 0:
            return False
        if first >> 4 == 3:
            return self._publish(first, buffer, at, end, now_ms)
        if first == 0x40 and end - at == 2:
            packet_id = int.from_bytes(buffer[at:end], "big")
            return packet_id != 0 and self.output.settle(packet_id)
        return False

    def _publish(self, first: int, buffer: bytes, at: int, end: int, now_ms: int) -> bool:
        qos = first >> 1 & 3
        if qos > 1 or (qos == 0 and first & 8) or end - at < 2:
            return False
        topic_end = at + 2 + int.from_bytes(buffer[at : at + 2], "big")
        topic = buffer[at + 2 : topic_end]
        at = topic_end + 2 * qos + (self.version == 5)
        if not topic or at > end or (self.version == 5 and buffer[at - 1] != 0):
            return False
        packet_id = int.from_bytes(buffer[topic_end : topic_end + 2], "big") if qos else 0
        if qos and (packet_id == 0 or 0 < self.receive_maximum <= self.unanswered):
            return False
        route = self.routes.get(topic)
        if route is None:
            route = self.resolve(topic)
            if route is None:
                return False
        if end - at > route.value_bytes_max:
            return False
        return self._stage(route, first, packet_id, buffer[at:end], now_ms)

    def _stage(
        self, route: MqttRoute, first: int, packet_id: int, value: bytes, now_ms: int
    ) -> bool:
        headers: list[Header] = []
        if packet_id:
            headers.append((QOS_HEADER, b"1"))
        if first & 1:
            headers.append((RETAIN_HEADER, b"1"))
        if self.publisher:
            headers.append((PUBLISHER_HEADER, self.publisher))
        stage = route.stage
        if stage.number < 0 and len(stage.dirty) >= _STAGES_MAX:
            return False  # its number would not fit the list of acknowledgements
        try:
            stage.builder.add(route.topic, route.topic, value, tuple(headers), now_ms)
        except OnelogError:
            return False
        stage.touch()
        if packet_id:
            self.await_ack(packet_id, stage)
            self.unanswered += 1
        self.staged += 1
        self.staged_bytes += len(route.topic) + len(value)
        return True

    def await_ack(self, packet_id: int, stage: Stage) -> None:
        """Acknowledge, in its turn, a publish that the caller staged and counted."""
        if not 0 <= stage.number < _STAGES_MAX:
            raise InvalidRequest(f"a stage of number {stage.number} holds no such publish")
        if not self._acks and self._turn is not None:
            # At once: the end of the pass takes the staged records and their waiters together.
            self._turn.acking.append(self)
        self._acks.append((packet_id, stage.number))

    @property
    def has_acks(self) -> bool:
        """Whether staged publishes have acknowledgements that wait."""
        return bool(self._acks)

    def wait(self) -> MqttAcks:
        """Let the noted acknowledgements wait for their stages, after earlier ones."""
        acks = MqttAcks(self, self.take_acks())
        self._waiting.append(acks)
        return acks

    def answer_next(self, act: Callable[[], None]) -> None:
        """Call `act` when all acknowledgements that wait now are sent; at once if none waits."""
        assert not self._acks, "what is staged is taken before"
        if self._waiting:
            self._waiting.append(MqttAcks(self, b"", act))
        else:
            act()

    def send_ready(self) -> None:
        """Send acknowledgements whose stages are all written, from the oldest on."""
        while self._waiting and not self._waiting[0].left:
            acks = self._waiting.pop(0)
            if acks.act is not None:
                acks.act()
            elif acks.failed is not None:
                if self.owner is not None:  # otherwise its connection is gone
                    self.owner.acknowledge_some(acks.packets, acks.failed)
            elif self.output.writer is None:
                self.unanswered -= len(acks.packets) // 4
            else:
                self.output.writer(self.answer(acks.packets))

    def take_acks(self) -> bytes:
        """The acknowledgements that are due, for `answer`."""
        acks, self._acks = self._acks, []
        return b"".join(
            packet_id.to_bytes(2, "big") + number.to_bytes(2, "big") for packet_id, number in acks
        )

    def answer(self, acks: bytes, failed: dict[int, int] | None = None) -> bytes:
        """The packets of `encode_acks`, which are sent now: these publishes are answered."""
        out = encode_acks(acks, failed)
        self.unanswered -= len(acks) // 4
        if self._turn is not None:
            self._turn.answered_bytes += len(out)
        return out
