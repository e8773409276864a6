"""MQTT's hot path interpreted: packets in, records staged; records out, packets shared.

Rules:
- `MqttInput.feed` stages every plain PUBLISH (QoS 0 or 1, known route, no properties) and settles
  every plain PUBACK by itself. At any other packet it stops and hands it out, so that nothing
  overtakes it; the caller deals with it and feeds on with no bytes.
- A packet is never larger than the limit, whatever its header claims: that is refused at once.
- `MqttFanout.deliver` encodes a QoS 0 packet once per topic run and version and shares the bytes
  between all subscribers that take it so; what differs per subscriber is encoded for it alone.
- A subscriber without room falls behind: it is skipped from then on and the caller is told where,
  so that it reads on from the log. Nothing queues here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onelog.base.errors import MessageTooLarge
from onelog.kernel.pure.records import decode_batch
from onelog.kernel.pure.scan import scan_batches
from onelog.kernel.pure.trie import TopicTrie
from onelog.kernel.pure.wire import decode_remaining_length, encode_remaining_length
from onelog.kernel.types import ATTR_CODEC_MASK, ATTR_CONTROL, ATTR_TRANSACTIONAL, TOPIC_HEADER

if TYPE_CHECKING:
    from onelog.kernel.pure.build import BatchBuilder
    from onelog.kernel.types import Buffer, Header

PACKET_IDS = 65_535
QOS_HEADER, RETAIN_HEADER, PUBLISHER_HEADER = b"~q", b"~r", b"~nl"
_KNOWN = (TOPIC_HEADER, QOS_HEADER, RETAIN_HEADER, PUBLISHER_HEADER)


class Stage:
    """A partition's builder; on the shared list of dirty ones as soon as something is staged."""

    __slots__ = ("builder", "dirty", "number", "owner")

    def __init__(self, owner: Any, builder: BatchBuilder, dirty: list[Stage]) -> None:
        self.owner = owner
        self.builder = builder
        self.dirty = dirty
        self.number = -1
        """Its place on the list of dirty ones; -1 when it is not there."""

    def touch(self) -> None:
        """Be on the list."""
        if self.number < 0:
            self.number = len(self.dirty)
            self.dirty.append(self)


class MqttRoute:
    """Where a topic's plain publishes go."""

    __slots__ = ("stage", "topic", "value_bytes_max")

    def __init__(self, topic: bytes, stage: Stage, value_bytes_max: int) -> None:
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max


class MqttOutput:
    """What goes to one subscriber: its window of packet ids, and bytes that wait for its socket."""

    __slots__ = (
        "_chunks",
        "_in_flight",
        "_next_id",
        "live",
        "owner",
        "touched",
        "version",
        "window",
    )

    def __init__(self, owner: Any, version: int, window: int) -> None:
        self.owner = owner
        self.version = version
        self.window = window
        self.live = False
        """Whether `deliver` hands it records; False while it reads the log by itself."""
        self.touched = False
        self._chunks: list[bytes] = []
        self._in_flight: dict[int, tuple[int, int, int, int]] = {}
        self._next_id = 1

    @property
    def room(self) -> int:
        """Records that still fit its window."""
        return max(0, min(self.window, PACKET_IDS) - len(self._in_flight))

    @property
    def pending(self) -> int:
        """Records in flight."""
        return len(self._in_flight)

    @property
    def next_id(self) -> int:
        """The packet id that is tried next."""
        return self._next_id

    def take_id(self, partition: int, offset: int, qos: int) -> int:
        """A packet id for a record; 0 when the window is full."""
        if self.room == 0:
            return 0
        packet_id = self._next_id
        while packet_id in self._in_flight:
            packet_id = packet_id % PACKET_IDS + 1
        self._next_id = packet_id % PACKET_IDS + 1
        self._in_flight[packet_id] = (partition, offset, qos, 0)
        return packet_id

    def ack(self, packet_id: int) -> bool:
        """The peer is done with it (PUBACK, PUBCOMP)."""
        return self._in_flight.pop(packet_id, None) is not None

    def receive(self, packet_id: int) -> bool:
        """The peer has it (PUBREC); False when it is not in flight with QoS 2."""
        entry = self._in_flight.get(packet_id)
        if entry is None or entry[2] != 2:
            return False
        self._in_flight[packet_id] = (*entry[:3], 1)
        return True

    def in_flight(self) -> list[tuple[int, int, int, int, int]]:
        """(packet id, partition, offset, QoS, stage), in the order of delivery."""
        return [(packet_id, *entry) for packet_id, entry in self._in_flight.items()]

    def restore(self, rows: list[tuple[int, int, int, int, int]], next_id: int) -> None:
        """Take over what was in flight in an earlier connection."""
        self._in_flight = {row[0]: row[1:] for row in rows}
        self._next_id = next_id

    def push(self, data: bytes) -> None:
        """Queue bytes behind what waits already."""
        self._chunks.append(data)

    def take(self) -> list[bytes]:
        """Everything that waits for the socket."""
        chunks, self._chunks = self._chunks, []
        self.touched = False
        return chunks


def encode_publish(
    version: int,
    topic: bytes,
    payload: Buffer,
    flags: int,
    packet_id: int = 0,
    properties: bytes = b"",
) -> bytes:
    """A PUBLISH packet; `flags` are DUP, QoS and RETAIN as in its first byte."""
    body = [len(topic).to_bytes(2, "big"), topic]
    if flags & 6:
        body.append(packet_id.to_bytes(2, "big"))
    if version == 5:
        body += (encode_remaining_length(len(properties)), properties)
    size = sum(map(len, body)) + len(payload)
    return b"".join((bytes((0x30 | flags,)), encode_remaining_length(size), *body, bytes(payload)))


class MqttInput:
    """One connection's byte stream."""

    __slots__ = (
        "_acks",
        "_position",
        "_rest",
        "output",
        "packet_bytes_max",
        "publisher",
        "resolve",
        "routes",
        "staged",
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
        """3, 4 or 5 once connected; until then every packet is handed out."""
        self.publisher = b""
        """When set, records carry it, so that `no local` subscriptions know their own."""
        self.staged = 0
        """Records staged since the start."""
        self._rest = b""
        self._position = 0
        self._acks: list[tuple[int, int]] = []

    def feed(self, data: bytes, now_ms: int) -> tuple[int, bytes] | None:
        """Take received bytes; the next packet that is the caller's, or None when all is done."""
        if data:
            self._rest = self._rest[self._position :] + data
            self._position = 0
        buffer = self._rest
        while self._position < len(buffer):
            start = self._position
            length = decode_remaining_length(buffer, start + 1) if start + 1 < len(buffer) else None
            if length is None:
                break
            size, body = length
            if body + size - start > self.packet_bytes_max:
                raise MessageTooLarge(
                    f"a packet of {body + size - start} bytes is larger than"
                    f" {self.packet_bytes_max}"
                )
            if body + size > len(buffer):
                break
            self._position = body + size
            if not self._handle(buffer[start], buffer, body, body + size, now_ms):
                return buffer[start], buffer[body : body + size]
        self._rest = buffer[self._position :]
        self._position = 0
        return None

    def _handle(self, first: int, buffer: bytes, at: int, end: int, now_ms: int) -> bool:
        if self.version == 0:
            return False
        if first >> 4 == 3:
            return self._publish(first, buffer, at, end, now_ms)
        if first == 0x40 and end - at == 2:
            packet_id = int.from_bytes(buffer[at:end], "big")
            if packet_id:
                self.output.ack(packet_id)
                return True
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
        if qos and packet_id == 0:
            return False
        route = self.routes.get(topic)
        if route is None:
            route = self.resolve(topic)
            if route is None:
                return False
        if end - at > route.value_bytes_max:
            return False
        headers: list[Header] = []
        if qos:
            headers.append((QOS_HEADER, b"1"))
        if first & 1:
            headers.append((RETAIN_HEADER, b"1"))
        if self.publisher:
            headers.append((PUBLISHER_HEADER, self.publisher))
        stage = route.stage
        stage.builder.add(route.topic, route.topic, buffer[at:end], tuple(headers), now_ms)
        stage.touch()
        if qos:
            self._acks.append((packet_id, stage.number))
        self.staged += 1
        return True

    @property
    def has_acks(self) -> bool:
        """Whether acknowledgements wait for their records to be durable."""
        return bool(self._acks)

    def take_acks(self) -> bytes:
        """What is to be acknowledged, for `encode_acks`."""
        acks, self._acks = self._acks, []
        return b"".join(
            packet_id.to_bytes(2, "big") + number.to_bytes(2, "big") for packet_id, number in acks
        )


def encode_acks(acks: bytes, failed: dict[int, int] | None = None) -> bytes:
    """PUBACK packets in order; `failed` has the v5 reason code of stages that could not write."""
    out = []
    for at in range(0, len(acks), 4):
        reason = failed.get(int.from_bytes(acks[at + 2 : at + 4], "big")) if failed else None
        if reason is None:
            out.append(b"\x40\x02" + acks[at : at + 2])
        else:
            out.append(b"\x40\x03" + acks[at : at + 2] + bytes((reason,)))
    return b"".join(out)


class _Subscription:
    __slots__ = ("identifier", "no_local", "output", "qos", "retain_as_published")

    def __init__(
        self, output: MqttOutput, qos: int, no_local: bytes, rap: bool, identifier: int
    ) -> None:
        self.output = output
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = rap
        self.identifier = identifier


class _Target:
    """One subscriber of one topic, all its matching subscriptions taken together."""

    __slots__ = ("identifiers", "no_local", "output", "plain", "qos", "retain_as_published")

    def __init__(self, output: MqttOutput, subscriptions: list[_Subscription]) -> None:
        self.output = output
        self.qos = max(row.qos for row in subscriptions)
        self.retain_as_published = any(row.retain_as_published for row in subscriptions)
        # Its own messages are kept from it only if no matching subscription wants them.
        own = [row.no_local for row in subscriptions]
        self.no_local = own[0] if all(own) else b""
        numbers = sorted({row.identifier for row in subscriptions if row.identifier})
        self.identifiers = b"".join(b"\x0b" + encode_remaining_length(n) for n in numbers)
        self.plain = not (self.identifiers or self.no_local or self.retain_as_published)


class MqttFanout:
    """Who gets which record, and in which bytes."""

    def __init__(self, properties: Callable[[tuple[Header, ...], int], bytes | None]) -> None:
        self._properties = properties
        self._trie = TopicTrie()
        self._subscriptions: dict[int, _Subscription] = {}
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._next_number = 0
        self._plans: dict[bytes, list[_Target]] = {}

    def subscribe(
        self,
        topic_filter: bytes,
        output: MqttOutput,
        qos: int,
        no_local: bytes = b"",
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> bool:
        """Add or replace a subscription; whether it is new."""
        key = (topic_filter, id(output))
        number = self._numbers.get(key)
        new = number is None
        if number is None:
            number = self._next_number
            self._next_number += 1
            self._trie.add(topic_filter, number)
            self._numbers[key] = number
        self._subscriptions[number] = _Subscription(
            output, qos, no_local, retain_as_published, identifier
        )
        self._forget(topic_filter)
        return new

    def unsubscribe(self, topic_filter: bytes, output: MqttOutput) -> bool:
        """Remove a subscription; False when there is none."""
        number = self._numbers.pop((topic_filter, id(output)), None)
        if number is None:
            return False
        del self._subscriptions[number]
        self._trie.remove(topic_filter, number)
        self._forget(topic_filter)
        return True

    def __len__(self) -> int:
        return len(self._subscriptions)

    def _forget(self, topic_filter: bytes) -> None:
        if b"+" in topic_filter or b"#" in topic_filter:
            self._plans.clear()
        else:
            self._plans.pop(topic_filter, None)

    def _plan(self, topic: bytes) -> list[_Target]:
        plan = self._plans.get(topic)
        if plan is None:
            by_output: dict[int, list[_Subscription]] = {}
            for number in self._trie.match(topic):
                row = self._subscriptions[number]
                by_output.setdefault(id(row.output), []).append(row)
            plan = [_Target(rows[0].output, rows) for rows in by_output.values()]
            if len(self._plans) >= 65_536:
                self._plans.clear()
            self._plans[topic] = plan
        return plan

    def deliver(
        self,
        data: Buffer,
        partition: int,
        start_offset: int,
        now_ms: int,
        default_topic: bytes | None = None,
    ) -> tuple[int, list[MqttOutput], list[tuple[MqttOutput, int]]]:
        """Give the records of plain batches to their subscribers.

        Answers the offset to go on from (a compressed, control or transactional batch is the
        caller's), the subscribers that have bytes to write, and those that fell behind with the
        offset of the first record that they did not get.
        """
        touched: list[MqttOutput] = []
        fallen: list[tuple[MqttOutput, int]] = []
        special = ATTR_CODEC_MASK | ATTR_CONTROL | ATTR_TRANSACTIONAL
        following = start_offset
        for info in scan_batches(data, 0, False):
            if info.last_offset < start_offset:
                continue
            if info.attributes & special:
                return max(following, info.base_offset), touched, fallen
            slices = decode_batch(data, info.position, None, False)
            for index in range(len(slices)):
                offset = slices.offset(index)
                topic = slices.topic(index) if default_topic is None else default_topic
                if offset >= start_offset and topic is not None:
                    record = slices.record(index)
                    self.deliver_record(
                        topic, record[3] or b"", record[4], (partition, offset), now_ms,
                        touched, fallen,
                    )  # fmt: skip
            following = info.last_offset + 1
        return following, touched, fallen

    def deliver_record(
        self,
        topic: bytes,
        value: bytes,
        headers: tuple[Header, ...],
        place: tuple[int, int],
        now_ms: int,
        touched: list[MqttOutput],
        fallen: list[tuple[MqttOutput, int]],
    ) -> None:
        """Give one record to its subscribers; the lists grow as those of `deliver` do."""
        plan = self._plan(topic)
        if not plan:
            return
        known = dict(reversed([pair for pair in headers if pair[0] in _KNOWN]))
        qos = int(known.get(QOS_HEADER) or b"0")
        properties = b""
        if any(name not in _KNOWN for name, _value in headers):
            made = self._properties(headers, now_ms)
            if made is None:
                return  # it has expired
            properties = made
        for target in plan:
            output = target.output
            if not output.live or (
                target.no_local and target.no_local == known.get(PUBLISHER_HEADER)
            ):
                continue
            granted = min(qos, target.qos)
            packet_id = 0
            if granted:
                packet_id = output.take_id(*place, granted)
                if packet_id == 0:
                    output.live = False
                    fallen.append((output, place[1]))
                    continue
            flags = granted << 1 | (target.retain_as_published and RETAIN_HEADER in known)
            output.push(
                encode_publish(
                    output.version, topic, value, flags, packet_id, target.identifiers + properties
                )
            )
            if not output.touched:
                output.touched = True
                touched.append(output)
