"""MQTT's hot path interpreted: packets in, records staged; records out, packets shared.

Rules:
- `MqttInput.feed` stages every plain PUBLISH (QoS 0 or 1, known route, no properties) and settles
  every plain PUBACK by itself. At any other packet it stops and returns it, so that nothing
  overtakes it; the caller handles it and calls `feed` again with no bytes.
- A packet whose header claims more than the limit is refused at once.
- A packet is done when it is staged, settled or returned: when `resolve` raises, it comes again.
- A packet for which the builder has no room is returned, too.
- A connection's acknowledgements go out in the order of its publishes (MQTT5 4.6.0-2): those of a
  pass wait for the stages that hold its records, and for those of earlier passes. No connection
  waits for the stages of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onelog.base.errors import InvalidRequest, MessageTooLarge, OnelogError, ProtocolViolation
from onelog.kernel.pure.mqtt_fanout import (
    PUBLISHER_HEADER,
    QOS_HEADER,
    RETAIN_HEADER,
    MqttFanout,
)
from onelog.kernel.pure.mqtt_output import MqttOutput, encode_publish

if TYPE_CHECKING:
    from onelog.kernel.pure.build import BatchBuilder
    from onelog.kernel.types import Header

__all__ = [
    "MqttFanout",
    "MqttInput",
    "MqttOutput",
    "MqttRoute",
    "Stage",
    "StageAcks",
    "encode_acks",
    "encode_publish",
]

_STAGES_MAX = 65_536


class Stage:
    """A partition's builder. It is on the shared list of dirty stages while records are staged."""

    __slots__ = ("_spare", "builder", "dirty", "number", "owner")

    def __init__(self, owner: Any, builder: BatchBuilder, dirty: list[Stage]) -> None:
        self.owner = owner
        self.builder = builder
        self._spare: BatchBuilder | None = None
        self.dirty = dirty
        self.number = -1
        """Its index in the list of dirty stages; -1: it is not there."""

    def touch(self) -> None:
        """Put the stage on the list."""
        if self.number < 0:
            self.number = len(self.dirty)
            self.dirty.append(self)

    def take(self) -> BatchBuilder:
        """Leave the list. Returns the builder to write; later records go to another one."""
        full = self.builder
        self.builder, self._spare = self._spare or full.another(), None
        self.number = -1
        return full

    def give_back(self, builder: BatchBuilder) -> None:
        """A builder from `take` is empty again."""
        if self.builder.count:
            self._spare = builder  # more was staged while it was written
        else:
            self.builder, self._spare = builder, self.builder


class MqttRoute:
    """Where a topic's plain publishes go."""

    __slots__ = ("stage", "topic", "value_bytes_max")

    def __init__(self, topic: bytes, stage: Stage, value_bytes_max: int) -> None:
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max


class MqttPass:
    """What all connections share in one pass of the loop.

    `dirty` is the door's list of stages. `acking` gets the inputs that have acknowledgements. The
    time is read once per pass that writes.
    """

    __slots__ = (
        "acking",
        "answered_bytes",
        "bytes_max",
        "clock",
        "dirty",
        "now_ms",
        "reason_of",
        "received_bytes",
        "received_messages",
        "tick_soon",
    )

    def __init__(
        self,
        dirty: list[Stage],
        clock: Callable[[], int],
        tick_soon: Callable[[], None],
        bytes_max: int,
        reason_of: Callable[[OnelogError], int] | None = None,
    ) -> None:
        self.dirty = dirty
        self.reason_of = reason_of
        """Gives the reason code of an error."""
        self.acking: list[MqttInput] = []
        self.clock = clock
        self.tick_soon = tick_soon
        self.bytes_max = bytes_max
        self.received_bytes = 0
        """Bytes that all connections sent so far."""
        self.received_messages = 0
        """Plain publishes among them."""
        self.answered_bytes = 0
        """Bytes of the answers to them."""
        self.now_ms = 0

    def take_acks(self) -> list[StageAcks | None]:
        """Per dirty stage the acknowledgements that wait for it; None: there are none."""
        waiting: list[StageAcks | None] = [None] * len(self.dirty)
        for row in self.acking:
            acks = row.wait()
            for number in acks.numbers:
                assert number < len(waiting), "it was noted in an earlier pass"
                found = waiting[number]
                if found is None:
                    found = waiting[number] = StageAcks(number, self.reason_of)
                found.waiting.append(acks)
        self.acking.clear()
        return waiting


class StageAcks:
    """Acknowledgements of a pass that wait for one stage: the publisher tells them of its end."""

    __slots__ = ("_number", "_reason_of", "waiting")

    results: None = None

    def __init__(self, number: int, reason_of: Callable[[OnelogError], int] | None) -> None:
        self._number = number
        """Of the stage in the pass."""
        self._reason_of = reason_of
        self.waiting: list[MqttAcks] = []

    def finish(self, count: int, error: OnelogError | None) -> None:
        """The stage is written, or has failed: send what waits for nothing any more.

        A connection that raises keeps none of the others from theirs; the first error is raised
        then.
        """
        del count
        problem: Exception | None = None
        reason = None
        if error is not None:
            assert self._reason_of is not None, "who publishes says what an error is called"
            reason = self._reason_of(error)
        for acks in self.waiting:
            if reason is not None:
                acks.failed = {**(acks.failed or {}), self._number: reason}
            acks.left -= 1
            if not acks.left:
                try:
                    acks.row.send_ready()
                except Exception as raised:  # noqa: BLE001 - raised when all had their turn
                    problem = problem or raised
        if problem is not None:
            raise problem


class MqttAcks:
    """Acknowledgements of a connection that go out together, after earlier ones."""

    __slots__ = ("act", "failed", "left", "numbers", "packets", "row")

    def __init__(
        self, row: MqttInput, packets: bytes, act: Callable[[], None] | None = None
    ) -> None:
        self.row = row
        self.packets = packets
        """Packet id and stage number of each."""
        self.act = act
        """Called instead of sending acknowledgements."""
        found = (int.from_bytes(packets[at : at + 2], "big") for at in range(2, len(packets), 4))
        self.numbers = tuple(dict.fromkeys(found))
        self.left = len(self.numbers)
        """Stages that are not written yet."""
        self.failed: dict[int, int] | None = None


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
            turn.now_ms = turn.clock()
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


def encode_acks(acks: bytes, failed: dict[int, int] | None = None) -> bytes:
    """PUBACK packets in order; `failed` has the v5 reason code of stages that could not write."""
    out = []
    for at in range(0, len(acks) - 3, 4):
        reason = failed.get(int.from_bytes(acks[at + 2 : at + 4], "big")) if failed else None
        if reason is None:
            out.append(b"\x40\x02" + acks[at : at + 2])
        else:
            out.append(b"\x40\x03" + acks[at : at + 2] + bytes((reason,)))
    return b"".join(out)
